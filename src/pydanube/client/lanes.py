"""Which message a handler gets next: those of a key in order, others meanwhile. Pure.

A lane holds what has one key. One turn of it runs at a time, and what failed and will be delivered
again holds back what lies behind it, until it has come or the time for that is over.
"""

from bisect import insort
from collections.abc import Hashable, Sequence
from heapq import heappop, heappush
from typing import Generic, TypeVar

from msgspec import Struct

Item = TypeVar("Item")


class Entry(Struct, Generic[Item], eq=False):
    """A message, its place in its topic, and the number under which it came."""

    offset: int
    number: int
    item: Item
    lane: "Lane[Item]"


class Lane(Struct, Generic[Item], eq=False):
    """What has one key, in the order of offsets."""

    key: Hashable
    waiting: list[Entry[Item]] = []
    running: dict[int, None] = {}
    awaited: dict[int, int] = {}
    """Offsets that failed and come again, and when nobody waits for them any more."""

    def ready(self) -> int:
        """Return how many may be handled next."""
        if self.running:
            return 0
        if not self.awaited:
            return len(self.waiting)
        first = min(self.awaited)
        return sum(entry.offset < first for entry in self.waiting)


class Lanes(Generic[Item]):
    """Messages that are in hand, from their arrival until they are settled."""

    def __init__(self) -> None:
        self._lanes: dict[Hashable, Lane[Item]] = {}
        self._ready: list[tuple[int, int, Lane[Item]]] = []
        """A heap by what came first; what is not so any more is passed over."""
        self._count = 0
        self.in_hand = 0
        """How many wait or are being handled."""
        self.awaited = 0
        """How many failed and are waited for."""

    def arrived(self, key: Hashable, offset: int, item: Item) -> None:
        """Take a message in; one that is here already is not handled twice."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key)
        if offset in lane.running:
            return
        if lane.awaited.pop(offset, None) is not None:
            self.awaited -= 1
        for entry in reversed(lane.waiting):
            if entry.offset == offset:
                entry.item = item  # Its delivery is the one that counts now.
                return
            if entry.offset < offset:
                break
        self._count += 1
        self.in_hand += 1
        insort(lane.waiting, Entry(offset, self._count, item, lane), key=_offset)
        self._offer(lane)

    def has_ready(self) -> bool:
        """Tell whether `take` finds something."""
        while self._ready:
            number, _, lane = self._ready[0]
            if lane.ready() and lane.waiting[0].number == number:
                return True
            heappop(self._ready)
        return False

    def take(self, most: int = 1) -> list[Entry[Item]]:
        """Remove what is to be handled next, together; nothing if nothing may be."""
        taken: list[Entry[Item]] = []
        while len(taken) < most and self.has_ready():
            _, _, lane = heappop(self._ready)
            count = min(lane.ready(), most - len(taken))
            entries, lane.waiting = lane.waiting[:count], lane.waiting[count:]
            for entry in entries:
                lane.running[entry.offset] = None
            taken += entries
        return taken

    def settled(
        self, entries: Sequence[Entry[Item]], again_until_ms: Sequence[int | None] | None = None
    ) -> None:
        """Take note that these were handled, or failed and come again by a time; None: not."""
        for index, entry in enumerate(entries):
            lane = entry.lane
            del lane.running[entry.offset]
            self.in_hand -= 1
            until_ms = None if again_until_ms is None else again_until_ms[index]
            if until_ms is not None:
                lane.awaited[entry.offset] = until_ms
                self.awaited += 1
        for entry in entries:
            self._offer(entry.lane)

    def expire(self, now_ms: int) -> None:
        """Wait no more for what should have come by now."""
        for lane in [lane for lane in self._lanes.values() if lane.awaited]:
            for offset in [at for at, until in lane.awaited.items() if until <= now_ms]:
                del lane.awaited[offset]
                self.awaited -= 1
            self._offer(lane)

    def _offer(self, lane: Lane[Item]) -> None:
        if lane.ready():
            first = lane.waiting[0]
            heappush(self._ready, (first.number, id(lane), lane))
        elif not (lane.waiting or lane.running or lane.awaited):
            self._lanes.pop(lane.key, None)


def _offset(entry: Entry[Item]) -> int:
    return entry.offset
