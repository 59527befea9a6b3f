"""A machine with a broker on it, whose power, disk, network and clock are in the test's hand."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from msgspec.structs import replace
from typing_extensions import override

from pydanube.broker.config import (
    AdvertisedListeners,
    BrokerConfig,
    Listeners,
    Ports,
    standalone_config,
)
from pydanube.broker.metadata import Peers
from pydanube.broker.server import BrokerServer
from pydanube.errors import Conflict, DanubeError, Unavailable
from pydanube.model.policies import Policies
from pydanube.runtime.clock import Timer
from pydanube.runtime.files import Files
from pydanube.runtime.machine import Machine
from pydanube.runtime.randomness import Randomness, SeededRandomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.network import SimulatedHost, SimulatedNetwork
from pydanube.storage.config import LocalRetention, Rotation, Segments, StorageConfig, Wal
from pydanube.wire.calls import ExchangeChannel
from tests.support.plain_engine import PlainChannel, PlainEngine
from tests.support.rough_wire import RoughChannel, RoughWire

HOST = "broker"
CLIENT_PORT, ADMIN_PORT = 6650, 50051
DATA = "/data"
STOP_SECONDS_MAX = 120.0
_LOOK_MINUTES: Any = 0.05
"""Less than an operator may choose."""


def simulated_config(
    *,
    file_bytes_max: int,
    tail_cache_bytes_max: int,
    window: int = 10,
    segments: Segments | None = None,
    policies: Policies | None = None,
) -> BrokerConfig:
    """Return a configuration whose limits are so small that a short life reaches them."""
    config = standalone_config(DATA)
    # Built without `convert`, so that limits may be smaller than any operator should set them.
    storage = StorageConfig(
        local_wal_root=f"{DATA}/wal",
        wal=Wal(rotation=Rotation(max_bytes=file_bytes_max)),
        tail_cache_bytes_max=tail_cache_bytes_max,
        segments=segments or Segments(),
        # Minutes, and at once: what has been exported is deleted as soon as anybody looks.
        local_retention=LocalRetention(time_minutes=0, check_interval_minutes=_LOOK_MINUTES),
    )
    url = f"http://{HOST}:{CLIENT_PORT}"
    listeners = Listeners(
        ports=Ports(client=CLIENT_PORT, admin=ADMIN_PORT),
        advertised_listeners=AdvertisedListeners(broker_url=url, connect_url=url),
    )
    dispatch = replace(config.dispatch, max_unacked_messages=window)
    return replace(
        config,
        storage=storage,
        broker=listeners,
        dispatch=dispatch,
        policies=policies or config.policies,
    )


class MortalClock(SimulatedClock):
    """A clock whose timers do not fire any more once its process is dead.

    While the process is paused they wait; its monotonic time goes on meanwhile, as a real one does.
    """

    def __init__(self, skew_ms: int = 0, rate: float = 1.0) -> None:
        super().__init__(skew_ms=skew_ms, rate=rate)
        self.alive = True
        self._resumes_at = 0.0

    def pause(self, seconds: float) -> None:
        """Let no timer fire for that long."""
        self._resumes_at = max(self._resumes_at, self.monotonic_seconds() + seconds)

    @property
    def paused_seconds(self) -> float:
        """How long no timer will fire."""
        return max(0.0, self._resumes_at - self.monotonic_seconds())

    @override
    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        while self.paused_seconds:
            await super().sleep(self.paused_seconds)

    @override
    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return _MortalTimer(self, seconds, callback)


class _MortalTimer:
    def __init__(self, clock: MortalClock, seconds: float, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        self._timer = SimulatedClock.call_later(self._clock, seconds, self._fire)

    def _fire(self) -> None:
        if self._clock.alive and self._clock.paused_seconds:
            self._wait(self._clock.paused_seconds)
        elif self._clock.alive:
            self._callback()

    def cancel(self) -> None:
        self._timer.cancel()


class BrokerMachine:
    """Runs one broker at a time on one disk. Its starts, stops and deaths may come in any order.

    `complaints` collects what a broker must never do: fail a task, refuse to start on a healthy
    disk, hang in a stop.
    """

    def __init__(
        self,
        config: BrokerConfig,
        disk: SimulatedDisk,
        network: SimulatedNetwork,
        randomness: Randomness,
        note: Callable[[str], None],
        *,
        name: str = HOST,
        wire: RoughWire | None = None,
        clock_rate: float = 1.0,
    ) -> None:
        self.config = config
        self.name = name
        self.disk = disk
        self._network = network
        self._randomness = randomness
        self._note = note
        self._wire = wire
        self._clock_rate = clock_rate
        self._server: BrokerServer | None = None
        self._starting: BrokerServer | None = None
        """The broker that was started last."""
        self._work: asyncio.Task[None] | None = None
        """Starting or stopping."""
        self._graves: list[asyncio.Task[None]] = []
        self._clock = MortalClock()
        self._skew_ms = 0
        self.boots = 0
        self.complaints: list[str] = []
        self.refused = asyncio.Event()
        """It does not start, and no healing will help."""
        self.on_boot: Callable[[], None] = lambda: None
        self.on_death: Callable[[], None] = lambda: None
        self.files: Files | None = None
        """The disk as the broker sees it that was started last."""

    @property
    def server(self) -> BrokerServer | None:
        """The broker, while it serves."""
        return self._server

    @property
    def clock(self) -> MortalClock:
        """The clock of the broker that was started last."""
        return self._clock

    @property
    def is_busy(self) -> bool:
        """Whether it is starting or stopping."""
        return self._work is not None and not self._work.done()

    @property
    def has_failed(self) -> bool:
        """Whether the broker has given up, so that its process ends, or begins anew."""
        return self._server is not None and self._server.gave_up is not None

    async def start(self) -> bool:
        """Start the broker and wait until it serves; False if that failed or was interrupted."""
        assert self._server is None, "a broker is running"
        assert not self.is_busy, "a broker is starting or stopping"
        work = self._work = asyncio.create_task(self._start(), name="broker start")
        await asyncio.wait([work])
        return self._server is not None

    async def _start(self) -> None:
        self.boots += 1
        self.on_boot()
        clock = self._clock = MortalClock(self._skew_ms, self._clock_rate)
        host = self._network.host(self.name)
        machine = Machine(
            clock=clock,
            files=self._mount(),
            network=host,
            randomness=SeededRandomness(f"broker {self._randomness.below(2**32)}"),
        )
        self._note(f"{self.name} starts, number {self.boots}")
        try:
            server = await self._serve(machine, PlainEngine(host), peers_of(host, self._wire))
        except Unavailable as error:
            self._note(f"{self.name} could not start: {error}")
            self._end_process()
        except Exception as error:
            if not self.disk.stopped:
                self.complaints.append(f"the broker refused to start: {error!r}")
                self.refused.set()
            self._note(f"{self.name} refused to start: {error!r}")
            self._end_process()
        else:
            if clock.alive:
                self._server = server
                self._note(f"{self.name} serves")
            else:
                self.complaints.append("a start went on although it had been cancelled")
                self._graves.append(asyncio.create_task(_close(server), name="broker's end"))

    def _mount(self) -> Files:
        self.files = self.disk.mount()
        return self.files

    async def _serve(self, machine: Machine, engine: PlainEngine, peers: Peers) -> BrokerServer:
        server = self._starting = BrokerServer(self.config, machine, engine, peers)
        try:
            await server._serve()
        except BaseException:
            await server._close()
            raise
        return server

    async def stop(self) -> None:
        """Stop the broker in order, unless something ends it before."""
        assert self._server is not None, "no broker is running"
        server, self._server = self._server, None
        self._note(f"{self.name} is told to stop")
        work = self._work = asyncio.create_task(self._stop(server), name="broker stop")
        await asyncio.wait([work])

    async def _stop(self, server: BrokerServer) -> None:
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await server.stop()
        except Unavailable as error:
            if server.gave_up is None or not server.gave_up.hangs:
                self.complaints.append(f"stopping failed: {error!r}")
            self._graves.append(asyncio.create_task(_end(server, None), name="broker's end"))
        except TimeoutError:
            self.complaints.append(f"the broker did not stop within {STOP_SECONDS_MAX:g} s")
        except Exception as error:
            self.complaints.append(f"stopping failed: {error!r}")
        self._end_process()
        self._note(f"{self.name} has stopped")

    def kill(self) -> None:
        """Kill the process: what it has written stays."""
        self._note(f"{self.name} is killed")
        self.disk.kill()
        self._network.kill(self.name)
        self._bury()

    def cut_power(self, randomness: Randomness) -> None:
        """Stop the machine: what was not synced is lost, torn or kept."""
        self._note(f"power loss of {self.name}")
        self.disk.crash(randomness)
        self._network.crash(self.name)
        self._bury()

    def _end_process(self) -> None:
        """Do what the operating system does when a process has ended by itself."""
        self._clock.alive = False
        self.disk.kill()
        with suppress(ConnectionError):
            self._network.kill(self.name)

    def _bury(self) -> None:
        self._clock.alive = False
        self.on_death()
        server, self._server = self._server, None
        if self.config.is_clustered and self._starting is not None:
            end = _end(self._starting, self._work)
            self._graves.append(asyncio.create_task(end, name="broker's end"))
            self._starting = self._work = None
            return
        if self._work is not None and not self._work.done():
            self._work.cancel()
            self._graves.append(self._work)
        if server is not None:
            self._graves.append(asyncio.create_task(_close(server), name="broker's end"))

    def pause(self, seconds: float) -> None:
        """Let the process stand still as far as it is up to its timers."""
        self._clock.pause(seconds)

    def jump_clock(self, milliseconds: int) -> None:
        """Set the wall clock."""
        self._note(f"wall clock of {self.name} jumps by {milliseconds} ms")
        self._skew_ms += milliseconds
        self._clock.jump(milliseconds)

    async def close(self) -> None:
        """End everything."""
        if self._server is not None:
            await self.stop()
        await asyncio.gather(*self._graves, return_exceptions=True)

    @contextmanager
    def listening_to_logs(self) -> Iterator[None]:
        """Take the broker's log: a failed task is a complaint, all else goes to the trace."""
        logger = logging.getLogger("pydanube")
        handler = _Handler(self)
        before = logger.propagate, logger.level
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.propagate, level = before
            logger.setLevel(level)

    def take_log(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._note(f"broker says: {text}")
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno >= logging.ERROR and error is not None and not isinstance(error, OSError):
            self.complaints.append(f"{text}: {error!r}")


class _Handler(logging.Handler):
    def __init__(self, machine: BrokerMachine) -> None:
        super().__init__()
        self._machine = machine

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self._machine.take_log(record)


def peers_of(host: SimulatedHost, wire: RoughWire | None = None) -> Peers:
    """Return how the broker on a host talks to others."""

    def connect(address: str) -> ExchangeChannel:
        name, _, port = address.partition(":")
        if wire is not None:
            return RoughChannel(wire, host, name, int(port))
        return PlainChannel(host, name, int(port))

    return Peers(engine=PlainEngine(host), connect=connect)


async def _end(server: BrokerServer, work: asyncio.Task[None] | None) -> None:
    """End a dead broker of a cluster, which would wait for others if it were asked to close."""
    await server._broker._tasks.close()
    await server._broker._storage_tasks.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_SECONDS_MAX):
            if work is not None and not work.done():
                work.cancel()
                await asyncio.wait([work])
            await _close(server)


async def _close(server: BrokerServer) -> None:
    # Its disk and its network are gone, so this changes nothing; it only ends its tasks.
    with suppress(DanubeError, OSError, Conflict):
        await server._close()
