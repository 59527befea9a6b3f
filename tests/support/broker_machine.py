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
from pydanube.broker.server import BrokerServer
from pydanube.errors import Conflict, DanubeError, Unavailable
from pydanube.model.policies import Policies
from pydanube.runtime.clock import Timer
from pydanube.runtime.machine import Machine
from pydanube.runtime.randomness import Randomness, SeededRandomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.network import SimulatedNetwork
from pydanube.storage.config import LocalRetention, Rotation, Segments, StorageConfig, Wal
from tests.support.plain_engine import PlainEngine

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
    """A clock whose timers do not fire any more once its process is dead."""

    def __init__(self, skew_ms: int = 0) -> None:
        super().__init__(skew_ms=skew_ms)
        self.alive = True

    @override
    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return super().call_later(seconds, lambda: callback() if self.alive else None)


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
    ) -> None:
        self._config = config
        self.disk = disk
        self._network = network
        self._randomness = randomness
        self._note = note
        self._server: BrokerServer | None = None
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

    @property
    def server(self) -> BrokerServer | None:
        """The broker, while it serves."""
        return self._server

    @property
    def is_busy(self) -> bool:
        """Whether it is starting or stopping."""
        return self._work is not None and not self._work.done()

    @property
    def has_failed(self) -> bool:
        """Whether the broker says that only a restart can help it."""
        return self._server is not None and self._server._broker.failure is not None

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
        clock = self._clock = MortalClock(self._skew_ms)
        host = self._network.host(HOST)
        machine = Machine(
            clock=clock,
            files=self.disk.mount(),
            network=host,
            randomness=SeededRandomness(f"broker {self._randomness.below(2**32)}"),
        )
        self._note(f"broker starts, number {self.boots}")
        try:
            server = await BrokerServer.start(
                self._config, engine=PlainEngine(host), machine=machine
            )
        except Unavailable as error:
            self._note(f"broker could not start: {error}")
            self._end_process()
        except Exception as error:
            if not self.disk.stopped:
                self.complaints.append(f"the broker refused to start: {error!r}")
                self.refused.set()
            self._note(f"broker refused to start: {error!r}")
            self._end_process()
        else:
            if clock.alive:
                self._server = server
                self._note("broker serves")
            else:
                self.complaints.append("a start went on although it had been cancelled")
                self._graves.append(asyncio.create_task(_close(server), name="broker's end"))

    async def stop(self) -> None:
        """Stop the broker in order, unless something ends it before."""
        assert self._server is not None, "no broker is running"
        server, self._server = self._server, None
        self._note("broker is told to stop")
        work = self._work = asyncio.create_task(self._stop(server), name="broker stop")
        await asyncio.wait([work])

    async def _stop(self, server: BrokerServer) -> None:
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await server.stop()
        except TimeoutError:
            self.complaints.append(f"the broker did not stop within {STOP_SECONDS_MAX:g} s")
        except Exception as error:
            self.complaints.append(f"stopping failed: {error!r}")
        self._end_process()
        self._note("broker has stopped")

    def kill(self) -> None:
        """Kill the process: what it has written stays."""
        self._note("broker is killed")
        self.disk.kill()
        self._network.kill(HOST)
        self._bury()

    def cut_power(self, randomness: Randomness) -> None:
        """Stop the machine: what was not synced is lost, torn or kept."""
        self._note("power loss")
        self.disk.crash(randomness)
        self._network.crash(HOST)
        self._bury()

    def _end_process(self) -> None:
        """Do what the operating system does when a process has ended by itself."""
        self._clock.alive = False
        self.disk.kill()
        with suppress(ConnectionError):
            self._network.kill(HOST)

    def _bury(self) -> None:
        self._clock.alive = False
        if self._work is not None and not self._work.done():
            self._work.cancel()
            self._graves.append(self._work)
        server, self._server = self._server, None
        if server is not None:
            self._graves.append(asyncio.create_task(_close(server), name="broker's end"))

    def jump_clock(self, milliseconds: int) -> None:
        """Set the wall clock."""
        self._note(f"wall clock jumps by {milliseconds} ms")
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


async def _close(server: BrokerServer) -> None:
    # Its disk and its network are gone, so this changes nothing; it only ends its tasks.
    with suppress(DanubeError, OSError, Conflict):
        await server._close()
