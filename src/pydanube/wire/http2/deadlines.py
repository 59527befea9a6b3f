"""When calls run out of time: one timer for all of a connection's calls."""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final

_LEFT_OVER_MAX: Final = 1_024


class Deadlines:
    """Remembers until when streams have time.

    Streams that end earlier are not taken out one by one; `is_open` tells them apart, and they are
    swept out once they are the greater part.
    """

    def __init__(self, is_open: Callable[[int], bool]) -> None:
        self._is_open = is_open
        self._due: list[tuple[float, int]] = []
        self._sweep_at = _LEFT_OVER_MAX

    def add(self, stream_id: int, due_ms: float) -> None:
        """Remember one."""
        if len(self._due) >= self._sweep_at:
            self._due = [entry for entry in self._due if self._is_open(entry[1])]
            heapify(self._due)
            self._sweep_at = 2 * len(self._due) + _LEFT_OVER_MAX
        heappush(self._due, (due_ms, stream_id))

    def next_ms(self) -> float | None:
        """Return when the next open stream is due."""
        while self._due and not self._is_open(self._due[0][1]):
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def take_due(self, now_ms: int) -> Iterable[int]:
        """Return the open streams that are due, and forget them."""
        due: list[int] = []
        while (next_ms := self.next_ms()) is not None and next_ms <= now_ms:
            due.append(heappop(self._due)[1])
        return due
