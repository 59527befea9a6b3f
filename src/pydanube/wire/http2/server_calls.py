"""Handlers at work for one connection: plain calls, tasks, deadlines and back-pressure."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from typing_extensions import override

from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock, Timer
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.calls import (
    Body,
    CallRefused,
    DirectHandler,
    HandlerTable,
    HearsOfResets,
    StatusCode,
    UnaryHandler,
    body_bytes,
)
from pydanube.wire.http2.deadlines import Deadlines
from pydanube.wire.http2.limits import KIB, Http2Limits
from pydanube.wire.http2.parked_calls import ParkedCalls
from pydanube.wire.http2.server_codec import ServerCodec
from pydanube.wire.http2.server_exchanges import ServerApplication
from pydanube.wire.http2.server_heads import Peer
from pydanube.wire.http2.server_replies import ServerStream
from pydanube.wire.http2.turns import Turns

UNEXPECTED: Final = "the broker failed to carry out the call; its log says why"

_BYTES_PER_TURN: Final = 256 * KIB
"""A stream handler that never waits is made to, after so much, so that others get their turn."""

_CANCELLED_PER_ROUND: Final = 4
"""To cancel a handler takes as long as a call, and a caller may leave hundreds behind at once."""

_log = get_logger(__name__)


class Inbox(AsyncIterator[Body]):
    """The requests of an exchange, for the one task that iterates over them."""

    def __init__(self, codec: ServerCodec, stream: ServerStream) -> None:
        self._codec = codec
        self._stream = stream
        self._requests: deque[Body] = deque()
        self._ended = False
        self._arrival: asyncio.Future[None] | None = None

    @override
    async def __anext__(self) -> Body:
        while not self._requests:
            if self._ended:
                raise StopAsyncIteration
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        request = self._requests.popleft()
        self._codec.consumed(self._stream, request)
        return request

    def put(self, request: Body) -> None:
        """Take a request that has arrived."""
        self._requests.append(request)
        self._wake()

    def end(self) -> None:
        """Let the iteration end after what is here."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


