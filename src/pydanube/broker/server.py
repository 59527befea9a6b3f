"""A broker on its ports: listen, recover, serve, and drain when asked to stop."""

import asyncio
import gc
from collections.abc import Collection
from contextlib import suppress

from pydanube.broker.addresses import Address, url_beside
from pydanube.broker.broker import ADMIN_SERVICES, CLIENT_SERVICES, Broker, Urls
from pydanube.broker.config import BrokerConfig, advertised_urls
from pydanube.broker.connections import plan_connections
from pydanube.broker.giving_up import EXIT_CODE, GaveUp, end_process
from pydanube.broker.metadata import Peers
from pydanube.broker.servicers.health import SERVICE as HEALTH_SERVICE
from pydanube.broker.servicers.health import HealthServicer
from pydanube.errors import Conflict, InvalidRequest, Unavailable
from pydanube.observability.http import OperatorPages
from pydanube.observability.logging import LogFormat, LogLevel, get_logger, log_to_stderr
from pydanube.observability.metrics import BrokerMetrics
from pydanube.runtime.descriptors import raise_descriptors_max
from pydanube.runtime.machine import Machine, this_machine
from pydanube.runtime.network import Listener
from pydanube.runtime.process import StopSignals, end_at_once, run
from pydanube.runtime.tasks import done_before
from pydanube.runtime.threads import WorkerThreads
from pydanube.wire.calls import ConnectionLimit, Engine, HandlerTable, Server
from pydanube.wire.danube.reflection import Reflection
from pydanube.wire.http2.engine import Http2Engine
from pydanube.wire.http2.limits import Http2Limits

DEFAULT_ENGINE = "http2"
REQUEST_BYTES_MAX = 64 * 1024 * 1024
"""Far above the usual policy, so that it is the policy which refuses a message, and says so."""
GRACE_SECONDS = 5.0
"""How long calls that are under way may take to end when the broker stops."""
LAST_CALLS_SECONDS = 0.1
ABANDON_SECONDS = 1.0
START_GIVE_UP_SECONDS = 10.0
"""How long a start may take to give up when it is told to."""

_log = get_logger(__name__)


