"""A subscription's progress, folded from the changes in the journal. Pure."""

from bisect import bisect_left, bisect_right

from pydanube.model.ids import Offset
from pydanube.model.progress import Progress, ProgressChange
from pydanube.model.ranges import RangeSet


class FoldedProgress:
    """What a subscription's changes add up to. Taking a change in again changes nothing.

    Everything below the cursor is settled; settled ranges lie above it without touching it; only
    unsettled messages have attempts.
    """

    __slots__ = ("_attempts", "_cursor", "_settled")

    def __init__(self, progress: Progress) -> None:
        self._cursor: int = progress.cursor
        self._settled = RangeSet()
        self._attempts = _Attempts()
        self.apply(ProgressChange(progress.settled, progress.attempts))

    def apply(self, change: ProgressChange) -> None:
        """Take one change in: first what is settled, then the attempts of what is not."""
        for start, end in change.settled:
            self._settled.add(start, end)
            self._attempts.remove(start, end)
        reached = self._settled.end_of_run(self._cursor)
        # Ranges that begin below the cursor may be settled once more after a replay.
        self._settled.remove(0, reached)
        self._cursor = reached
        for start, end, attempts in change.attempts:
            for open_start, open_end in self._settled.missing(max(start, reached), end):
                self._attempts.put(open_start, open_end, attempts)

    def whole(self) -> Progress:
        """Return the state as a value."""
        return Progress(Offset(self._cursor), tuple(self._settled), tuple(self._attempts.ranges))


class _Attempts:
    """Sorted, disjoint (start, end, attempts); neighbours with equal attempts are one."""

    __slots__ = ("ranges",)

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int, int]] = []

    def remove(self, start: int, end: int) -> None:
        if self.ranges and start < end:
            self._replace(start, end, [])

    def put(self, start: int, end: int, attempts: int) -> None:
        if start < end:
            self._replace(start, end, [(start, end, attempts)])

    def _replace(self, start: int, end: int, middle: list[tuple[int, int, int]]) -> None:
        # One neighbour on either side is included, so that equal ones can be joined.
        low = bisect_right(self.ranges, start, key=lambda r: r[0])
        low = max(low - 1, 0)
        high = bisect_left(self.ranges, end, key=lambda r: r[0])
        high = min(high + 1, len(self.ranges))
        pieces: list[tuple[int, int, int]] = []
        for held_start, held_end, attempts in self.ranges[low:high]:
            if held_start < start:
                pieces.append((held_start, min(held_end, start), attempts))
        pieces += middle
        for held_start, held_end, attempts in self.ranges[low:high]:
            if held_end > end:
                pieces.append((max(held_start, end), held_end, attempts))
        self.ranges[low:high] = _joined(pieces)


def _joined(pieces: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    joined: list[tuple[int, int, int]] = []
    for start, end, attempts in pieces:
        if joined and joined[-1][1] == start and joined[-1][2] == attempts:
            joined[-1] = (joined[-1][0], end, attempts)
        else:
            joined.append((start, end, attempts))
    return joined
