"""The calling side: one connection to one broker, made when needed, and anew when it was lost."""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from typing_extensions import override

from pydanube.errors import InvalidRequest
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.calls import Body, ExchangeChannel, StatusCode
from pydanube.wire.http2.addresses import read_address
from pydanube.wire.http2.client_calls import ClientCall, ExchangeCall, StreamCall, UnaryCall
from pydanube.wire.http2.client_connection import ClientConnection
from pydanube.wire.http2.grpc_framing import message_pieces
from pydanube.wire.http2.limits import MIB, Http2Limits
from pydanube.wire.http2.requests import request_block, write_timeout

CLIENT_LIMITS: Final = Http2Limits(
    message_bytes_max=64 * MIB, idle_seconds_max=4.0, ping_seconds_max=4.0
)
"""A broker that is frozen or cut off is noticed within seconds, so that another one is asked."""
CALLS_WAITING_MAX: Final = 10_000
LEAVE_SECONDS_MAX: Final = 2.0
_BLOCKS_KEPT_MAX: Final = 256
_REQUESTS_PER_TURN: Final = 64
_CLOSED: Final = "the channel was closed"

_log = get_logger(__name__)


class Http2Channel(ExchangeChannel):
    """Calls the broker at `url`: http://host:port, https://host:port or host:port.

    Calls that find no connection wait for one; when it cannot be made they end as UNAVAILABLE, and
    the next call tries again. Calls beyond what the broker takes at once wait for their turn. `tls`
    as a function is asked anew for each connection: certificates may have been renewed.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: ssl.SSLContext | Callable[[], ssl.SSLContext] | None = None,
        limits: Http2Limits = CLIENT_LIMITS,
        clock: Clock | None = None,
    ) -> None:
        self._address = read_address(url)
        if tls is not None and not self._address.tls:
            raise InvalidRequest(f"{url}: TLS needs an address that begins with https://")
        self._tls = tls
        self._limits = limits
        self._clock = clock or SystemClock()
        self._scope = TaskScope(_report)
        self._connection: ClientConnection | None = None
        self._connecting: ClientConnection | None = None
        self._waiting: deque[ClientCall] = deque()
        self._running: dict[ClientCall, None] = {}
        self._blocks: dict[str, bytes] = {}
        self._closed = False

    @override
    async def unary(
        self,
        path: str,
        request: bytes,
        *,
        metadata: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> bytes:
        block = self._block(path, metadata, timeout_seconds)
        call = UnaryCall(block, message_pieces([request]), self._start)
        timer = None
        if timeout_seconds is not None:
            timer = self._clock.call_later(
                timeout_seconds,
                lambda: call.end(StatusCode.DEADLINE_EXCEEDED, "the deadline has passed"),
            )
        self._running[call] = None
        try:
            self._start(call)
            return await call.reply
        finally:
            del self._running[call]
            if not call.ended:
                call.cancel()
            if timer is not None:
                timer.cancel()
            self._start_waiting()

    @override
    async def stream(
        self, path: str, request: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> AsyncIterator[bytes]:
        block = self._block(path, metadata, None)
        call = StreamCall(block, message_pieces([request]), self._start)
        self._running[call] = None
        try:
            self._start(call)
            while (reply := await call.next_reply()) is not None:
                yield reply
        finally:
            del self._running[call]
            call.cancel()
            self._start_waiting()

    @override
    async def exchange(
        self,
        path: str,
        requests: AsyncIterator[Body],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[bytes]:
        call = ExchangeCall(self._block(path, metadata, None), self._start)
        self._running[call] = None
        sending = TaskScope(
            lambda _, error: call.end(StatusCode.CANCELLED, f"the requests ended early: {error!r}")
        )
        try:
            self._start(call)
            sending.start(_send_all(call, requests, self._clock), f"requests of {path}")
            while (reply := await call.next_reply()) is not None:
                yield reply
        finally:
            del self._running[call]
            call.cancel()
            await sending.close()
            self._start_waiting()

    @override
    async def close(self) -> None:
        self._closed = True
        for call in list(self._running):
            call.end(StatusCode.CANCELLED, _CLOSED)
        self._waiting.clear()
        connections = self._connecting, self._connection
        await self._scope.close()
        for connection in connections:
            if connection is not None:
                connection.close()
                # An event loop that ends or blocks before its sockets are closed keeps the broker
                # waiting for them.
                await connection.until_lost(LEAVE_SECONDS_MAX)

    def _block(
        self, path: str, metadata: Mapping[str, str] | None, timeout_seconds: float | None
    ) -> bytes:
        """Return the header block of a call; the plain one of a path is kept."""
        plain = not metadata and timeout_seconds is None
        if plain and path in self._blocks:
            return self._blocks[path]
        block = request_block(
            scheme=b"https" if self._address.tls else b"http",
            authority=self._address.authority.encode(),
            path=path,
            metadata=metadata or {},
            timeout=None if timeout_seconds is None else write_timeout(timeout_seconds),
        )
        if plain and len(self._blocks) < _BLOCKS_KEPT_MAX:
            self._blocks[path] = block
        return block

    def _start(self, call: ClientCall) -> None:
        """Put a call on the connection, or in line for one."""
        connection = self._connection
        if self._closed:
            call.end(StatusCode.CANCELLED, _CLOSED)
        elif connection is not None and connection.is_usable and connection.codec.has_room:
            call.start(connection.codec)
        elif len(self._waiting) >= CALLS_WAITING_MAX:
            call.end(StatusCode.UNAVAILABLE, f"{CALLS_WAITING_MAX} calls wait already")
        else:
            self._waiting.append(call)
            self._connect_if_needed()

    def _connect_if_needed(self) -> None:
        usable = self._connection is not None and self._connection.is_usable
        if not usable and self._connecting is None:
            connection = ClientConnection(self._limits, self._clock, self._start_waiting)
            self._connecting = connection
            self._scope.start(self._connect(connection), f"connect to {self._address.authority}")

    async def _connect(self, connection: ClientConnection) -> None:
        task = asyncio.current_task()
        assert task is not None, "connecting is a task"
        seconds = self._limits.handshake_seconds_max
        timer = self._clock.call_later(seconds, lambda: _cancel(task))
        try:
            await self._open_transport(connection)
            await connection.ready
        except OSError as error:
            self._refuse_waiting(f"cannot reach {self._address.authority}: {error}")
        except asyncio.CancelledError:
            if self._closed:
                raise
            self._refuse_waiting(
                f"cannot reach {self._address.authority}: no answer within {seconds:g} s"
            )
        else:
            self._connection = connection
        finally:
            timer.cancel()
            self._connecting = None
            if self._connection is not connection:
                connection.close()
        self._start_waiting()

    async def _open_transport(self, connection: ClientConnection) -> None:
        address = self._address
        loop = asyncio.get_running_loop()
        if address.tls and self._tls is None:
            self._tls = ssl.create_default_context()
        tls = self._tls() if callable(self._tls) else self._tls
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        await loop.create_connection(lambda: connection, address.host, address.port, ssl=tls)

    def _start_waiting(self) -> None:
        """Put as many waiting calls on the connection as it has room for."""
        connection = self._connection
        while self._waiting and connection is not None and connection.is_usable:
            if self._waiting[0].ended:
                self._waiting.popleft()
            elif connection.codec.has_room:
                self._waiting.popleft().start(connection.codec)
            else:
                return
        if self._waiting and not self._closed:
            self._connect_if_needed()

    def _refuse_waiting(self, text: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            call.end(StatusCode.UNAVAILABLE, text)


async def _send_all(call: ExchangeCall, requests: AsyncIterator[Body], clock: Clock) -> None:
    sent = 0
    async for request in requests:
        if not await call.send(message_pieces([request])):
            return
        sent += 1
        if sent % _REQUESTS_PER_TURN == 0:
            await clock.sleep(0)  # Requests that are there at once must not keep others waiting.
    await call.end_requests()


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _report(name: str, failure: BaseException) -> None:
    _log.error("connecting failed unexpectedly", name=name, error=failure)
