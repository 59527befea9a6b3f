"""What is known about ranges of offsets, one entry per range."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

Known = tuple[int, int, T]
"""[start, end) and what is known about it."""


class RangeMap(Generic[T]):
    """Disjoint ranges in offset order, each with a value; partly taken, a range is split.

    Operations cost O(log n + changed), and nothing but a look-up when a range is taken as a whole.
    """

    __slots__ = ("_entries", "_starts", "count")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._entries: dict[int, tuple[int, T]] = {}
        self.count = 0
        """How many offsets there are."""

    def insert(self, start: int, end: int, value: T) -> None:
        """Put a range in. None of it may be there already."""
        starts = self._starts
        if not starts or start > starts[-1]:
            assert not starts or self._entries[starts[-1]][0] <= start, "ranges overlap"
            starts.append(start)
        else:
            index = bisect_left(starts, start)
            assert end <= starts[index], "ranges overlap"
            assert index == 0 or self._entries[starts[index - 1]][0] <= start, "ranges overlap"
            starts.insert(index, start)
        self._entries[start] = (end, value)
        self.count += end - start

    def take(self, start: int, end: int) -> list[Known[T]]:
        """Remove what lies in [start, end) and return it in offset order."""
        whole = self.take_whole(start, end)
        if whole is not None:
            return [(start, end, whole)]
        starts = self._starts
        if not starts or start >= end:
            return []
        self.split(start)
        self.split(end)
        low, high = bisect_left(starts, start), bisect_left(starts, end)
        taken: list[Known[T]] = []
        for held in starts[low:high]:
            held_end, value = self._entries.pop(held)
            self.count -= held_end - held
            taken.append((held, held_end, value))
        del starts[low:high]
        return taken

    def take_whole(self, start: int, end: int) -> T | None:
        """Remove a range that is exactly [start, end) and return its value; None if none is."""
        entry = self._entries.get(start)
        if entry is None or entry[0] != end:
            return None
        starts = self._starts
        del self._entries[start]
        del starts[0 if starts[0] == start else bisect_left(starts, start)]
        self.count -= end - start
        return entry[1]

    def take_all(self) -> list[Known[T]]:
        """Remove everything and return it in offset order."""
        return self.take(self._starts[0], self._end()) if self._starts else []

    def within(self, start: int, end: int) -> list[Known[T]]:
        """Return the whole ranges that begin in [start, end)."""
        low, high = bisect_left(self._starts, start), bisect_left(self._starts, end)
        return [(held, *self._entries[held]) for held in self._starts[low:high]]

    def over(self, at: int) -> T | None:
        """Return the value of the range that spans `at`; None if none does."""
        index = bisect_right(self._starts, at) - 1
        if index < 0:
            return None
        end, value = self._entries[self._starts[index]]
        return value if at < end else None

    def split(self, at: int) -> T | None:
        """Let a range that spans `at` become two, and return its value; None if none does."""
        index = bisect_left(self._starts, at) - 1
        if index < 0:
            return None
        held = self._starts[index]
        end, value = self._entries[held]
        if end <= at or at in self._entries:
            return None
        self._entries[held] = (at, value)
        self._entries[at] = (end, value)
        insort(self._starts, at)
        return value

    def first(self) -> Known[T] | None:
        """Return the range with the lowest offsets."""
        if not self._starts:
            return None
        start = self._starts[0]
        return (start, *self._entries[start])

    def at(self, start: int) -> tuple[int, T] | None:
        """Return end and value of the range that begins at `start`."""
        return self._entries.get(start)

    def _end(self) -> int:
        return self._entries[self._starts[-1]][0]

    def __iter__(self) -> Iterator[Known[T]]:
        return ((start, *self._entries[start]) for start in self._starts)

    def __len__(self) -> int:
        """How many ranges there are; `count` tells how many offsets."""
        return len(self._starts)


def joined(pieces: Iterable[Known[T]]) -> list[Known[T]]:
    """Return the pieces, given in offset order, with touching ones of equal value made one."""
    result: list[Known[T]] = []
    for start, end, value in pieces:
        if result and result[-1][1] == start and result[-1][2] == value:
            result[-1] = (result[-1][0], end, value)
        else:
            result.append((start, end, value))
    return result
