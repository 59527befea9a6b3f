"""Carries calls over any Network, simulated ones included, in a framing of its own.

grpcio keeps its own threads and clock and cannot enter a simulation; this engine can.
"""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Mapping

from typing_extensions import override

from pydanube.runtime.network import Connection, Listener, Network
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.calls import (
    Call,
    CallRefused,
    Channel,
    Engine,
    HandlerTable,
    Reply,
    Server,
    StatusCode,
)

_HEADER = struct.Struct("<IQBH")  # Body length, call number, kind, path length.
UNARY, STREAM, OK, REFUSED, ITEM, END, CANCEL = range(7)


def _frame(call: int, kind: int, body: bytes = b"", path: bytes = b"") -> bytes:
    return _HEADER.pack(len(body), call, kind, len(path)) + path + body


async def _frames(connection: Connection) -> AsyncIterator[tuple[int, int, str, bytes]]:
    buffered = b""
    while True:
        while len(buffered) >= _HEADER.size:
            length, call, kind, path_length = _HEADER.unpack_from(buffered)
            end = _HEADER.size + path_length + length
            if len(buffered) < end:
                break
            path = buffered[_HEADER.size : _HEADER.size + path_length].decode()
            yield call, kind, path, buffered[_HEADER.size + path_length : end]
            buffered = buffered[end:]
        data = await connection.read(65536)
        if not data:
            return
        buffered += data


def _fail(name: str, error: BaseException) -> None:
    raise AssertionError(f"task {name} failed") from error


class PlainEngine(Engine):
    def __init__(self, network: Network) -> None:
        self._network = network

    @override
    async def serve(self, table: HandlerTable, host: str, port: int) -> "PlainServer":
        server = PlainServer(table)
        server.listener = await self._network.listen(host, port, server.serve)
        return server


class PlainServer(Server):
    def __init__(self, table: HandlerTable) -> None:
        self._table = table
        self.listener: Listener | None = None
        self._connections: set[Connection] = set()

    @property
    @override
    def port(self) -> int:
        assert self.listener is not None
        return self.listener.port

    async def serve(self, connection: Connection) -> None:
        self._connections.add(connection)
        serving = _Serving(self._table, connection)
        try:
            async for call, kind, path, body in _frames(connection):
                serving.take(call, kind, path, body)
        except ConnectionError:
            pass
        finally:
            self._connections.discard(connection)
            await serving.close()

    @override
    async def stop(self, grace_seconds: float) -> None:
        assert self.listener is not None
        await self.listener.close()
        for connection in list(self._connections):
            await connection.close()


class _Serving:
    """The calls of one connection."""

    def __init__(self, table: HandlerTable, connection: Connection) -> None:
        self._table = table
        self._connection = connection
        self._tasks = TaskScope(_fail)
        self._streams: dict[int, asyncio.Task[None]] = {}
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._tasks.start(self._write(), "writer")

    async def _write(self) -> None:
        while True:
            try:
                await self._connection.write(await self._outgoing.get())
            except ConnectionError:
                return

    def send(self, frame: bytes) -> None:
        self._outgoing.put_nowait(frame)

    def take(self, number: int, kind: int, path: str, body: bytes) -> None:
        call = Call(path=path, peer=self._connection.peer, metadata={})
        if kind == CANCEL:
            task = self._streams.pop(number, None)
            if task is not None:
                task.cancel()
        elif kind == STREAM:
            task = asyncio.get_running_loop().create_task(self._stream(number, body, call))
            self._streams[number] = task
        elif path in self._table.direct:
            self._table.direct[path](body, call, _PlainReply(self, number))
        else:
            self._tasks.start(self._unary(number, body, call), path)

    async def _unary(self, number: int, body: bytes, call: Call) -> None:
        handler = self._table.unary.get(call.path)
        try:
            if handler is None:
                raise CallRefused(StatusCode.UNIMPLEMENTED, call.path)
            self.send(_frame(number, OK, await handler(body, call)))
        except CallRefused as refused:
            self.send(_refusal(number, refused.code, refused.text))

    async def _stream(self, number: int, body: bytes, call: Call) -> None:
        try:
            replies = await self._table.streams[call.path](body, call)
            self.send(_frame(number, OK))
            try:
                async for group in replies:
                    for item in group:
                        await self._connection.write(_frame(number, ITEM, item))
            finally:
                await replies.aclose()  # type: ignore[attr-defined]
            self.send(_frame(number, END))
        except CallRefused as refused:
            self.send(_refusal(number, refused.code, refused.text))
        except ConnectionError:
            pass

    async def close(self) -> None:
        streams = list(self._streams.values())
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        await self._tasks.close()


