"""Long messages are received where they belong, not into a buffer that is copied from."""

import asyncio
from abc import abstractmethod
from typing import Final, cast

from typing_extensions import override

from pydanube.wire.http2.limits import KIB

BETWEEN_FRAMES_BYTES: Final = 4 * KIB
"""What is read of what follows a frame: the next one's header, and no more than is soon copied."""


class Receiver(asyncio.Protocol):
    """A connection that can tell where what comes next belongs."""

    @property
    @abstractmethod
    def is_within_long_message(self) -> bool:
        """Tell whether what comes next is likely to have a room."""

    @abstractmethod
    def room(self) -> memoryview | None:
        """Return where what comes next belongs, if that is certain."""


class LongMessages(asyncio.BufferedProtocol):
    """Stands in for a connection while a long message arrives.

    The event loop then asks for every read where to put it, which short messages need not pay for.
    """

    def __init__(self, receiver: Receiver, transport: asyncio.Transport) -> None:
        self._receiver = receiver
        self._transport = transport
        self._room: memoryview | None = None
        self._between = memoryview(b"")

    def begin(self) -> None:
        """Stand in, until the message is over."""
        if self._transport.get_protocol() is not self:
            self._between = memoryview(bytearray(BETWEEN_FRAMES_BYTES))
            self._transport.set_protocol(self)

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        self._room = self._receiver.room()
        return self._room if self._room is not None else self._between

    @override
    def buffer_updated(self, nbytes: int) -> None:
        room, self._room = self._room, None
        if room is not None:
            # Nobody looks at these bytes but the reader whose memory they lie in.
            self._receiver.data_received(cast(bytes, room[:nbytes]))
        else:
            self._receiver.data_received(bytes(self._between[:nbytes]))
        if not self._receiver.is_within_long_message:
            self._transport.set_protocol(self._receiver)

    @override
    def pause_writing(self) -> None:
        self._receiver.pause_writing()

    @override
    def resume_writing(self) -> None:
        self._receiver.resume_writing()

    @override
    def eof_received(self) -> bool | None:
        return self._receiver.eof_received()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._receiver.connection_lost(exc)
