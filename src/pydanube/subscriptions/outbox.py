"""What a consumer's stream will send next.

A reliable delivery is a range of offsets: its messages are read when the stream sends them, so
that a slow consumer costs no memory. A best-effort delivery carries its messages, since they are
stored nowhere else.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from pydanube.model.ids import Offset
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


class Outbox:
    """Holds deliveries until the consumer's stream takes them. One stream at a time waits on it.

    The number of messages is bounded by the credit its owner gives to the dispatcher, the bytes
    pinned by best-effort deliveries are bounded here.
    """

    def __init__(self) -> None:
        self._deliveries: deque[Delivery] = deque()
        self._pinned_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self.message_count = 0

    def put(self, delivery: Delivery) -> bool:
        """Add a delivery and wake the stream; False if its pinned bytes find no room."""
        pinned = _pinned_bytes(delivery)
        if pinned and self._pinned_bytes + pinned > _PINNED_BYTES_MAX:
            return False
        self._pinned_bytes += pinned
        self._deliveries.append(delivery)
        self.message_count += delivery.count
        self.wake()
        return True

    def clear(self) -> None:
        """Forget what has not been taken."""
        self._deliveries.clear()
        self._pinned_bytes = 0
        self.message_count = 0

    def take_nowait(self, count_max: int, bytes_max: int) -> list[Delivery]:
        """Take deliveries of about so many messages together; at least one if there is any.

        What is taken is gone: of best-effort messages no more than can be sent at once.
        """
        taken: list[Delivery] = []
        count = pinned = 0
        while self._deliveries and count < count_max and pinned < bytes_max:
            delivery = self._deliveries.popleft()
            count += delivery.count
            pinned += _pinned_bytes(delivery)
            taken.append(delivery)
        self._pinned_bytes -= pinned
        self.message_count -= count
        return taken

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
