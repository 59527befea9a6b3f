"""Breaks what can be broken, by seed, and starts the broker again whenever it is down."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields, replace

from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.disk_faults import OperationName
from pydanube.runtime.simulation.network import SimulatedNetwork
from tests.support.broker_machine import HOST, BrokerMachine
from tests.support.history import History

_LOOK_SECONDS = 0.1
_FAILING: tuple[OperationName, ...] = (
    *("sync", "sync", "sync", "append", "create", "rename", "sync_directory", "remove"),
)
_EXHAUSTING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_JUMP_MS_MAX = 3_600_000


@dataclass(frozen=True, slots=True)
class Faults:
    """What may go wrong."""

    power: bool = False
    """The machine loses power: unsynced bytes and names are lost, torn or reordered."""
    kill: bool = False
    """The process is killed; the operating system keeps what was written."""
    stop: bool = False
    """The broker is told to stop."""
    instant: bool = False
    """The power fails at the worst moment: at an operation of the disk, before or after it, or
    when somebody has just been told that something is done."""
    network: bool = False
    """Connections break, ways are cut in one or both directions, messages take long."""
    slow_disk: bool = False
    sick_disk: bool = False
    """One operation fails that changes the disk."""
    sick_reads: bool = False
    """Some reads fail."""
    full_disk: bool = False
    clock: bool = False
    """The wall clock jumps."""
    no_descriptors: bool = False
    """Nothing can be opened for a while."""

    @classmethod
    def every(cls) -> "Faults":
        return cls(**{each.name: True for each in fields(cls)})

    @classmethod
    def drawn(cls, randomness: Randomness) -> "Faults":
        """Return some of them; now and then none."""
        if randomness.below(8) == 0:
            return cls()
        drawn = cls(**{each.name: randomness.below(2) == 0 for each in fields(cls)})
        # Few worlds are without the two that everything here is about.
        return replace(drawn, power=drawn.power or randomness.below(2) == 0)

    @property
    def any(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))


class Nemesis:
    """Injects faults for a while, then heals everything. A quarter of the time it rests."""

    def __init__(
        self,
        faults: Faults,
        machine: BrokerMachine,
        network: SimulatedNetwork,
        client_hosts: Sequence[str],
        randomness: Randomness,
        history: History,
    ) -> None:
        self._machine = machine
        self._network = network
        self._client_hosts = client_hosts
        self._randomness = randomness
        self._history = history
        self._note = history.note
        self._may_fail = faults.sick_disk
        self._deeds = self._possible(faults)
        self.injected: dict[str, int] = {}

    def _possible(self, faults: Faults) -> list[Callable[[], Awaitable[None]]]:
        deeds: list[Callable[[], Awaitable[None]]] = []
        if faults.power:
            deeds += [self._cut_power, self._cut_power]
        if faults.kill:
            deeds.append(self._kill)
        if faults.stop:
            deeds.append(self._stop)
        if faults.instant:
            deeds += [
                self._cut_power_at_an_operation,
                self._cut_power_while_recovering,
                self._cut_power_after_an_answer,
                self._cut_power_after_an_answer,
            ]
        if faults.network:
            deeds += [
                self._break_connections,
                self._lose_answers,
                self._cut,
                self._cut_one_way,
                self._delay,
            ]
        if faults.slow_disk:
            deeds.append(self._slow_disk)
        if faults.sick_disk:
            deeds.append(self._fail_once)
        if faults.sick_reads:
            deeds.append(self._fail_reads)
        if faults.full_disk:
            deeds.append(self._fill_disk)
        if faults.clock:
            deeds.append(self._jump_clock)
        if faults.no_descriptors:
            deeds.append(self._use_descriptors_up)
        return deeds

    async def run(self, seconds: float) -> None:
        """Do harm for that long, then mend everything."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        async with asyncio.TaskGroup() as deeds:
            while self._deeds and loop.time() < end:
                await asyncio.sleep(self._randomness.uniform(0.1, 2.5))
                if self._randomness.below(4) == 0:
                    await asyncio.sleep(self._randomness.uniform(1.0, 3.0))
                    continue
                deed = self._deeds[self._randomness.below(len(self._deeds))]
                name = deed.__name__.strip("_")
                self.injected[name] = self.injected.get(name, 0) + 1
                deeds.create_task(deed())
        self.heal()

    def heal(self) -> None:
        """Mend disk and network; the broker is seen to by `keep_running`."""
        self._note("everything is healed")
        self._network.heal()
        for host in self._client_hosts:
            self._mend_delay(host)
        self._machine.disk.capacity_bytes = None
        self._machine.disk.exhaust(None)
        for name in ("sync", "append", "read"):
            self._machine.disk.slow(name, 0.0)

    async def keep_running(self) -> None:
        """Start the broker whenever it is down, and restart it when it asks for that; for ever."""
        machine = self._machine
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if machine.disk.stopped:
                machine.cut_power(self._randomness)
            elif machine.has_failed and not machine.is_busy:
                await self._restart_failed()
            elif machine.server is None and not machine.is_busy:
                await asyncio.sleep(self._randomness.uniform(0.0, 1.5))
                if machine.server is None and not machine.is_busy and not machine.disk.stopped:
                    await machine.start()

    async def _restart_failed(self) -> None:
        if not self._may_fail:
            failure = self._machine.server._broker.failure if self._machine.server else None
            self._machine.complaints.append(f"gave up, though no write or sync failed: {failure}")
        await asyncio.sleep(self._randomness.uniform(0.0, 1.0))
        machine = self._machine
        if not machine.has_failed:
            return
        self._note("broker has failed and is restarted")
        match self._randomness.below(3):
            case 0:
                machine.kill()
            case 1:
                machine.cut_power(self._randomness)
            case _:
                await machine.stop()

    # Deeds.

    async def _cut_power(self) -> None:
        self._machine.cut_power(self._randomness)

    async def _kill(self) -> None:
        if self._machine.server is not None or self._machine.is_busy:
            self._machine.kill()

    async def _stop(self) -> None:
        if self._machine.server is not None and not self._machine.is_busy:
            await self._machine.stop()

    async def _cut_power_at_an_operation(self) -> None:
        disk = self._machine.disk
        if not disk.stopped:
            number = disk.operations + 1 + self._randomness.below(30)
            self._note(f"power will fail at operation {number}")
            disk.crash_at(number, after=self._randomness.below(2) == 0)

    async def _cut_power_while_recovering(self) -> None:
        self._machine.cut_power(self._randomness)
        disk = self._machine.disk
        disk.crash_at(
            disk.operations + 1 + self._randomness.below(25), after=self._randomness.below(2) == 0
        )

    async def _cut_power_after_an_answer(self) -> None:
        waiting = asyncio.get_running_loop().create_future()

        def answered() -> None:
            self._history.answered = lambda: None
            waiting.set_result(None)

        self._history.answered = answered
        # An answer that comes before its sync shall come well before it.
        self._machine.disk.slow("sync", self._randomness.uniform(0.0, 0.4))
        await asyncio.wait([waiting], timeout=self._randomness.uniform(0.5, 3.0))
        self._machine.disk.slow("sync", 0.0)
        if waiting.done():
            self._machine.cut_power(self._randomness)
        else:
            waiting.cancel()
            self._history.answered = lambda: None

    def _some_host(self) -> str:
        return self._client_hosts[self._randomness.below(len(self._client_hosts))]

    async def _break_connections(self) -> None:
        host = self._some_host()
        self._note(f"connections of {host} break")
        self._network.break_connections(host, HOST)

    async def _lose_answers(self) -> None:
        """Let requests through and break the connections while their answers are on the way."""
        host = self._some_host()
        self._note(f"answers to {host} get lost")
        self._network.slow(HOST, host, (2.0, 3.0))
        await asyncio.sleep(self._randomness.uniform(0.5, 1.9))
        self._network.break_connections(host, HOST)
        self._mend_delay(host)

    async def _cut(self) -> None:
        host = self._some_host()
        self._note(f"{host} is cut off")
        self._network.cut_both_ways(host, HOST)
        await asyncio.sleep(self._randomness.uniform(0.2, 6.0))
        self._note(f"{host} is reached again")
        self._network.mend(host, HOST)

    async def _cut_one_way(self) -> None:
        host = self._some_host()
        way = (host, HOST) if self._randomness.below(2) else (HOST, host)
        self._note(f"nothing passes from {way[0]} to {way[1]}")
        self._network.cut(*way)
        await asyncio.sleep(self._randomness.uniform(0.2, 6.0))
        self._note(f"{host} is reached again")
        self._network.mend(host, HOST)

    async def _delay(self) -> None:
        host = self._some_host()
        longest = self._randomness.uniform(0.05, 1.5)
        self._note(f"up to {longest:.2f} s between {host} and the broker")
        self._network.slow(host, HOST, (0.0, longest))
        self._network.slow(HOST, host, (0.0, longest))
        await asyncio.sleep(self._randomness.uniform(0.5, 5.0))
        self._mend_delay(host)

    def _mend_delay(self, host: str) -> None:
        self._network.slow(host, HOST, self._network.links.delay_seconds)
        self._network.slow(HOST, host, self._network.links.delay_seconds)

    async def _slow_disk(self) -> None:
        names: tuple[OperationName, ...] = ("sync", "append", "read")
        name = names[self._randomness.below(len(names))]
        seconds = self._randomness.uniform(0.01, 0.6)
        self._note(f"every {name} takes {seconds:.2f} s longer")
        self._machine.disk.slow(name, seconds)
        await asyncio.sleep(self._randomness.uniform(0.5, 4.0))
        self._machine.disk.slow(name, 0.0)

    async def _fail_once(self) -> None:
        name = _FAILING[self._randomness.below(len(_FAILING))]
        self._note(f"the next {name} will fail")
        self._machine.disk.fail_next(name, OSError(errno.EIO, "the disk is ill"))

    async def _fail_reads(self) -> None:
        count = 1 + self._randomness.below(4)
        self._note(f"the next {count} reads will fail")
        for _ in range(count):
            self._machine.disk.fail_next("read", OSError(errno.EIO, "the disk is ill"))

    async def _fill_disk(self) -> None:
        disk = self._machine.disk
        room = self._randomness.below(6_000)
        self._note(f"the disk has {room} bytes left")
        disk.capacity_bytes = disk._medium.used_bytes() + room
        await asyncio.sleep(self._randomness.uniform(0.5, 4.0))
        self._note("the disk has room again")
        disk.capacity_bytes = None

    async def _use_descriptors_up(self) -> None:
        number = _EXHAUSTING[self._randomness.below(len(_EXHAUSTING))]
        self._note(f"nothing can be opened: {os.strerror(number)}")
        self._machine.disk.exhaust(number)
        await asyncio.sleep(self._randomness.uniform(0.2, 4.0))
        self._note("files can be opened again")
        self._machine.disk.exhaust(None)

    async def _jump_clock(self) -> None:
        self._machine.jump_clock(self._randomness.below(2 * _JUMP_MS_MAX) - _JUMP_MS_MAX)
