"""A port that serves a handler table over HTTP/2."""

import asyncio
import ssl
from collections import Counter
from typing import Final

from typing_extensions import override

from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock, Timer
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.calls import HandlerTable, Server
from pydanube.wire.http2.limits import Http2Limits, plan_relief
from pydanube.wire.http2.server_connection import Registry, ServerConnection, TurnedAway
from pydanube.wire.http2.tls import REFRESH_SECONDS, TlsFiles
from pydanube.wire.http2.turns import Turns

TICK_SECONDS_MAX: Final = 1.0
FAREWELL_SECONDS: Final = 1.0
"""How long clients may take to close after the server has cut their calls off."""
ADDRESSES_LOGGED_MAX: Final = 8

_log = get_logger(__name__)


class Http2Server(Server, Registry):
    """Owns the listener, its connections, and the tasks of their calls."""

    def __init__(self, table: HandlerTable, limits: Http2Limits, clock: Clock) -> None:
        self._table = table
        self._limits = limits
        self._clock = clock
        self._scope = TaskScope(_report)
        self._connections: dict[ServerConnection, None] = {}
        self._per_address: Counter[str] = Counter()
        self._turned_away: Counter[str] = Counter()
        """How often since the last tick, by address: one line in the log, whatever the crowd."""
        self._leaving: set[TurnedAway] = set()
        self._turns = Turns(clock)
        self._all_gone = asyncio.Event()
        self._all_gone.set()
        self._ticking: Timer | None = None
        self._tick_seconds = min(TICK_SECONDS_MAX, *_time_limits(limits))
        self._listener: asyncio.Server
        self._port = 0

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Start to accept (OSError when the address is taken)."""
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                self._connection,
                host,
                port,
                ssl=tls,
                backlog=self._limits.backlog,
                ssl_handshake_timeout=self._limits.handshake_seconds_max if tls else None,
            )
        except OSError as error:
            shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise OSError(error.errno, f"cannot listen on {shown}: {error.strerror}") from error
        self._port = self._listener.sockets[0].getsockname()[1]
        self._tick_later()

    def keep_fresh(self, tls: TlsFiles) -> None:
        """Take renewed certificates into use until the server stops."""

        async def refresh_for_ever() -> None:
            while True:
                await self._clock.sleep(REFRESH_SECONDS)
                await tls.refresh()

        self._scope.start(refresh_for_ever(), "refresh certificates")

    def _connection(self) -> ServerConnection:
        return ServerConnection(
            self._limits, self._table, self._scope, self._clock, self, self._turns
        )

    @property
    @override
    def port(self) -> int:
        return self._port

    @property
    def connection_count(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    @override
    def admit(self, connection: ServerConnection) -> bool:
        if (
            len(self._connections) >= self._limits.connections_max
            or self._per_address[connection.address] >= self._limits.connections_per_address_max
        ):
            self._turned_away[connection.address] += 1
            return False
        self._connections[connection] = None
        self._per_address[connection.address] += 1
        self._all_gone.clear()
        return True

    @override
    def dismiss(self, connection: ServerConnection) -> None:
        if connection not in self._connections:
            return
        del self._connections[connection]
        self._per_address[connection.address] -= 1
        if not self._per_address[connection.address]:
            del self._per_address[connection.address]
        if not self._connections:
            self._all_gone.set()

    @override
    def let_leave(self, stranger: TurnedAway) -> bool:
        if len(self._leaving) >= self._limits.backlog:
            return False
        self._leaving.add(stranger)
        return True

    @override
    def has_left(self, stranger: TurnedAway) -> None:
        self._leaving.discard(stranger)

    @override
    async def stop(self, grace_seconds: float) -> None:
        self._listener.close()
        for connection in list(self._connections):
            connection.leave("the server stops")
        await self._wait_until_gone(grace_seconds)
        await self._scope.close()
        for connection in list(self._connections):
            connection.cut()
        await self._wait_until_gone(FAREWELL_SECONDS)
        for connection in list(self._connections):
            connection.abort()
        await self._listener.wait_closed()
        if self._ticking is not None:
            self._ticking.cancel()

    async def _wait_until_gone(self, seconds: float) -> None:
        timer = self._clock.call_later(seconds, self._all_gone.set)
        await self._all_gone.wait()
        timer.cancel()
        if self._connections:
            self._all_gone.clear()

    def _tick_later(self) -> None:
        self._ticking = self._clock.call_later(self._tick_seconds, self._tick)

    def _tick(self) -> None:
        self._tick_later()  # First, so that whatever happens below the limits stay in force.
        now_ms = self._clock.monotonic_ms()
        for connection in list(self._connections):
            connection.tick(now_ms)
        self._relieve_memory()
        for address, count in self._turned_away.most_common(ADDRESSES_LOGGED_MAX):
            _log.warning(
                "connections were turned away",
                address=address,
                count=count,
                open=len(self._connections),
                limit=self._limits.connections_max,
            )
        self._turned_away.clear()

    def _relieve_memory(self) -> None:
        """Part with those who make us hold most, if all together make us hold too much."""
        connections = list(self._connections)
        held = [connection.held_bytes for connection in connections]
        for place in plan_relief(held, self._limits.held_bytes_max):
            _log.warning(
                "a connection is given up, for too much is held for all of them",
                peer=connections[place].peer,
                held_bytes=held[place],
                limit=self._limits.held_bytes_max,
            )
            connections[place].abort()


def _time_limits(limits: Http2Limits) -> list[float]:
    """Return how often to look, so that no limit is missed by more than a quarter."""
    seconds = (
        limits.handshake_seconds_max,
        limits.first_request_seconds_max,
        limits.request_seconds_max,
        limits.outgoing_seconds_max,
        limits.idle_seconds_max,
        limits.ping_seconds_max,
    )
    return [limit / 4 for limit in seconds]


def _report(name: str, failure: BaseException) -> None:
    _log.error("a call's task failed", path=name, error=failure)
