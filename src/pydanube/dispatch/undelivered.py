"""What has not been delivered since the dispatcher was made."""

from collections import deque
from collections.abc import Iterable

from pydanube.dispatch.range_map import Known
from pydanube.model.progress import Progress
from pydanube.model.ranges import RangeSet


class Undelivered:
    """Runs of unsettled offsets that nobody has got yet, from the cursor to infinity.

    Almost always this is one number, the next offset. After a restart the runs before it are what
    lies between settled ranges, with the attempts counted before the restart.
    """

    def __init__(self, progress: Progress) -> None:
        ends = [end for _, end in progress.settled] + [end for _, end, _ in progress.attempts]
        self._next: int = max(ends, default=progress.cursor)
        self._runs: deque[Known[int]] = deque()
        settled = RangeSet(progress.settled)
        for start, end, attempts in _all_runs(progress, self._next):
            for gap_start, gap_end in settled.missing(start, end):
                self._runs.append((gap_start, gap_end, attempts))
        self.position = self._runs[0][0] if self._runs else self._next
        """The first offset that has not been delivered."""

    def first(self, end: int) -> Known[int]:
        """Return the first run with the attempts of its messages, as far as it lies below `end`."""
        assert self.position < end, "nothing is left to deliver"
        if self._runs:
            start, run_end, attempts = self._runs[0]
            return start, min(run_end, end), attempts
        return self._next, end, 0

    def deliver(self, end: int) -> None:
        """Take note that the first run has been delivered up to `end`, which lies in it."""
        if not self._runs:
            self._next = self.position = end
            return
        _, run_end, attempts = self._runs.popleft()
        if end < run_end:
            self._runs.appendleft((end, run_end, attempts))
        self.position = self._runs[0][0] if self._runs else self._next

    def take(self, start: int, end: int) -> list[Known[int]]:
        """Remove what lies in [start, end) and return it in offset order."""
        taken: list[Known[int]] = []
        kept: list[Known[int]] = []
        while self._runs and self._runs[0][0] < end:
            _cut(self._runs.popleft(), start, end, taken, kept)
        self._runs.extendleft(reversed(kept))
        if start < end and self._next < end:
            if self._next < start:
                self._runs.append((self._next, start, 0))
            taken.append((max(start, self._next), end, 0))
            self._next = end
        self.position = self._runs[0][0] if self._runs else self._next
        return taken


def _all_runs(progress: Progress, end: int) -> Iterable[Known[int]]:
    """Cover [cursor, end) with runs of equal attempts, settled offsets included."""
    position: int = progress.cursor
    for start, run_end, attempts in sorted(progress.attempts):
        yield position, start, 0
        yield max(start, position), run_end, attempts
        position = max(position, run_end)
    yield position, end, 0


def _cut(
    run: Known[int], start: int, end: int, taken: list[Known[int]], kept: list[Known[int]]
) -> None:
    run_start, run_end, attempts = run
    low, high = max(run_start, start), min(run_end, end)
    if low >= high:
        kept.append(run)
        return
    taken.append((low, high, attempts))
    if run_start < low:
        kept.append((run_start, low, attempts))
    if high < run_end:
        kept.append((high, run_end, attempts))
