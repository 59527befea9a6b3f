"""What a consumer's stream will send next.

A reliable delivery is a range of offsets: its messages are read when the stream sends them, so
that a slow consumer costs no memory. A best-effort delivery carries its messages, since they are
stored nowhere else.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from pydanube.model.ids import Offset
from pydanube.model.ranges import Range, RangeSet
from pydanube.storage.topic_log import Piece

OUTBOX_MESSAGES_MAX = 1_000
"""The credit a consumer starts with: bursts of hundreds fit."""
_PINNED_BYTES_MAX = 32 * 1024 * 1024


class Delivery(Struct, frozen=True):
    """Messages for one consumer, in offset order."""

    start: Offset
    end: Offset
    attempt: int
    pieces: Sequence[Piece] | None = None
    """The messages themselves, on best-effort topics."""
    era: int = 0
    """How often the subscription had been moved when this was decided."""

    @property
    def count(self) -> int:
        """How many messages these are."""
        return self.end - self.start

    def continues(self, other: "Delivery") -> bool:
        """Tell whether these messages follow those of another delivery in every respect."""
        return (
            self.start == other.end
            and self.attempt == other.attempt
            and self.era == other.era
            and self.pieces is None
            and other.pieces is None
        )


class Outbox:
    """Holds deliveries until the consumer's stream takes them. One stream at a time waits on it.

    The number of messages is bounded by the credit its owner gives to the dispatcher, the bytes
    pinned by best-effort deliveries are bounded here.
    """

    def __init__(self) -> None:
        self._deliveries: deque[Delivery] = deque()
        self._pinned_bytes = 0
        self._under_way = RangeSet()
        """What the stream has taken, and not sent yet."""
        self._waiter: asyncio.Future[None] | None = None
        self.message_count = 0

    def put(self, delivery: Delivery) -> bool:
        """Add a delivery and wake the stream; False if its pinned bytes find no room."""
        pinned = _pinned_bytes(delivery)
        if pinned and self._pinned_bytes + pinned > _PINNED_BYTES_MAX:
            return False
        self._pinned_bytes += pinned
        self.message_count += delivery.count
        if self._deliveries and delivery.continues(self._deliveries[-1]):
            # Read and sent as one, a batch is cut in fewer pieces.
            delivery = replace(delivery, start=self._deliveries.pop().start)
        self._deliveries.append(delivery)
        self.wake()
        return True

    def clear(self) -> None:
        """Forget what has not been sent."""
        self._deliveries.clear()
        self._under_way = RangeSet()
        self._pinned_bytes = 0
        self.message_count = 0

    def take_nowait(self, count_max: int, bytes_max: int) -> list[Delivery]:
        """Take deliveries of so many messages together; at least one if there is any.

        What is taken is gone: of best-effort messages no more than can be sent at once. Of a
        reliable delivery, say what is `sent`.
        """
        taken: list[Delivery] = []
        count = pinned = 0
        while self._deliveries and count < count_max and pinned < bytes_max:
            delivery = self._deliveries.popleft()
            if delivery.pieces is None:
                delivery = self._take_some(delivery, count_max - count)
                self._under_way.add(delivery.start, delivery.end)
            count += delivery.count
            pinned += _pinned_bytes(delivery)
            taken.append(delivery)
        self._pinned_bytes -= pinned
        self.message_count -= count
        return taken

    def _take_some(self, delivery: Delivery, count_max: int) -> Delivery:
        if delivery.count <= count_max:
            return delivery
        cut = Offset(delivery.start + count_max)
        self._deliveries.appendleft(replace(delivery, start=cut))
        return replace(delivery, end=cut)

    def sent(self, start: Offset, end: Offset) -> None:
        """Take note that messages which were taken are sent, or found to be not for sending."""
        self._under_way.remove(start, end)

    def unsent(self) -> tuple[Range, ...]:
        """Return what it holds of reliable deliveries, and what was taken and has not been sent."""
        waiting = [(each.start, each.end) for each in self._deliveries if each.pieces is None]
        return (*self._under_way, *waiting)

    async def wait(self) -> None:
        """Return once there is something to take, or once woken for another reason."""
        if self._deliveries:
            return
        assert self._waiter is None or self._waiter.done(), "two streams wait on one outbox"
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            if self._waiter is waiter:  # Unless the next stream waits already.
                self._waiter = None

    def wake(self) -> None:
        """Let a waiting stream look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _pinned_bytes(delivery: Delivery) -> int:
    return sum(piece.size_bytes for piece in delivery.pieces or ())