class _PlainReply(Reply):
    def __init__(self, serving: _Serving, number: int) -> None:
        self._serving = serving
        self._number = number

    @override
    def send(self, response: bytes) -> None:
        self._serving.send(_frame(self._number, OK, response))

    @override
    def refuse(self, code: StatusCode, text: str) -> None:
        self._serving.send(_refusal(self._number, code, text))


def _refusal(number: int, code: StatusCode, text: str) -> bytes:
    return _frame(number, REFUSED, bytes([code]) + text.encode())


class PlainChannel(Channel):
    """Connects when first needed, and again after the connection broke."""

    def __init__(self, network: Network, host: str, port: int) -> None:
        self._network = network
        self._address = (host, port)
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._next = 1
        self._waiting: dict[int, asyncio.Queue[tuple[int, bytes]]] = {}
        self._tasks = TaskScope(_fail)

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._connection is None:
                try:
                    self._connection = await self._network.connect(*self._address)
                except OSError as error:
                    raise CallRefused(StatusCode.UNAVAILABLE, str(error)) from error
                self._tasks.start(self._read(self._connection), "reader")
            return self._connection

    async def _read(self, connection: Connection) -> None:
        try:
            async for number, kind, _, body in _frames(connection):
                if number in self._waiting:
                    self._waiting[number].put_nowait((kind, body))
        except ConnectionError:
            pass
        finally:
            if self._connection is connection:
                self._connection = None
            lost = bytes([StatusCode.UNAVAILABLE]) + b"connection lost"
            for queue in self._waiting.values():
                queue.put_nowait((REFUSED, lost))

    async def _begin(
        self, kind: int, path: str, request: bytes
    ) -> tuple[int, asyncio.Queue[tuple[int, bytes]]]:
        connection = await self._connected()
        number, self._next = self._next, self._next + 1
        queue: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._waiting[number] = queue
        try:
            await connection.write(_frame(number, kind, request, path.encode()))
        except ConnectionError as error:
            del self._waiting[number]
            raise CallRefused(StatusCode.UNAVAILABLE, str(error)) from error
        return number, queue

    @override
    async def unary(
        self,
        path: str,
        request: bytes,
        *,
        metadata: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> bytes:
        number, queue = await self._begin(UNARY, path, request)
        try:
            async with asyncio.timeout(timeout_seconds):
                kind, body = await queue.get()
        except TimeoutError:
            raise CallRefused(StatusCode.DEADLINE_EXCEEDED, path) from None
        finally:
            del self._waiting[number]
        if kind == REFUSED:
            raise CallRefused(StatusCode(body[0]), body[1:].decode())
        return body

    @override
    async def stream(
        self, path: str, request: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> AsyncIterator[bytes]:
        number, queue = await self._begin(STREAM, path, request)
        connection = self._connection
        try:
            while True:
                kind, body = await queue.get()
                if kind == REFUSED:
                    raise CallRefused(StatusCode(body[0]), body[1:].decode())
                if kind == END:
                    return
                if kind == ITEM:
                    yield body
        finally:
            del self._waiting[number]
            if connection is not None and connection is self._connection:
                with contextlib.suppress(ConnectionError):
                    await connection.write(_frame(number, CANCEL))

    @override
    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
        await self._tasks.close()
