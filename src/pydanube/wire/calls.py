"""The handler table: method path → handler, over bytes and our own types.

Nothing above `wire/` knows which engine carries a call. A handler takes the request's bytes and
the `Call`, and returns the reply's bytes; it refuses by raising `CallRefused`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from enum import IntEnum
from typing import Protocol, runtime_checkable

from msgspec import Struct


class StatusCode(IntEnum):
    """The gRPC status codes, by their numbers on the wire."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallRefused(Exception):
    """A call ended with a status other than OK, at either end of the wire."""

    def __init__(self, code: StatusCode, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code = code
        self.text = text


class CallNotSent(CallRefused):
    """The call never left for the server, so that nothing was done."""


class Call(Struct, frozen=True, kw_only=True):
    """Who calls, and by what way."""

    path: str
    peer: str
    """The transport connection, such as ipv4:127.0.0.1:50312; another one has another name."""
    metadata: Mapping[str, str]
    """Request headers, lower-case names; binary ones are left out."""
    certificate_names: tuple[str, ...] = ()
    """Whom the caller's verified certificate names: its subject, then its other DNS names and URIs;
    nobody without one."""


Body = bytes | tuple[bytes | memoryview, ...]
"""A message, whole or in parts that follow each other; large parts are moved without a copy.

A part that can be written to is all of a message, in memory that nobody else uses (`memory`).
"""


def body_bytes(body: Body) -> int:
    """Return the length of a message."""
    return len(body) if isinstance(body, bytes) else sum(map(len, body))


def whole(body: Body) -> bytes:
    """Return a message in one piece."""
    return body if isinstance(body, bytes) else b"".join(body)


UnaryHandler = Callable[[bytes, Call], Awaitable[bytes]]
"""One request, one reply."""

StreamHandler = Callable[[bytes, Call], Awaitable[AsyncIterator[Sequence[Body]]]]
"""One request, many replies. Raising before returning refuses the call before any header is sent;
once the iterator is returned the engine sends headers at once, then iterates. Each item is a group
of replies, sent in order as separate messages. The iterator is closed (`aclose`) when the caller
goes away."""


@runtime_checkable
class HearsOfResets(Protocol):
    """An iterator of replies that is told when its caller, still connected, resets the call.

    The engine `grpcio` cannot tell that from a connection that was lost, and tells nothing.
    """

    def caller_reset(self) -> None:
        """Take note of it; the iterator is closed afterwards. It must not block and not raise."""


ExchangeHandler = Callable[[AsyncIterator[Body], Call], Awaitable[AsyncIterator[Sequence[Body]]]]
"""Many requests, many replies, each side at its own pace. As a StreamHandler otherwise: the
requests may be read before and while replies are given, and end when the caller has no more."""


class Reply(Protocol):
    """The way back for one call; answered once. Answers after the caller has gone are dropped."""

    def send(self, response: bytes) -> None:
        """Answer with OK."""

    def refuse(self, code: StatusCode, text: str) -> None:
        """Answer with another status."""


DirectHandler = Callable[[bytes, Call, Reply], None]
"""One request, one reply, without a task: called on the event loop as the request arrives; it must
not block and not raise, and it or somebody it told answers through `Reply`, sooner or later."""


class HandlerTable:
    """What a port serves."""

    def __init__(self) -> None:
        self.unary: dict[str, UnaryHandler] = {}
        self.direct: dict[str, DirectHandler] = {}
        self.streams: dict[str, StreamHandler] = {}
        self.exchanges: dict[str, ExchangeHandler] = {}

    def add_unary(self, path: str, handler: UnaryHandler) -> None:
        """Serve `path`, such as /danube.HealthCheck/HealthCheck."""
        self._check_free(path)
        self.unary[path] = handler

    def add_direct(self, path: str, handler: DirectHandler) -> None:
        """Serve `path` without a task per call."""
        self._check_free(path)
        self.direct[path] = handler

    def add_stream(self, path: str, handler: StreamHandler) -> None:
        """Serve `path` with a stream of replies."""
        self._check_free(path)
        self.streams[path] = handler

    def add_exchange(self, path: str, handler: ExchangeHandler) -> None:
        """Serve `path` with a stream each way."""
        self._check_free(path)
        self.exchanges[path] = handler

    def serves(self, path: str) -> bool:
        """Tell whether there is a handler for `path`."""
        tables = (self.unary, self.direct, self.streams, self.exchanges)
        return any(path in table for table in tables)

    def _check_free(self, path: str) -> None:
        assert not self.serves(path), f"{path} is served twice"


class Server(Protocol):
    """An engine serving one table on one port."""

    @property
    def port(self) -> int:
        """The port in use, also when 0 was asked for."""

    async def stop(self, grace_seconds: float) -> None:
        """Refuse new calls, let running ones end for that long, then cut them off."""


class ConnectionLimit(Struct, frozen=True, kw_only=True):
    """How many connections a server holds."""

    connections_max: int
    per_address_max: int
    """From one address; not every engine tells addresses apart."""
    backlog: int
    """How many may wait to be accepted, or to leave after they were turned away."""
    held_bytes_max: int
    """What may be held for all of them; an engine may have a measure of its own."""


class Engine(Protocol):
    """Carries calls to a handler table."""

    async def serve(
        self,
        table: HandlerTable,
        host: str,
        port: int,
        connections: ConnectionLimit | None = None,
    ) -> Server:
        """Listen (OSError when the address is taken) and serve until stopped.

        Connections beyond the limit are turned away; None leaves that to the engine.
        """


class Channel(Protocol):
    """The calling side: one connection to one address, made when first needed."""

    async def unary(
        self,
        path: str,
        request: bytes,
        *,
        metadata: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> bytes:
        """Call and return the reply, or raise CallRefused (UNAVAILABLE: not reached).

        CallNotSent, which some channels raise, says that the server certainly never saw the call.
        """

    def stream(
        self, path: str, request: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> AsyncIterator[bytes]:
        """Call and iterate over the replies; raises CallRefused as `unary` does."""

    async def close(self) -> None:
        """Cut running calls off and release the connection."""


class ExchangeChannel(Channel, Protocol):
    """A channel that can also carry a stream each way."""

    def exchange(
        self,
        path: str,
        requests: AsyncIterator[Body],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[bytes]:
        """Call with a stream of requests and iterate over the replies; raises CallRefused."""