class ServerCalls(ServerApplication):
    """Runs the handlers that the requests of one connection ask for.

    A direct handler is called on the spot. The others become tasks of `scope`, cancelled when the
    caller goes away or its deadline passes. A stream handler is asked for more only when what it
    gave has been sent.
    """

    def __init__(
        self,
        limits: Http2Limits,
        table: HandlerTable,
        peer: Peer,
        scope: TaskScope,
        clock: Clock,
        turns: Turns,
        flush_soon: Callable[[], None],
    ) -> None:
        self.codec = ServerCodec(limits, table, peer, self, clock.monotonic_ms())
        self._parked = ParkedCalls(self.codec, scope, turns)
        self._clock = clock
        self._flush_soon = flush_soon
        self._crowded_bytes = limits.outgoing_bytes_max // 2
        self._crowd: deque[asyncio.Future[None]] = deque()
        """Stream handlers that wait until the connection as a whole has less to send."""
        self._abandoned: deque[asyncio.Task[None]] = deque()
        """Handlers whose callers have gone."""
        self._deadlines = Deadlines(self.codec.streams.__contains__)
        self._timer: Timer | None = None
        self._timer_due_ms = 0.0

    @override
    def output_ready(self) -> None:
        self._flush_soon()

    @override
    def request_arrived(self, stream: ServerStream, message: bytes) -> None:
        head = stream.head
        if head.direct is not None:
            self._call_directly(head.direct, stream, message)
        elif head.unary is not None:
            work = partial(self._run_unary, head.unary, stream, message)
            self._parked.start(stream, len(message), work)
        else:
            assert head.stream is not None, "a request without a handler was refused before"
            answer = partial(head.stream, message, head.call)
            self._parked.start(stream, len(message), partial(self._run_stream, answer, stream))
        self._set_deadline(stream)

    @override
    def exchange_began(self, stream: ServerStream) -> None:
        head = stream.head
        assert head.exchange is not None, "an exchange has a handler"
        stream.inbox = inbox = Inbox(self.codec, stream)
        answer = partial(head.exchange, inbox, head.call)
        self._parked.start(stream, 0, partial(self._run_stream, answer, stream))
        self._set_deadline(stream)

    @override
    def exchange_request(self, stream: ServerStream, message: Body) -> None:
        if stream.inbox is not None:
            stream.inbox.put(message)

    @override
    def exchange_requests_ended(self, stream: ServerStream) -> None:
        if stream.inbox is not None:
            stream.inbox.end()

    def _set_deadline(self, stream: ServerStream) -> None:
        timeout_ms = stream.head.timeout_ms
        if timeout_ms is not None and not stream.local_closed:
            self._deadlines.add(stream.id, stream.started_ms + timeout_ms)
            self._set_timer()

    def _call_directly(self, handler: DirectHandler, stream: ServerStream, message: bytes) -> None:
        try:
            handler(message, stream.head.call, stream)
        except Exception as error:  # noqa: BLE001 - The outermost frame of a call.
            self._refuse_unexpected(stream, error)

    async def _run_unary(self, handler: UnaryHandler, stream: ServerStream, message: bytes) -> None:
        async def answer() -> None:
            stream.send(await handler(message, stream.head.call))

        await self._guard(stream, answer)

    async def _run_stream(
        self, begin: Callable[[], Awaitable[AsyncIterator[Sequence[Body]]]], stream: ServerStream
    ) -> None:
        async def answer() -> None:
            groups = stream.replies = await begin()
            try:
                await self._send_all(stream, groups)
            finally:
                # An iterator need not be a generator; only one that can be closed is.
                close: Callable[[], Awaitable[None]] | None = getattr(groups, "aclose", None)
                if close is not None:
                    await close()

        await self._guard(stream, answer)

    async def _guard(self, stream: ServerStream, answer: Callable[[], Awaitable[None]]) -> None:
        """Carry a call out in this task, and see to it that it is answered in any case."""
        if stream.local_closed:
            return
        # What refers to its own task is left to the collector of garbage, which keeps all waiting.
        stream.work = asyncio.current_task()
        try:
            await answer()
        except CallRefused as refusal:
            stream.refuse(refusal.code, refusal.text)
        except asyncio.CancelledError:
            # The caller or the server gave up, or what the handler itself waited for was cancelled.
            stream.refuse(StatusCode.UNAVAILABLE, "the broker gave the call up")
            if stream.work.cancelling():
                raise
        except Exception as error:  # noqa: BLE001 - The outermost frame of a call.
            self._refuse_unexpected(stream, error)
        finally:
            stream.work = stream.drained = stream.inbox = stream.replies = None

    def _refuse_unexpected(self, stream: ServerStream, error: Exception) -> None:
        _log.error("unexpected error", path=stream.head.call.path, error=error)
        stream.refuse(StatusCode.INTERNAL, UNEXPECTED)

    async def _send_all(self, stream: ServerStream, groups: AsyncIterator[Sequence[Body]]) -> None:
        codec = self.codec
        if stream.local_closed:
            return
        codec.start_reply(stream)
        sent_bytes = 0
        async for group in groups:
            if stream.local_closed:
                return  # The caller has gone, and the handler made nothing of being cancelled.
            codec.send_messages(stream, group)
            sent_bytes += sum(map(body_bytes, group))
            if stream.queue is not None:
                await self._until_drained(stream)
                sent_bytes = 0
            elif sent_bytes >= _BYTES_PER_TURN:
                # By then what was sent is with the transport, which may call for a pause.
                await self._clock.sleep(0)
                sent_bytes = 0
        if not stream.local_closed:
            codec.end_reply(stream)

    async def _until_drained(self, stream: ServerStream) -> None:
        loop = asyncio.get_running_loop()
        stream.drained = loop.create_future()
        await stream.drained
        while self.codec.queued_bytes > self._crowded_bytes:
            turn = loop.create_future()
            self._crowd.append(turn)
            await turn

    @override
    def stream_drained(self, stream: ServerStream) -> None:
        if stream.drained is not None and not stream.drained.done():
            stream.drained.set_result(None)
        if self.codec.queued_bytes <= self._crowded_bytes:
            for turn in self._crowd:
                if not turn.done():
                    turn.set_result(None)
            self._crowd.clear()

    @override
    def replies_read(self) -> None:
        self._parked.hurry()

    @override
    def caller_gone(self, stream: ServerStream, *, reset: bool = False) -> None:
        if reset and isinstance(stream.replies, HearsOfResets):
            stream.replies.caller_reset()
        if stream.work is not None:
            self._abandoned.append(stream.work)
            if len(self._abandoned) == 1:
                asyncio.get_running_loop().call_soon(self._cancel_some)

    def _cancel_some(self) -> None:
        """Cancel abandoned handlers, but not all of a large connection's in one round."""
        for _ in range(min(len(self._abandoned), _CANCELLED_PER_ROUND)):
            self._abandoned.popleft().cancel()
        if self._abandoned:
            asyncio.get_running_loop().call_soon(self._cancel_some)

    def _set_timer(self) -> None:
        due_ms = self._deadlines.next_ms()
        if due_ms is None or (self._timer is not None and self._timer_due_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_ms = due_ms
        wait_seconds = max(0.0, due_ms - self._clock.monotonic_ms()) / 1000
        self._timer = self._clock.call_later(wait_seconds, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        for stream_id in self._deadlines.take_due(self._clock.monotonic_ms()):
            stream = self.codec.streams[stream_id]
            stream.refuse(StatusCode.DEADLINE_EXCEEDED, "the deadline has passed")
            self.caller_gone(stream)
        self._set_timer()

    def close(self) -> None:
        """Cancel every call: the connection is gone."""
        self.codec.connection_lost()
        self._parked.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
