"""Quantiles of what happened lately, beside its sum and count since the start.

Whoever observes pays for one search in a short list, however many messages count with the value,
and a distribution holds some hundred numbers at most.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate, repeat
from operator import mul

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
"""Those that Danube's dashboards ask for."""
HALF_WINDOW_MS = 30_000
_STEP = 1.05
"""A quantile is off by half of that at most."""
_BOUNDS = tuple(accumulate(repeat(_STEP, 620), mul, initial=1e-3))
"""From a thousandth to some 10^10: microseconds in milliseconds, and bytes."""


class _Half:
    """What came within half of the window."""

    __slots__ = ("counts", "largest", "smallest")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.smallest = float("inf")
        self.largest = 0.0

    def add(self, bucket: int, count: int, smallest: float, largest: float) -> None:
        self.counts[bucket] = self.counts.get(bucket, 0) + count
        if smallest < self.smallest:
            self.smallest = smallest
        if largest > self.largest:
            self.largest = largest


class Distribution:
    """Sizes of what was observed. One writer; a reader may be one observation behind."""

    __slots__ = ("_before", "_now", "count", "total")

    def __init__(self) -> None:
        self.total: float = 0
        self.count = 0
        self._now, self._before = _Half(), _Half()

    def observe(self, total: float, count: int = 1) -> None:
        """Count so many observations, which add up to `total`, each with their average."""
        value = total / count
        self.total += total
        self.count += count
        self._now.add(bisect_left(_BOUNDS, value), count, value, value)

    def turn(self) -> None:
        """Begin the next half of the window; what came before the last one is forgotten."""
        self._before, self._now = self._now, _Half()

    def merge(self, other: "Distribution") -> None:
        """Add what another one has counted."""
        self.total += other.total
        self.count += other.count
        for half in (other._now, other._before):
            for bucket, count in dict(half.counts).items():
                self._now.add(bucket, count, half.smallest, half.largest)

    def quantiles(self) -> Iterator[tuple[float, float]]:
        """Yield quantiles with their values; none if nothing came within the window."""
        halves = (self._now, self._before)
        counts: dict[int, int] = {}
        for half in halves:
            for bucket, count in dict(half.counts).items():
                counts[bucket] = counts.get(bucket, 0) + count
        if not counts:
            return
        smallest = min(half.smallest for half in halves)
        largest = max(half.largest for half in halves)
        buckets = sorted(counts)
        ranks = list(accumulate(counts[bucket] for bucket in buckets))
        for quantile in QUANTILES:
            bucket = buckets[bisect_left(ranks, quantile * ranks[-1])]
            yield quantile, min(max(_middle(bucket), smallest), largest)


def _middle(bucket: int) -> float:
    """Return what stands for all values of a bucket."""
    return _BOUNDS[min(bucket, len(_BOUNDS) - 1)] / math.sqrt(_STEP)
