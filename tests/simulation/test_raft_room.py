"""Nodes of the metadata whose disks are full, or that can open nothing, for a while."""

import asyncio
import errno
from collections.abc import Callable

import pytest

from pydanube.errors import DanubeError
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.runtime.simulation.network import SimulatedNetwork
from tests.support.raft_cluster import StoreMachine, small_log

KEYS = 20


async def eventually(condition: Callable[[], object], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


class Cluster:
    def __init__(self, randomness: Randomness) -> None:
        self.randomness = randomness
        network = SimulatedNetwork(randomness, connect_seconds=1.0, stall_seconds=2.0)
        self.machines = [
            StoreMachine(f"node{number}", network, randomness, small_log()) for number in (1, 2, 3)
        ]
        self.written: dict[str, int] = {}
        """The latest value of each key of which it is known that it was written."""

    async def open(self) -> None:
        seeds = [machine.address for machine in self.machines]
        for machine in self.machines:
            if machine.store is None:
                await machine.open(seeds)
        await self.ready()

    async def ready(self) -> None:
        async with asyncio.timeout(120):
            for machine in self.machines:
                assert machine.store is not None
                await machine.store.wait_until_ready()

    async def close(self) -> None:
        for machine in self.machines:
            await machine.close()

    def leader(self) -> StoreMachine | None:
        leading = (one for one in self.machines if one.store and one.store.is_leader)
        return next(leading, None)

    async def put(self, machine: StoreMachine, key: str, number: int) -> bool:
        try:
            assert machine.store is not None
            await machine.store.put(key, b"%d" % number)
        except DanubeError:
            return False
        self.written[key] = number
        return True

    def check(self) -> None:
        for machine in self.machines:
            assert machine.failures == [], "no node stops for want of room"
            assert machine.store is not None
            for key, number in self.written.items():
                entry = machine.store.get(key)
                assert entry is not None, key
                assert int(entry.value) >= number


def use_up(machine: StoreMachine, randomness: Randomness) -> None:
    if randomness.below(2):
        machine.disk.exhaust(errno.EMFILE)
    else:
        room = randomness.below(400)
        machine.disk.capacity_bytes = machine.disk._medium.used_bytes() + room


def give_back(machine: StoreMachine) -> None:
    machine.disk.exhaust(None)
    machine.disk.capacity_bytes = None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_nodes_without_room_lose_nothing_and_need_no_restart(seed: int) -> None:
    async def live(randomness: Randomness) -> None:
        cluster = Cluster(randomness)
        await cluster.open()
        over = False

        async def write(own: int) -> None:
            number = 0
            while not over:
                number += 1
                machine = cluster.machines[randomness.below(3)]
                await cluster.put(machine, f"/{own}/{number % KEYS}", number)
                await asyncio.sleep(randomness.uniform(0.0, 0.05))

        writers = [asyncio.create_task(write(own)) for own in range(3)]
        waited = 0
        for _ in range(8):
            machine = cluster.machines[randomness.below(3)]
            use_up(machine, randomness)
            await asyncio.sleep(randomness.uniform(0.1, 3.0))
            assert machine.store is not None
            waited += machine.store.waiting_for is not None
            give_back(machine)
            await asyncio.sleep(randomness.uniform(0.0, 1.0))
        over = True
        await asyncio.gather(*writers)
        await cluster.ready()
        assert waited
        cluster.check()
        for machine in cluster.machines:
            await machine.crash()
        await cluster.open()
        cluster.check()
        await cluster.close()

    run_simulated(live, f"room {seed}", steps_max=1_000_000)


def test_a_leader_without_room_says_so_is_replaced_and_follows_again() -> None:
    async def live(randomness: Randomness) -> None:
        cluster = Cluster(randomness)
        await cluster.open()
        leader = cluster.leader()
        assert leader is not None
        assert leader.store is not None
        leader.disk.capacity_bytes = leader.disk._medium.used_bytes()
        other = next(one for one in cluster.machines if one is not leader)
        stuck = asyncio.create_task(cluster.put(leader, "/stuck", 1))
        store = leader.store
        await eventually(lambda: store.waiting_for)
        assert "free space" in (store.waiting_for or "")
        await eventually(lambda: cluster.leader() not in (None, leader))
        number = 0
        while not await cluster.put(other, "/a", number):
            number += 1
        give_back(leader)
        await stuck
        await cluster.ready()
        assert store.waiting_for is None
        cluster.check()
        await cluster.close()

    run_simulated(live, "a leader without room", steps_max=300_000)


def test_a_node_that_waits_for_room_can_be_closed() -> None:
    async def live(randomness: Randomness) -> None:
        cluster = Cluster(randomness)
        await cluster.open()
        leader = cluster.leader()
        assert leader is not None
        assert leader.store is not None
        leader.disk.capacity_bytes = leader.disk._medium.used_bytes()
        stuck = asyncio.create_task(cluster.put(leader, "/stuck", 1))
        store = leader.store
        await eventually(lambda: store.waiting_for)
        async with asyncio.timeout(60):
            await leader.close()
        await stuck
        give_back(leader)
        await leader.open([machine.address for machine in cluster.machines])
        await cluster.ready()
        cluster.check()
        await cluster.close()

    run_simulated(live, "a node that is closed", steps_max=300_000)
