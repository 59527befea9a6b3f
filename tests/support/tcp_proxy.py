"""Stands between a client and a server, and loses what it is told to lose."""

import asyncio
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit


class TcpProxy:
    """Carries bytes both ways; answers can be swallowed, and everything cut."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._upstream = (parts.hostname, parts.port)
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server
        self.swallows_answers = False
        self.refuses = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        # Connections that are cut end their tasks; one that is being made ends soon, too.
        while self._tasks:
            await asyncio.wait(self._tasks, timeout=0.1)
            self.cut()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Cut every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        self._writers += [writer, upstream_writer]
        await asyncio.gather(
            self._carry(reader, upstream_writer, answers=False),
            self._carry(upstream_reader, writer, answers=True),
        )

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                if answers and self.swallows_answers:
                    continue
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
