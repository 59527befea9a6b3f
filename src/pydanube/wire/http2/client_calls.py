"""Calls on their way: what stands between a caller and a stream."""

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from typing_extensions import override

from pydanube.wire.calls import CallNotSent, CallRefused, StatusCode
from pydanube.wire.http2.client_codec import CallEvents, ClientCodec, ClientStream
from pydanube.wire.http2.outgoing import Buffer

ATTEMPTS_MAX: Final = 3


class ClientCall(CallEvents):
    """A call, before, while and after it has a stream.

    A call the server did not look at is handed to `repeat`, unless that happened too often.
    """

    def __init__(
        self, block: bytes, payload: Sequence[Buffer], repeat: Callable[["ClientCall"], None]
    ) -> None:
        self._block = block
        self._payload = payload
        self._repeat = repeat
        self._attempts = 0
        self._codec: ClientCodec | None = None
        self._stream: ClientStream | None = None
        self.ended = False

    def start(self, codec: ClientCodec) -> None:
        """Put the call on a connection."""
        self._attempts += 1
        self._codec = codec
        self._stream = codec.open(self._block, self._payload, self)

    @override
    def requests_sent(self) -> None:
        """A call with one request has nothing more to say."""

    @override
    def call_ended(self, code: StatusCode, text: str, *, repeatable: bool) -> None:
        self._codec = None
        if repeatable and self._attempts < ATTEMPTS_MAX and not self.ended:
            self._repeat(self)
        else:
            self.end(code, text)

    def end(self, code: StatusCode, text: str) -> None:
        """Tell the caller how the call ended, and the server that nobody waits; once."""
        if not self.ended:
            self._leave_stream()
            self._tell(code, text)

    def cancel(self) -> None:
        """Give the call up: the server is told, the caller knows."""
        self._leave_stream()

    def _leave_stream(self) -> None:
        self.ended = True
        codec, self._codec = self._codec, None
        if codec is not None and self._stream is not None:
            codec.cancel(self._stream)

    @abstractmethod
    def _tell(self, code: StatusCode, text: str) -> None:
        """Tell the caller how the call ended."""


class UnaryCall(ClientCall):
    """A call with one reply, for which its caller awaits `reply`."""

    def __init__(
        self, block: bytes, payload: Sequence[Buffer], repeat: Callable[[ClientCall], None]
    ) -> None:
        super().__init__(block, payload, repeat)
        self.reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._message: bytes | None = None

    @override
    def reply_arrived(self, message: bytes) -> None:
        if self._message is not None:
            self.end(StatusCode.INTERNAL, "the reply holds several messages")
        self._message = message

    @override
    def _tell(self, code: StatusCode, text: str) -> None:
        if self.reply.done():
            return  # The caller was cancelled in this very turn.
        if code is not StatusCode.OK:
            refused = CallRefused if self._attempts else CallNotSent
            self.reply.set_exception(refused(code, text))
        elif self._message is None:
            self.reply.set_exception(CallRefused(StatusCode.INTERNAL, "the reply is empty"))
        else:
            self.reply.set_result(self._message)


class StreamCall(ClientCall):
    """A call with many replies, taken one by one. Only as many wait here as the window lets in."""

    def __init__(
        self, block: bytes, payload: Sequence[Buffer], repeat: Callable[[ClientCall], None]
    ) -> None:
        super().__init__(block, payload, repeat)
        self._messages: deque[bytes] = deque()
        self._ending: CallRefused | None = None
        self._arrival: asyncio.Future[None] | None = None

    async def next_reply(self) -> bytes | None:
        """Wait for the next reply; None after the last. Raises CallRefused as `unary` does."""
        while not self._messages:
            if self.ended:
                if self._ending is not None:
                    raise self._ending
                return None
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        message = self._messages.popleft()
        if self._codec is not None and self._stream is not None:
            self._codec.consumed(self._stream, message)
        return message

    @override
    def reply_arrived(self, message: bytes) -> None:
        self._messages.append(message)
        self._wake()

    @override
    def _tell(self, code: StatusCode, text: str) -> None:
        if code is not StatusCode.OK:
            self._ending = CallRefused(code, text)
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


class ExchangeCall(StreamCall):
    """A call with many requests and many replies. It is never repeated: its requests are gone."""

    def __init__(self, block: bytes, repeat: Callable[[ClientCall], None]) -> None:
        super().__init__(block, (), repeat)
        self._attempts = ATTEMPTS_MAX
        self._may_send = asyncio.Event()

    @override
    def start(self, codec: ClientCodec) -> None:
        self._codec = codec
        self._stream = codec.open_exchange(self._block, self)
        self._may_send.set()

    async def send(self, payload: Sequence[Buffer]) -> bool:
        """Send one request behind its prefix, once those before are sent; False at the end."""
        await self._may_send.wait()
        if self._codec is None or self._stream is None:
            return False
        if not self._codec.send_request(self._stream, payload):
            self._may_send.clear()
        return True

    async def end_requests(self) -> None:
        """Say that no more requests follow."""
        await self._may_send.wait()
        if self._codec is not None and self._stream is not None:
            self._codec.end_requests(self._stream)

    @override
    def requests_sent(self) -> None:
        self._may_send.set()

    @override
    def _leave_stream(self) -> None:
        super()._leave_stream()
        self._may_send.set()
