"""Breaks a cluster, by seed: its machines, its network, its disks, and what operators do to it."""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.network import SimulatedNetwork
from tests.support.broker_machine import DATA, BrokerMachine
from tests.support.cluster_plans import ClusterFaults
from tests.support.faulty_store import Cloud
from tests.support.plans import CLIENT_HOSTS, pick
from tests.support.rough_wire import RoughWire

_LOOK_SECONDS = 0.1
_JUMP_MS_MAX = 3_600_000
_RETURN_SECONDS = 3.0
_STORE_FAULT_PERCENT = 20
_CALL_TROUBLE_PERCENT_MAX = 15
_PLACES = (f"{DATA}/wal", f"{DATA}/wal", f"{DATA}/raft", DATA)
"""Journal and metadata may lie on one disk, or on two."""

Deed = Callable[[], Awaitable[None]]


class Operators(Protocol):
    """People who look after the cluster while it is being broken."""

    async def move_topic(self) -> None: ...

    async def move_unheard(self) -> None: ...

    async def move_unsure(self) -> None: ...

    async def drain_broker(self) -> None: ...

    async def replace_machine(self) -> None: ...

    async def change_members(self) -> None: ...


class ClusterNemesis:
    """Injects faults for a while, then heals everything."""

    def __init__(
        self,
        faults: ClusterFaults,
        machines: dict[str, BrokerMachine],
        network: SimulatedNetwork,
        cloud: Cloud,
        wire: RoughWire,
        operators: Operators,
        randomness: Randomness,
        note: Callable[[str], None],
        gap_seconds: float,
    ) -> None:
        self._machines = machines
        self._network = network
        self._cloud = cloud
        self._wire = wire
        self._operators = operators
        self._randomness = randomness
        self._note = note
        self._gap_seconds = gap_seconds
        self._deeds = self._possible(faults)
        self.injected: dict[str, int] = {}
        self._starts: dict[str, asyncio.Task[bool]] = {}
        self.away: dict[str, float] = {}
        """Machines that shall not be started before a moment."""

    def _possible(self, faults: ClusterFaults) -> list[tuple[str, Deed]]:
        deeds: dict[str, Deed] = {
            "kill": self._kill,
            "power": self._cut_power,
            "stop": self._stop,
            "partition": self._partition,
            "one_way": self._cut_one_way,
            "delay": self._delay,
            "breaks": self._break_connections,
            "pause": self._pause,
            "clock": self._jump_clock,
            "move": self._operators.move_topic,
            "drain": self._operators.drain_broker,
            "wipe": self._operators.replace_machine,
            "members": self._operators.change_members,
            "slow_disk": self._slow_disk,
            "store": self._fail_store,
            "calls": self._disturb_calls,
            "unheard": self._operators.move_unheard,
            "unsure": self._operators.move_unsure,
            "sick_disk": self._sicken_disk,
            "room": self._leave_no_room,
        }
        # Those without a deed are there from the beginning.
        return [(name, deed) for name, deed in deeds.items() if getattr(faults, name)]

    async def run(self, seconds: float) -> None:
        """Do harm for that long, then mend everything."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        async with asyncio.TaskGroup() as deeds:
            while self._deeds and loop.time() < end:
                await asyncio.sleep(self._randomness.uniform(0.05, self._gap_seconds))
                name, deed = pick(self._randomness, self._deeds)
                self.injected[name] = self.injected.get(name, 0) + 1
                deeds.create_task(deed())
        self._heal()

    def _heal(self) -> None:
        self._note("everything is healed")
        self._network.heal()
        self._cloud.fault_percent = 0
        self._wire.trouble_percent = 0
        self.away.clear()
        hosts = [*self._machines, *CLIENT_HOSTS]
        for one in hosts:
            for other in hosts:
                self._network.slow(one, other, self._network.links.delay_seconds)
        for machine in self._machines.values():
            machine.disk.slow("sync", 0.0)
            machine.disk.exhaust(None)
            machine.disk.capacity_bytes = None

    async def keep_running(self) -> None:
        """Start every broker that is down, and restart those that ask for it; for ever."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for machine in list(self._machines.values()):
                if machine.has_failed and not machine.is_busy:
                    self._note(f"{machine.name} has failed and is killed")
                    machine.kill()
                elif self._may_start(machine):
                    # Not waited for: it may need the others, which are down, too.
                    self._starts[machine.name] = asyncio.create_task(
                        machine.start(), name=f"start of {machine.name}"
                    )

    def _may_start(self, machine: BrokerMachine) -> bool:
        away = self.away.get(machine.name, 0.0) > asyncio.get_running_loop().time()
        return machine.server is None and not machine.is_busy and not away

    def _some_machine(self) -> BrokerMachine:
        return pick(self._randomness, list(self._machines.values()))

    def _stay_away(self, machine: BrokerMachine) -> None:
        seconds = self._randomness.uniform(0.1, _RETURN_SECONDS)
        self.away[machine.name] = asyncio.get_running_loop().time() + seconds

    # Deeds.

    async def _kill(self) -> None:
        machine = self._some_machine()
        if machine.server is not None or machine.is_busy:
            machine.kill()
            self._stay_away(machine)

    async def _cut_power(self) -> None:
        machine = self._some_machine()
        if machine.server is not None or machine.is_busy:
            machine.cut_power(self._randomness)
            self._stay_away(machine)

    async def _stop(self) -> None:
        machine = self._some_machine()
        if machine.server is not None and not machine.is_busy:
            await machine.stop()
            self._stay_away(machine)

    async def _partition(self) -> None:
        names = list(self._machines)
        alone = [pick(self._randomness, names)]
        if len(names) > 3 and self._randomness.below(2):
            alone.append(pick(self._randomness, names))
        alone += [host for host in CLIENT_HOSTS if self._randomness.below(3) == 0]
        others = [host for host in (*names, *CLIENT_HOSTS) if host not in alone]
        if self._randomness.below(2):
            # Clients reach everybody; only brokers do not reach each other.
            alone = [host for host in alone if host in names]
            others = [host for host in others if host in names]
        self._note(f"{', '.join(alone)} cut off")
        for one in alone:
            for other in others:
                self._network.cut_both_ways(one, other)
        await asyncio.sleep(self._randomness.uniform(0.2, 5.0))
        self._mend(alone, others)

    def _mend(self, some: Sequence[str], others: Sequence[str]) -> None:
        self._note(f"{', '.join(some)} reached again")
        for one in some:
            for other in others:
                self._network.mend(one, other)

    async def _cut_one_way(self) -> None:
        machine = self._some_machine()
        others = [name for name in (*self._machines, *CLIENT_HOSTS) if name != machine.name]
        if self._randomness.below(2):
            others = [pick(self._randomness, others)]
        outward = self._randomness.below(2) == 0
        way = "from" if outward else "to"
        self._note(f"nothing passes {way} {machine.name} {way} {', '.join(others)}")
        for other in others:
            self._network.cut(*((machine.name, other) if outward else (other, machine.name)))
        await asyncio.sleep(self._randomness.uniform(0.2, 4.0))
        self._mend([machine.name], others)

    async def _delay(self) -> None:
        machine = self._some_machine()
        longest = self._randomness.uniform(0.02, 0.5)
        others = [name for name in (*self._machines, *CLIENT_HOSTS) if name != machine.name]
        self._note(f"up to {longest:.2f} s from and to {machine.name}")
        for other in others:
            self._network.slow(machine.name, other, (0.0, longest))
            self._network.slow(other, machine.name, (0.0, longest))
        await asyncio.sleep(self._randomness.uniform(0.5, 4.0))
        for other in others:
            self._network.slow(machine.name, other, self._network.links.delay_seconds)
            self._network.slow(other, machine.name, self._network.links.delay_seconds)

    async def _break_connections(self) -> None:
        machine = self._some_machine()
        others = [name for name in (*self._machines, *CLIENT_HOSTS) if name != machine.name]
        other = pick(self._randomness, others)
        self._note(f"connections between {machine.name} and {other} break")
        if self._randomness.below(2):
            # Requests get through; their answers do not.
            self._network.slow(machine.name, other, (1.0, 2.0))
            await asyncio.sleep(self._randomness.uniform(0.2, 0.9))
            self._network.slow(machine.name, other, self._network.links.delay_seconds)
        with suppress(ConnectionError):
            self._network.break_connections(machine.name, other)

    async def _pause(self) -> None:
        machine = self._some_machine()
        seconds = self._randomness.uniform(0.3, 4.0)
        others = [name for name in (*self._machines, *CLIENT_HOSTS) if name != machine.name]
        self._note(f"{machine.name} stands still for {seconds:.2f} s")
        machine.pause(seconds)
        machine.disk.slow("sync", seconds)
        for other in others:
            self._network.cut_both_ways(machine.name, other)
        await asyncio.sleep(seconds)
        self._note(f"{machine.name} goes on")
        machine.disk.slow("sync", 0.0)
        for other in others:
            self._network.mend(machine.name, other)

    async def _jump_clock(self) -> None:
        self._some_machine().jump_clock(self._randomness.below(2 * _JUMP_MS_MAX) - _JUMP_MS_MAX)

    async def _slow_disk(self) -> None:
        machine = self._some_machine()
        seconds = self._randomness.uniform(0.01, 0.5)
        self._note(f"every sync of {machine.name} takes {seconds:.2f} s longer")
        machine.disk.slow("sync", seconds)
        await asyncio.sleep(self._randomness.uniform(0.5, 3.0))
        machine.disk.slow("sync", 0.0)

    async def _sicken_disk(self) -> None:
        """Nothing heals what hangs but the end of the process, so it is for the broker to see."""
        machine = self._some_machine()
        place = pick(self._randomness, _PLACES)
        if self._randomness.below(2):
            self._note(f"a sync fails on {machine.name} in {place}")
            machine.disk.fail_next("sync", OSError(errno.EIO, "the disk is ill"), under=place)
        else:
            self._note(f"writes hang on {machine.name} in {place}")
            machine.disk.hang(under=place)

    async def _leave_no_room(self) -> None:
        machine = self._some_machine()
        if self._randomness.below(2):
            self._note(f"{machine.name} can open nothing")
            machine.disk.exhaust(errno.EMFILE)
        else:
            room = self._randomness.below(3_000)
            self._note(f"the disk of {machine.name} has {room} bytes left")
            machine.disk.capacity_bytes = machine.disk._medium.used_bytes() + room
        await asyncio.sleep(self._randomness.uniform(0.2, 4.0))
        self._note(f"{machine.name} has room again")
        machine.disk.exhaust(None)
        machine.disk.capacity_bytes = None

    async def _fail_store(self) -> None:
        self._note("the store of segments fails now and then")
        self._cloud.fault_percent = _STORE_FAULT_PERCENT
        await asyncio.sleep(self._randomness.uniform(0.5, 3.0))
        self._cloud.fault_percent = 0

    async def _disturb_calls(self) -> None:
        self._wire.trouble_percent = 1 + self._randomness.below(_CALL_TROUBLE_PERCENT_MAX)
        self._note(f"{self._wire.trouble_percent} of 100 calls between brokers have trouble")
        await asyncio.sleep(self._randomness.uniform(0.5, 4.0))
        self._wire.trouble_percent = 0
