"""Sets of offsets, kept as ranges so that a million offsets may be one entry."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from typing_extensions import override

Range = tuple[int, int]
"""[start, end): `end` is the next offset, never the last one."""


class RangeSet:
    """Offsets as sorted, disjoint, non-touching ranges; operations cost O(log n + changed)."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def add(self, start: int, end: int) -> None:
        """Put a range in; what is there already stays."""
        if start >= end:
            return
        # Touching ranges are joined, hence <= on both sides.
        low = bisect_left(self._ends, start)
        high = bisect_right(self._starts, end)
        if low < high:
            start = min(start, self._starts[low])
            end = max(end, self._ends[high - 1])
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]

    def remove(self, start: int, end: int) -> None:
        """Take a range out; what is absent stays absent."""
        if start >= end:
            return
        low = bisect_right(self._ends, start)
        high = bisect_left(self._starts, end)
        if low >= high:
            return
        starts, ends = [], []
        if self._starts[low] < start:
            starts.append(self._starts[low])
            ends.append(start)
        if self._ends[high - 1] > end:
            starts.append(end)
            ends.append(self._ends[high - 1])
        self._starts[low:high] = starts
        self._ends[low:high] = ends

    def end_of_run(self, offset: int) -> int:
        """Return the end of the range that holds `offset`, or `offset` itself if none does."""
        index = bisect_right(self._starts, offset) - 1
        return max(offset, self._ends[index]) if index >= 0 else offset

    def within(self, start: int, end: int) -> list[Range]:
        """Return the parts of this set that lie in [start, end)."""
        low = bisect_right(self._ends, start)
        high = bisect_left(self._starts, end)
        return [(max(start, self._starts[i]), min(end, self._ends[i])) for i in range(low, high)]

    def missing(self, start: int, end: int) -> list[Range]:
        """Return the parts of [start, end) that are not in this set."""
        gaps = []
        for held_start, held_end in self.within(start, end):
            if start < held_start:
                gaps.append((start, held_start))
            start = held_end
        if start < end:
            gaps.append((start, end))
        return gaps

    def count(self) -> int:
        """Return how many offsets there are."""
        return sum(self._ends) - sum(self._starts)

    def __contains__(self, offset: int) -> bool:
        return self.end_of_run(offset) > offset

    def __iter__(self) -> Iterator[Range]:
        return iter(zip(self._starts, self._ends, strict=True))

    def __len__(self) -> int:
        """How many ranges there are; `count` tells how many offsets."""
        return len(self._starts)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # It changes.

    @override
    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"
