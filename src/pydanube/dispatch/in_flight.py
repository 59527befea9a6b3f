"""What is out with consumers: where, since when, and for the how-manieth time."""

from collections import deque

from msgspec import Struct

from pydanube.dispatch.range_map import Known, RangeMap
from pydanube.dispatch.redelivery import NEVER
from pydanube.model.ids import ConsumerId

_STALE_MAX = 64


class Delivery(Struct, gc=False):
    """One range handed to one consumer; parts of it may be settled or taken back meanwhile."""

    start: int
    end: int
    consumer: ConsumerId
    attempt: int
    delivered_at_ms: int
    left: int
    """How many of its messages are still out."""


class InFlight:
    """The messages that await an ack, by offset and by age.

    A deadline is counted from the delivery, so a changed timeout applies to what is out already.
    """

    __slots__ = ("_alive_count", "_by_age", "_ranges", "count")

    def __init__(self) -> None:
        self._ranges: RangeMap[Delivery] = RangeMap()
        # In the order of delivery, hence of deadlines. Ended ones leave once they are first.
        self._by_age: deque[Delivery] = deque()
        self._alive_count = 0
        self.count = 0
        """How many messages are out."""

    def add(self, start: int, end: int, consumer: ConsumerId, attempt: int, now_ms: int) -> None:
        """Take note of a delivery of messages that are not out."""
        count = end - start
        delivery = Delivery(start, end, consumer, attempt, now_ms, count)
        self._ranges.insert(start, end, delivery)
        self._by_age.append(delivery)
        self._alive_count += 1
        self.count += count

    def take(self, start: int, end: int) -> list[Known[int]]:
        """Remove what is out of [start, end); return it with the attempt it was out for."""
        whole = self._ranges.take_whole(start, end)
        if whole is not None:
            return [self._taken(start, end, whole)]
        return [self._taken(at, to, delivery) for at, to, delivery in self._ranges.take(start, end)]

    def holder(self, offset: int) -> ConsumerId | None:
        """Return whom a message is out with; None if it is not out."""
        delivery = self._ranges.over(offset)
        return None if delivery is None else delivery.consumer

    def discount(self, consumer: ConsumerId, start: int, end: int, now_ms: int) -> None:
        """Let the attempt not count for what is out of [start, end) with a consumer."""
        for at, to, delivery in self._ranges.take(start, end):
            if delivery.consumer == consumer:
                self._taken(at, to, delivery)
                self.add(at, to, consumer, delivery.attempt - 1, now_ms)
            else:
                self._ranges.insert(at, to, delivery)

    def take_from(self, consumer: ConsumerId) -> list[Known[int]]:
        """Remove all that is out with a consumer; return it in offset order."""
        return self._take_those([held for held in self._ranges if held[2].consumer == consumer])

    def take_delivered_before(self, time_ms: int) -> list[Known[int]]:
        """Remove what has been out since `time_ms` or longer; return it in offset order."""
        old: list[Known[Delivery]] = []
        for delivery in self._by_age:
            if delivery.delivered_at_ms > time_ms:
                break
            # Parts that came back have a younger delivery within the same range.
            for held in self._ranges.within(delivery.start, delivery.end):
                if held[2] is delivery:
                    old.append(held)
        old.sort(key=lambda held: held[0])
        return self._take_those(old)

    @property
    def oldest_ms(self) -> int:
        """When the message that has been out longest was delivered; NEVER if none is out."""
        return self._by_age[0].delivered_at_ms if self._by_age else NEVER

    def _take_those(self, held: list[Known[Delivery]]) -> list[Known[int]]:
        taken: list[Known[int]] = []
        for start, end, _ in held:
            taken += self.take(start, end)
        return taken

    def _taken(self, start: int, end: int, delivery: Delivery) -> Known[int]:
        count = end - start
        self.count -= count
        delivery.left -= count
        if not delivery.left:
            self._alive_count -= 1
            by_age = self._by_age
            while by_age and not by_age[0].left:
                by_age.popleft()
            # Behind one that stays out for long, ended ones would pile up without bound.
            if len(by_age) > 2 * self._alive_count + _STALE_MAX:
                self._by_age = deque(other for other in by_age if other.left)
        return start, end, delivery.attempt
