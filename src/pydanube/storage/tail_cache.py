"""Recent batches of all topics, kept in memory so that readers near the tail need no disk."""

from bisect import bisect_right
from collections import deque

from pydanube.model.batch import Batch
from pydanube.model.ids import Offset
from pydanube.storage.pieces import Piece, cut_piece

# What the objects around a batch weigh; without it, tiny batches would cost far more than counted.
_ENTRY_BYTES = 512
_EMPTY_MAX = 256


class _Kept:
    """One batch, as long as it is kept."""

    __slots__ = ("batch", "size", "tail")

    def __init__(self, batch: Batch, tail: "TopicTail") -> None:
        self.batch: Batch | None = batch
        self.size = batch.size_bytes + _ENTRY_BYTES
        self.tail = tail


class TopicTail:
    """One topic's batches in the cache, oldest first and without gaps."""

    __slots__ = ("_bases", "_cache", "_end", "_first", "_kept")

    def __init__(self, cache: "TailCache") -> None:
        self._cache = cache
        self._bases: list[int] = []
        self._kept: list[_Kept] = []
        # Places before this number are empty: cutting a list at every eviction would be slow.
        self._first = 0
        self._end = 0

    def add(self, base: Offset, batch: Batch) -> None:
        """Keep the batch that now is the last one; older ones are forgotten if need be."""
        if base != self._end:
            self.clear()
        kept = _Kept(batch, self)
        self._bases.append(base)
        self._kept.append(kept)
        self._end = base + batch.count
        self._cache.take(kept)

    def read(self, start: Offset, end: Offset) -> list[Piece] | None:
        """Return the pieces of [start, end) from `start` on; None if `start` is not kept."""
        number = bisect_right(self._bases, start, lo=self._first) - 1
        if number < self._first or start >= self._end:
            return None
        pieces = []
        while number < len(self._bases) and self._bases[number] < end:
            batch = self._kept[number].batch
            assert batch is not None, "only places before the first are empty"
            pieces.append(cut_piece(self._bases[number], batch, start, end))
            number += 1
        return pieces

    def clear(self) -> None:
        """Forget all of this topic's batches."""
        self._cache.release(self._kept[self._first :])
        self._bases, self._kept, self._first = [], [], 0

    def forget_oldest(self) -> None:
        """Empty the first place; called by the cache alone."""
        self._first += 1
        if self._first > _EMPTY_MAX and self._first * 2 > len(self._bases):
            del self._bases[: self._first], self._kept[: self._first]
            self._first = 0


class TailCache:
    """Bounds what all topics keep together; what came first goes first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._order: deque[_Kept] = deque()
        self._released = 0
        self.bytes = 0

    def tail(self) -> TopicTail:
        """Return a place for one topic."""
        return TopicTail(self)

    def take(self, kept: _Kept) -> None:
        """Count what a tail keeps from now on, and make room for it."""
        self._order.append(kept)
        self.bytes += kept.size
        while self.bytes > self._bytes_max:
            oldest = self._order.popleft()
            if oldest.batch is None:
                self._released -= 1
                continue
            self.bytes -= oldest.size
            oldest.batch = None
            oldest.tail.forget_oldest()

    def release(self, forgotten: list[_Kept]) -> None:
        """Count what a tail no longer keeps."""
        for kept in forgotten:
            kept.batch = None
            self.bytes -= kept.size
        self._released += len(forgotten)
        if self._released > _EMPTY_MAX and self._released * 2 > len(self._order):
            self._order = deque(kept for kept in self._order if kept.batch is not None)
            self._released = 0
