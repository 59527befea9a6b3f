"""Messages that may be too long for the client of a consumer.

Nothing on the wire says that a client cannot take a message: it resets the call that brought it,
and opens the next one, which would bring the same message again, without end. So a stream that its
client resets soon after it was sent such a message, and before it settled it, has refused it.
"""

from collections import deque

from pydanube.model.ids import Offset

RECEIVED_BYTES_MAX = 4 * 1024 * 1024
"""What gRPC clients receive at most unless they are told otherwise; all stock clients keep to it.
It counts the whole message on the wire."""
REFUSED_WITHIN_MS = 5_000
"""A client that resets its stream later than this after a long message has other reasons."""


class LongMessages:
    """The long messages of one stream, as far as it may still refuse them."""

    __slots__ = ("_sent", "_under_way")

    def __init__(self) -> None:
        self._under_way: list[Offset] = []
        self._sent: deque[tuple[Offset, int]] = deque()

    def begin(self, offsets: list[Offset]) -> None:
        """Take note that messages are about to be sent; a slow client is given its time."""
        self._under_way = offsets

    def sent(self, now_ms: int) -> None:
        """Take note that the client has been sent all of them."""
        self._forget_old(now_ms)
        self._sent.extend((offset, now_ms) for offset in self._under_way)
        self._under_way = []

    def recent(self, now_ms: int) -> list[Offset]:
        """Return those that a client may refuse by resetting the stream now, as they were sent."""
        self._forget_old(now_ms)
        return [*(offset for offset, _ in self._sent), *self._under_way]

    def _forget_old(self, now_ms: int) -> None:
        while self._sent and now_ms - self._sent[0][1] > REFUSED_WITHIN_MS:
            self._sent.popleft()
