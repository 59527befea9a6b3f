"""The machine's network behind `runtime.network`: TCP over asyncio streams."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator

from typing_extensions import override

from pydanube.runtime.network import LISTEN_BACKLOG, Connection, Listener, Network
from pydanube.runtime.tasks import TaskScope

_BUFFER_BYTES = 256 * 1024
_CLOSE_SECONDS_MAX = 5.0


class SystemNetwork(Network):
    """TCP. Each accepted connection has a task, which this network owns until `stop`.

    An error that ends a task, other than a broken connection, goes to the event loop's exception
    handler.
    """

    def __init__(self) -> None:
        self._tasks = TaskScope(_report)
        self._servers: list[asyncio.Server] = []

    async def stop(self) -> None:
        """Close all listeners, cancel whoever still serves a connection, and wait for it."""
        for server in self._servers:
            server.close()
        await self._tasks.close()

    @override
    async def listen(
        self, host: str, port: int, serve: Callable[[Connection], Awaitable[None]]
    ) -> Listener:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = SystemConnection(reader, writer)
            self._tasks.start(_serve(connection, serve), f"serve {connection.peer}")

        if port == 0:
            # A name may have several addresses; each would get another port of its own.
            host = await _first_address(host)
        server = await asyncio.start_server(
            accepted, host, port, limit=_BUFFER_BYTES, backlog=LISTEN_BACKLOG
        )
        self._servers = [other for other in self._servers if other.is_serving()]
        self._servers.append(server)
        return SystemListener(server)

    @override
    async def connect(self, host: str, port: int) -> Connection:
        with _as_connection_error():
            reader, writer = await asyncio.open_connection(host, port, limit=_BUFFER_BYTES)
        return SystemConnection(reader, writer)


class SystemConnection(Connection):
    """One TCP connection. Bytes of concurrent writes do not mix; only one task may read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._closed = False
        self._writer.transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        self._peer = _format_address(writer.get_extra_info("peername"))

    @property
    @override
    def peer(self) -> str:
        return self._peer

    @override
    async def read(self, length_max: int) -> bytes:
        self._require_open()
        with _as_connection_error():
            return await self._reader.read(length_max)

    @override
    async def write(self, data: bytes) -> None:
        self._require_open()
        with _as_connection_error():
            self._writer.write(data)
            await self._writer.drain()

    @override
    async def close(self) -> None:
        """End the stream; bytes the other end does not take within seconds are dropped."""
        if self._closed:
            return
        self._closed = True
        self._writer.close()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS_MAX):
                await self._writer.wait_closed()
        except (OSError, asyncio.CancelledError) as error:
            self._writer.transport.abort()
            if isinstance(error, asyncio.CancelledError):
                raise

    def _require_open(self) -> None:
        if self._closed:
            raise ConnectionError(f"the connection to {self._peer} has been closed here")


class SystemListener(Listener):
    """Listening sockets."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self._port: int = server.sockets[0].getsockname()[1]

    @property
    @override
    def port(self) -> int:
        return self._port

    @override
    async def close(self) -> None:
        self._server.close()


async def _serve(
    connection: SystemConnection, serve: Callable[[Connection], Awaitable[None]]
) -> None:
    try:
        with contextlib.suppress(ConnectionError):
            await serve(connection)
    finally:
        await connection.close()


def _report(name: str, failure: BaseException) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": f"{name} failed", "exception": failure}
    )


async def _first_address(host: str) -> str:
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return str(found[0][4][0])


def _format_address(address: tuple[str, int] | None) -> str:
    if address is None:
        return "unknown"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.contextmanager
def _as_connection_error() -> Iterator[None]:
    """Give every way in which a connection fails the one name that callers know."""
    try:
        yield
    except ConnectionError:
        raise
    except OSError as error:
        raise ConnectionError(str(error)) from error
