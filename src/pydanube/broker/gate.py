"""The gate before the handlers: a port is open at once, its calls go on once the broker serves.

Clients give a refused port up within seconds but set no deadline on a call, so a broker listens
first and recovers while it holds what arrives.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence

from typing_extensions import override

from pydanube.observability.counts import RpcMetrics
from pydanube.observability.metrics import BrokerMetrics
from pydanube.runtime.tasks import carry_through
from pydanube.wire.calls import (
    Body,
    Call,
    CallRefused,
    DirectHandler,
    ExchangeHandler,
    HandlerTable,
    Reply,
    StatusCode,
    StreamHandler,
    UnaryHandler,
)
from pydanube.wire.danube.services import ACK, METHODS, NACK, SEND_MESSAGE
from pydanube.wire.flight import service as flight

HELD_MAX = 10_000
"""Calls held without a task each; those beyond are told to come again."""

_STOPPING = "the broker is stopping; connect again"

DIRECT = frozenset({SEND_MESSAGE.path, ACK.path, NACK.path})


class Gate:
    """Serves the methods of some services: holds their calls until `open` brings the handlers.

    Every call is counted when it ends; a stream when it begins.
    """

    def __init__(self, service_names: Collection[str], metrics: BrokerMetrics) -> None:
        self._metrics = metrics
        self._handlers = HandlerTable()
        self._early = HandlerTable()
        self._opened = asyncio.Event()
        self._news = asyncio.Event()
        """That there is more to serve than before."""
        self._closed = False
        self.waits_for: Callable[[], str | None] = _nothing
        """Says what an operator must do before this can open: calls are not held for that."""
        self._held: list[Callable[[], None]] = []
        self.table = HandlerTable()
        for path, method in METHODS.items():
            if method.service not in service_names:
                continue
            if path in DIRECT:
                self.table.add_direct(path, self._direct(path))
            elif method.response_stream:
                self.table.add_stream(path, self._stream(path))
            else:
                self.table.add_unary(path, self._unary(path))
        if flight.SERVICE in service_names:
            self._add_flight()

    def _add_flight(self) -> None:
        for path in flight.UNARY:
            self.table.add_unary(path, self._unary(path))
        for path in flight.STREAMS:
            self.table.add_stream(path, self._stream(path))
        for path in flight.EXCHANGES:
            self.table.add_exchange(path, self._exchange(path))

    def serve_early(self, handlers: HandlerTable) -> None:
        """Serve these unary methods before it is opened, to those who wait for them too."""
        self._early = handlers
        self._news.set()
        self._news = asyncio.Event()

    def open(self, handlers: HandlerTable) -> None:
        """Let everything through to these handlers, what has been held first."""
        self._handlers = handlers
        self._opened.set()
        self._news.set()
        held, self._held = self._held, []
        for go_on in held:
            go_on()

    @property
    def is_open(self) -> bool:
        """Whether calls reach the handlers."""
        return self._opened.is_set() and not self._closed

    def close(self) -> None:
        """Refuse every call from now on in the way that makes clients come back."""
        self._closed = True
        self.open(self._handlers)  # What was held learns of it too.

    def _check_open(self) -> None:
        if self._closed:
            raise CallRefused(StatusCode.UNAVAILABLE, _STOPPING)

    async def _until_served(self, path: str) -> HandlerTable:
        """Wait until a method is served, and return where."""
        while not self._opened.is_set():
            if path in self._early.unary:
                return self._early
            waits_for = self.waits_for()
            if waits_for is not None:
                raise CallRefused(StatusCode.UNAVAILABLE, waits_for)
            await self._news.wait()
        self._check_open()
        return self._handlers

    def _unary(self, path: str) -> UnaryHandler:
        counts = self._metrics.rpc(path)

        async def serve(request: bytes, call: Call) -> bytes:
            try:
                handlers = await self._until_served(path)
                # A caller that goes away must not leave a topic half created or half deleted.
                response = await carry_through(handlers.unary[path](request, call))
            except CallRefused:
                counts.errors += 1
                raise
            counts.ok += 1
            return response

        return serve

    def _stream(self, path: str) -> StreamHandler:
        counts = self._metrics.rpc(path)

        async def serve(request: bytes, call: Call) -> AsyncIterator[Sequence[Body]]:
            try:
                handlers = await self._until_served(path)
                replies = await handlers.streams[path](request, call)
            except CallRefused:
                counts.errors += 1
                raise
            counts.ok += 1
            return replies

        return serve

    def _exchange(self, path: str) -> ExchangeHandler:
        counts = self._metrics.rpc(path)

        async def serve(requests: AsyncIterator[Body], call: Call) -> AsyncIterator[Sequence[Body]]:
            try:
                handlers = await self._until_served(path)
                replies = await handlers.exchanges[path](requests, call)
            except CallRefused:
                counts.errors += 1
                raise
            counts.ok += 1
            return replies

        return serve

    def _direct(self, path: str) -> DirectHandler:
        counts = self._metrics.rpc(path)

        def serve(request: bytes, call: Call, reply: Reply) -> None:
            counting = _CountedReply(reply, counts)
            if self._closed:
                counting.refuse(StatusCode.UNAVAILABLE, _STOPPING)
            elif self._opened.is_set():
                self._handlers.direct[path](request, call, counting)
            elif (waits_for := self.waits_for()) is not None:
                counting.refuse(StatusCode.UNAVAILABLE, waits_for)
            elif len(self._held) < HELD_MAX:
                self._held.append(lambda: serve(request, call, reply))
            else:
                counting.refuse(StatusCode.UNAVAILABLE, "the broker is starting; try again")

        return serve


def _nothing() -> None:
    """Nobody has to do anything."""


class _CountedReply(Reply):
    """Counts how a direct call ended."""

    __slots__ = ("_counts", "_reply")

    def __init__(self, reply: Reply, counts: RpcMetrics) -> None:
        self._reply = reply
        self._counts = counts

    @override
    def send(self, response: bytes) -> None:
        self._counts.ok += 1
        self._reply.send(response)

    @override
    def refuse(self, code: StatusCode, text: str) -> None:
        self._counts.errors += 1
        self._reply.refuse(code, text)
