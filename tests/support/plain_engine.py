"""Carries calls over any Network, simulated ones included, in a framing of its own.

grpcio keeps its own threads and clock and cannot enter a simulation; this engine can. It keeps the
promises of the real ones: headers of a stream first, replies in order, a caller that gives up
cancels its handler, a stop lets running calls end. An unexpected error in a handler is not hidden
behind a status: it goes to the event loop, and fails the simulation.
"""

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from typing import Any

from typing_extensions import override

from pydanube.runtime.network import Connection, Listener, Network
from pydanube.wire.calls import (
    Body,
    Call,
    CallRefused,
    ConnectionLimit,
    Engine,
    ExchangeChannel,
    HandlerTable,
    Reply,
    Server,
    StatusCode,
    whole,
)

_HEADER = struct.Struct("<IQBH")  # Body length, call number, kind, path length.
UNARY, STREAM, OK, REFUSED, ITEM, END, CANCEL = range(7)
_READ_BYTES = 65_536
_LAST_WORDS_SECONDS = 1.0

_METADATA = "\0"
"""What stands between a path and the metadata of its call."""

_Frame = tuple[int, int, str, bytes]


def _heading(path: str, metadata: Mapping[str, str] | None) -> str:
    return f"{path}{_METADATA}{json.dumps(dict(metadata))}" if metadata else path


def _frame(call: int, kind: int, body: bytes = b"", path: bytes = b"") -> bytes:
    return _HEADER.pack(len(body), call, kind, len(path)) + path + body


def _refusal(number: int, code: StatusCode, text: str) -> bytes:
    return _frame(number, REFUSED, bytes([code]) + text.encode())


async def _frames(connection: Connection) -> AsyncGenerator[_Frame, None]:
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
        data = await connection.read(_READ_BYTES)
        if not data:
            return
        buffered += data


class PlainEngine(Engine):
    def __init__(self, network: Network) -> None:
        self._network = network

    @override
    async def serve(
        self,
        table: HandlerTable,
        host: str,
        port: int,
        connections: ConnectionLimit | None = None,
    ) -> "PlainServer":
        server = PlainServer(table)
        server.listener = await self._network.listen(host, port, server.serve)
        return server


class PlainServer(Server):
    def __init__(self, table: HandlerTable) -> None:
        self._table = table
        self.listener: Listener | None = None
        # A dict, since the order of a set of objects differs from run to run.
        self._connections: dict[_Serving, None] = {}

    @property
    @override
    def port(self) -> int:
        assert self.listener is not None
        return self.listener.port

    async def serve(self, connection: Connection) -> None:
        serving = _Serving(self._table, connection)
        self._connections[serving] = None
        try:
            async for number, kind, path, body in _frames(connection):
                serving.take(number, kind, path, body)
        except ConnectionError:
            pass
        finally:
            self._connections.pop(serving, None)
            await serving.close()

    @override
    async def stop(self, grace_seconds: float) -> None:
        assert self.listener is not None
        await self.listener.close()
        connections = list(self._connections)
        for serving in connections:
            serving.refuse_more()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                for serving in connections:
                    await serving.wait_until_idle()
        for serving in connections:
            await serving.close()


class _Serving:
    """The calls of one connection."""

    def __init__(self, table: HandlerTable, connection: Connection) -> None:
        self._table = table
        self._connection = connection
        self._calls: dict[int, asyncio.Task[None] | None] = {}
        """Those under way; None for one that runs without a task."""
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._writer = asyncio.get_running_loop().create_task(self._write(), name="replies")
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False

    async def _write(self) -> None:
        with contextlib.suppress(ConnectionError):
            while (frame := await self._outgoing.get()) is not None:
                await self._connection.write(frame)

    def take(self, number: int, kind: int, path: str, body: bytes) -> None:
        if kind == CANCEL:
            self._cancel(number)
            return
        if self._stopping:
            self._send(_refusal(number, StatusCode.UNAVAILABLE, "the server is stopping"))
            return
        path, _, metadata = path.partition(_METADATA)
        call = Call(
            path=path,
            peer=self._connection.peer,
            metadata=json.loads(metadata) if metadata else {},
        )
        self._idle.clear()
        if path in self._table.direct:
            self._calls[number] = None
            self._table.direct[path](body, call, _PlainReply(self, number))
        elif kind == STREAM:
            self._start(number, self._stream(number, body, call), path)
        else:
            self._start(number, self._unary(number, body, call), path)

    def _start(self, number: int, work: Coroutine[Any, Any, None], path: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=path)
        self._calls[number] = task

        def ended(task: asyncio.Task[None]) -> None:
            self._end(number)
            error = None if task.cancelled() else task.exception()
            if error is not None:
                task.get_loop().call_exception_handler(
                    {"message": f"the handler of {path} failed", "exception": error}
                )

        task.add_done_callback(ended)

    def _cancel(self, number: int) -> None:
        task = self._calls.pop(number, None)
        if task is not None:
            task.cancel()
        self._end(number)

    def _end(self, number: int) -> None:
        self._calls.pop(number, None)
        if not self._calls:
            self._idle.set()

    def answer(self, number: int, frame: bytes) -> None:
        """Send the last frame of a call, unless its caller has gone."""
        if number in self._calls:
            self._send(frame)
            self._end(number)

    def _send(self, frame: bytes) -> None:
        self._outgoing.put_nowait(frame)

    async def _unary(self, number: int, body: bytes, call: Call) -> None:
        handler = self._table.unary.get(call.path)
        try:
            if handler is None:
                raise CallRefused(StatusCode.UNIMPLEMENTED, f"{call.path} is not served")
            reply = await handler(body, call)
        except CallRefused as refused:
            self.answer(number, _refusal(number, refused.code, refused.text))
        except asyncio.CancelledError:
            self.answer(number, _refusal(number, StatusCode.UNAVAILABLE, "the call was cut off"))
            raise
        else:
            self.answer(number, _frame(number, OK, reply))

    async def _stream(self, number: int, body: bytes, call: Call) -> None:
        try:
            replies = await self._table.streams[call.path](body, call)
            try:
                await self._connection.write(_frame(number, OK))
                async for group in replies:
                    for item in group:
                        await self._connection.write(_frame(number, ITEM, whole(item)))
            finally:
                if isinstance(replies, AsyncGenerator):
                    await replies.aclose()
        except CallRefused as refused:
            self.answer(number, _refusal(number, refused.code, refused.text))
        except ConnectionError:
            pass
        else:
            self.answer(number, _frame(number, END))

    def refuse_more(self) -> None:
        self._stopping = True

    async def wait_until_idle(self) -> None:
        await self._idle.wait()

    async def close(self) -> None:
        tasks = [task for task in self._calls.values() if task is not None]
        self._calls.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._outgoing.put_nowait(None)
        await asyncio.wait([self._writer], timeout=_LAST_WORDS_SECONDS)
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)
        await self._connection.close()