class BrokerServer:
    """A running broker. It listens before it has recovered, and answers once it has."""

    def __init__(
        self, config: BrokerConfig, machine: Machine, engine: Engine, peers: Peers | None
    ) -> None:
        self._config = config
        self._machine = machine
        self._engine = engine
        self._metrics = BrokerMetrics("", machine.clock.monotonic_ms)
        self._broker = Broker(config, machine, self._metrics, peers)
        self._rendering = WorkerThreads("metrics", 1)
        self._servers: list[Server] = []
        self._plan = plan_connections(
            machine.descriptors_max, config.broker.connections, is_clustered=config.is_clustered
        )
        self._pages: Listener | None = None

    @classmethod
    async def start(
        cls,
        config: BrokerConfig,
        *,
        engine: Engine | None = None,
        machine: Machine | None = None,
        peers: Peers | None = None,
    ) -> "BrokerServer":
        """Listen, recover and serve. DanubeError says why it cannot; then nothing is left over."""
        machine = machine or this_machine()
        engine = engine or engine_named(DEFAULT_ENGINE)
        if peers is None and config.is_clustered:
            # A broker alone starts sooner without.
            from pydanube.broker.past_alone import heeding_a_past_alone
            from pydanube.broker.peers import system_peers

            config = await heeding_a_past_alone(config, machine.files)
            if config.is_clustered:
                peers = await system_peers(config, machine)
        server = cls(config, machine, engine, peers)
        try:
            await server._serve()
        except BaseException:
            await server._close()
            raise
        return server

    async def _serve(self) -> None:
        listeners = self._config.broker
        client_table = self._explained(self._broker.client_gate.table, CLIENT_SERVICES)
        admin_table = self._explained(self._broker.admin_gate.table, ADMIN_SERVICES)
        await self._listen(client_table, listeners.client_address, "client", self._plan.client)
        await self._listen(admin_table, listeners.admin_address, "admin", self._plan.admin)
        await self._show_pages(listeners.prometheus_address)
        client = advertised_urls(self._config, self.client_port)
        admin = Address(listeners.admin_address.host, self.admin_port)
        await self._broker.recover(
            Urls(
                client=client,
                admin=url_beside(admin, client.broker_url),
                metrics=self._metrics_url(listeners.prometheus_address, client.broker_url),
            )
        )

    def _explained(self, table: HandlerTable, service_names: Collection[str]) -> HandlerTable:
        """Add what every gRPC tool asks for; it is answered before the broker has recovered."""
        health = HealthServicer(service_names, lambda: self._broker.is_ready, self._machine.clock)
        health.register(table)
        Reflection([*service_names, HEALTH_SERVICE]).register(table)
        return table

    async def _listen(
        self, table: HandlerTable, address: Address, name: str, limit: ConnectionLimit
    ) -> None:
        try:
            server = await self._engine.serve(table, address.host, address.port, limit)
            self._servers.append(server)
        except OSError as error:
            raise _cannot_listen(name, address, error) from error

    async def _show_pages(self, address: Address | None) -> None:
        if address is None:
            return
        pages = OperatorPages(
            metrics=lambda: self._metrics.render(self._rendering.run),
            unhealthy=self._unhealthy,
            unready=self._unready,
            notes=lambda: self._broker.notes,
            connections_max=self._plan.prometheus,
        )
        try:
            self._pages = await self._machine.network.listen(
                address.host, address.port, pages.serve
            )
        except OSError as error:
            raise _cannot_listen("prometheus", address, error) from error

    def _unhealthy(self) -> str | None:
        failure = self._broker.failure
        return str(failure) if failure is not None else None

    def _unready(self) -> str | None:
        if self._broker.is_ready:
            return None
        waiting_for = self._broker.to_be_added or self._broker.waiting_for
        return self._unhealthy() or waiting_for or "the broker is recovering or stopping"

    @property
    def client_port(self) -> int:
        """The port clients connect to."""
        return self._servers[0].port

    @property
    def admin_port(self) -> int:
        """The port of administration."""
        return self._servers[1].port

    @property
    def clients_max(self) -> int:
        """How many connections the client port takes."""
        return self._plan.client.connections_max

    @property
    def metrics_port(self) -> int | None:
        """The port of metrics and health, if there is one."""
        return self._pages.port if self._pages is not None else None

    def _metrics_url(self, address: Address | None, broker_url: str) -> str:
        if address is None or self.metrics_port is None:
            return ""
        return url_beside(Address(address.host, self.metrics_port), broker_url)

    @property
    def gave_up(self) -> GaveUp | None:
        """Why the broker serves nothing any more, though nobody has stopped it."""
        return self._broker.gave_up

    async def wait_until_given_up(self) -> GaveUp:
        """Return when the broker serves nothing any more, for it cannot write.

        Whoever owns the process is to end it: what hangs cannot be closed.
        """
        return await self._broker.wait_until_given_up()

    async def abandon(self) -> None:
        """Let go of the clients without waiting for the disk, so that they look elsewhere."""
        await self._machine.clock.sleep(LAST_CALLS_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(ABANDON_SECONDS):
                await asyncio.gather(*(server.stop(0) for server in self._servers))

    async def stop(self) -> None:
        """Refuse new messages, finish and sync what was accepted, then close everything.

        Unavailable if the disk hangs, so that nothing can be closed: end the process then.
        """
        if not await done_before(self._stop_in_order(), self._broker.wait_until_stuck()):
            raise Unavailable("the broker cannot be closed: a write to its disk hangs")

    async def _stop_in_order(self) -> None:
        try:
            await self._broker.drain()
            # Calls on their way meet the closed gate, which makes clients come back. A stopping
            # server would cancel them, and clients take that for the end.
            await self._machine.clock.sleep(LAST_CALLS_SECONDS)
        finally:
            await self._close()

    async def _close(self) -> None:
        # Ports last: clients give up on a refused one sooner than on a broker that says so.
        await self._broker.close()
        for server in self._servers:
            await server.stop(GRACE_SECONDS)
        if self._pages is not None:
            await self._pages.close()
        self._rendering.stop()


def engine_named(name: str) -> Engine:
    """Return the engine of that name."""
    # Imported here, because each brings libraries the other does not need.
    if name == "grpcio":
        from pydanube.wire.grpcio.engine import GrpcioEngine

        return GrpcioEngine()
    if name == "http2":
        return Http2Engine(limits=Http2Limits(message_bytes_max=REQUEST_BYTES_MAX))
    raise InvalidRequest(f"there is no engine {name!r}; there are http2 and grpcio")


def run_broker(
    config: BrokerConfig,
    *,
    engine: str = DEFAULT_ENGINE,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Run a broker until SIGTERM or SIGINT.

    DanubeError says why it could not start, or that it could not keep a promise when it stopped.
    """
    log_to_stderr(log_level, log_format)
    raise_descriptors_max()
    for notice in config.notices():
        _log.warning(notice)
    run(_run_until_stopped(config, engine_named(engine)))


async def _run_until_stopped(config: BrokerConfig, engine: Engine) -> None:
    with StopSignals() as signals:
        server = await signals.unless_asked(
            BrokerServer.start(config, engine=engine),
            seconds_max=START_GIVE_UP_SECONDS,
            overdue=_end_unfinished,
        )
        if server is None:
            _log.info("stopped before it served", signal=await signals.wait())
            return
        _log.info(
            "listening",
            client=server.client_port,
            admin=server.admin_port,
            metrics=server.metrics_port,
            clients_max=server.clients_max,
        )
        # What is here stays; looking through it for garbage would stop everything for 40 ms.
        gc.collect()
        gc.freeze()
        gave_up = await signals.unless_asked(server.wait_until_given_up())
        if gave_up is not None:
            await server.abandon()
            end_process(gave_up)
        _log.info("stopping", signal=await signals.wait())
        try:
            await server.stop()
        except Unavailable:
            if server.gave_up is None or not server.gave_up.hangs:
                raise
            end_process(server.gave_up)
        _log.info("stopped")


def _end_unfinished() -> None:
    """End a start that was given up, and waits for a disk that hangs."""
    _log.error("the disk hangs; ending without it", exit_code=EXIT_CODE)
    end_at_once(EXIT_CODE)


def _cannot_listen(name: str, address: Address, error: OSError) -> Conflict:
    return Conflict(
        f"cannot listen on {address} for the {name} port: {error.strerror or error}; stop what "
        f"uses it, or choose another port (broker.ports.{name})"
    )
