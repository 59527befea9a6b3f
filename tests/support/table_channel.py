"""Calls a handler table in the same process: nothing between caller and broker that could fail."""

import asyncio
from collections.abc import AsyncGenerator, Mapping

from typing_extensions import override

from pydanube.wire.calls import (
    Call,
    CallRefused,
    Channel,
    HandlerTable,
    Reply,
    StatusCode,
    whole,
)


class TableChannel(Channel):
    def __init__(self, table: HandlerTable, peer: str) -> None:
        self._table = table
        self._peer = peer

    @override
    async def unary(
        self,
        path: str,
        request: bytes,
        *,
        metadata: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> bytes:
        call = Call(path=path, peer=self._peer, metadata=metadata or {})
        try:
            async with asyncio.timeout(timeout_seconds):
                if path in self._table.direct:
                    reply = _FutureReply()
                    self._table.direct[path](request, call, reply)
                    return await reply.answer
                return await self._table.unary[path](request, call)
        except TimeoutError:
            raise CallRefused(StatusCode.DEADLINE_EXCEEDED, path) from None

    @override
    async def stream(
        self, path: str, request: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        call = Call(path=path, peer=self._peer, metadata=metadata or {})
        groups = await self._table.streams[path](request, call)
        try:
            async for group in groups:
                for item in group:
                    yield whole(item)
        finally:
            if isinstance(groups, AsyncGenerator):
                await groups.aclose()

    @override
    async def close(self) -> None:
        pass


class _FutureReply(Reply):
    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    @override
    def send(self, response: bytes) -> None:
        if not self.answer.done():
            self.answer.set_result(response)

    @override
    def refuse(self, code: StatusCode, text: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(CallRefused(code, text))