class _PlainReply(Reply):
    def __init__(self, serving: _Serving, number: int) -> None:
        self._serving = serving
        self._number = number

    @override
    def send(self, response: bytes) -> None:
        self._serving.answer(self._number, _frame(self._number, OK, response))

    @override
    def refuse(self, code: StatusCode, text: str) -> None:
        self._serving.answer(self._number, _refusal(self._number, code, text))


_Answers = asyncio.Queue[tuple[int, bytes]]


class PlainChannel(ExchangeChannel):
    """Connects when first needed, and again after the connection broke."""

    def __init__(self, network: Network, host: str, port: int) -> None:
        self._network = network
        self._host, self._port = host, port
        self._link: _Link | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    async def _connected(self) -> "_Link":
        async with self._connecting:
            if self._closed:
                raise CallRefused(StatusCode.CANCELLED, "the channel is closed")
            if self._link is None or self._link.broken:
                try:
                    connection = await self._network.connect(self._host, self._port)
                except OSError as error:
                    place = f"{self._host}:{self._port}"
                    raise CallRefused(StatusCode.UNAVAILABLE, f"{place}: {error}") from error
                self._link = _Link(connection)
            return self._link

    @override
    async def unary(
        self,
        path: str,
        request: bytes,
        *,
        metadata: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> bytes:
        try:
            async with asyncio.timeout(timeout_seconds):
                link = await self._connected()
                heading = _heading(path, metadata)
                async with link.calling(UNARY, heading, request) as answers:
                    _, body = await _next(answers)
                    return body
        except TimeoutError:
            text = f"{path} was not answered within {timeout_seconds:g} s"
            raise CallRefused(StatusCode.DEADLINE_EXCEEDED, text) from None

    @override
    async def stream(
        self, path: str, request: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        link = await self._connected()
        async with link.calling(STREAM, _heading(path, metadata), request) as answers:
            while True:
                kind, body = await _next(answers)
                if kind == END:
                    return
                if kind == ITEM:
                    yield body

    @override
    async def exchange(
        self,
        path: str,
        requests: AsyncIterator[Body],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[bytes, None]:
        raise CallRefused(StatusCode.UNIMPLEMENTED, f"{path}: this engine carries no exchanges")
        yield b""

    @override
    async def close(self) -> None:
        self._closed = True
        if self._link is not None:
            await self._link.close()


class _Link:
    """One connection and the calls on it; once broken it stays so."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._numbers = 0
        self._calls: dict[int, _Answers] = {}
        self._last = (StatusCode.UNAVAILABLE, "connection lost")
        self.broken = False
        self._reader = asyncio.get_running_loop().create_task(self._read(), name="answers")

    async def _read(self) -> None:
        try:
            async for number, kind, _, body in _frames(self._connection):
                if number in self._calls:
                    self._calls[number].put_nowait((kind, body))
        except ConnectionError:
            pass
        finally:
            self.broken = True
            code, text = self._last
            for answers in self._calls.values():
                answers.put_nowait((REFUSED, bytes([code]) + text.encode()))
            await self._connection.close()

    @contextlib.asynccontextmanager
    async def calling(self, kind: int, path: str, request: bytes) -> AsyncIterator[_Answers]:
        self._numbers += 1
        number = self._numbers
        answers: _Answers = asyncio.Queue()
        self._calls[number] = answers
        over = False
        try:
            await self._write(_frame(number, kind, request, path.encode()))
            yield answers
            over = kind == UNARY
        except CallRefused:
            over = True
            raise
        finally:
            del self._calls[number]
            if not over and not self.broken:
                # Harmless when the call has just ended.
                with contextlib.suppress(CallRefused):
                    await self._write(_frame(number, CANCEL))

    async def _write(self, frame: bytes) -> None:
        try:
            await self._connection.write(frame)
        except ConnectionError as error:
            raise CallRefused(StatusCode.UNAVAILABLE, f"connection lost: {error}") from error

    async def close(self) -> None:
        self._last = (StatusCode.CANCELLED, "the channel is closed")
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


async def _next(answers: _Answers) -> tuple[int, bytes]:
    kind, body = await answers.get()
    if kind == REFUSED:
        raise CallRefused(StatusCode(body[0]), body[1:].decode())
    return kind, body
