"""Whole Raft stores, with their files and their calls, under power cuts and partitions, by seed."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from math import inf

import pytest

from pydanube.errors import Conflict, Corruption, DanubeError, Unavailable
from pydanube.metadata.raft_store import RaftStore
from pydanube.metadata.store import Change
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.runtime.simulation.network import SimulatedNetwork
from tests.support.linearizability import READ, SWAP, WRITE, Operation, is_linearizable
from tests.support.raft_cluster import DIRECTORY, StoreMachine, small_log

SEEDS = int(os.environ.get("DANUBE_RAFT_STORE_SEEDS", "12"))
FIRST = int(os.environ.get("DANUBE_SEED_START", "1"))
KEYS = ("/a", "/b")


def simulated(body: Callable[["Cluster"], Awaitable[None]]) -> Callable[[], None]:
    """Make a test of `body` in a world of three machines."""

    async def run(randomness: Randomness) -> None:
        cluster = Cluster(randomness)
        try:
            await body(cluster)
        finally:
            await cluster.close()

    def test() -> None:
        run_simulated(run, body.__name__, steps_max=300_000)

    test.__name__ = body.__name__
    return test


class Cluster:
    def __init__(self, randomness: Randomness, count: int = 3) -> None:
        self.randomness = randomness
        self.network = SimulatedNetwork(randomness, connect_seconds=1.0, stall_seconds=2.0)
        self.machines = [
            StoreMachine(f"node{number}", self.network, randomness, small_log())
            for number in range(1, count + 1)
        ]
        self.seeds = [machine.address for machine in self.machines]

    async def open(self) -> list[RaftStore]:
        stores = [await machine.open(self.seeds) for machine in self.machines]
        for store in stores:
            await store.wait_until_ready()
        return stores

    async def close(self) -> None:
        for machine in self.machines:
            await machine.close()

    def leader(self) -> StoreMachine:
        return next(one for one in self.machines if one.store and one.store.is_leader)

    def followers(self) -> list[StoreMachine]:
        return [one for one in self.machines if one.store and not one.store.is_leader]

    def joiner(self, name: str = "joiner") -> StoreMachine:
        machine = StoreMachine(name, self.network, self.randomness, small_log())
        self.machines.append(machine)
        return machine


async def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def read_for_ever(watch: AsyncIterator[Change]) -> None:
    async with asyncio.timeout(60):
        async for _ in watch:
            pass


@simulated
async def test_founders_agree_on_one_cluster(cluster: Cluster) -> None:
    stores = await cluster.open()
    statuses = [store.status() for store in stores]
    assert len({status.leader for status in statuses}) == 1
    voters = {
        store.node: machine.address for store, machine in zip(stores, cluster.machines, strict=True)
    }
    assert all(status.membership.voters == voters for status in statuses)
    assert [status.address for status in statuses] == cluster.seeds
    for status in statuses:
        known = set(voters) - {status.node} if status.node == status.leader else set()
        assert set(status.followers) == known


@simulated
async def test_a_write_anywhere_is_read_where_it_was_written_and_after_a_barrier_everywhere(
    cluster: Cluster,
) -> None:
    stores = await cluster.open()
    for number in range(30):
        writer = stores[number % 3]
        revision = await writer.put("/a", b"%d" % number)
        entry = writer.get("/a")
        assert entry is not None
        assert (entry.value, entry.revision) == (b"%d" % number, revision)
        for store in stores:
            await store.read_barrier()
            assert store.get("/a") == entry


@simulated
async def test_the_others_go_on_when_the_leader_dies_and_it_catches_up_later(
    cluster: Cluster,
) -> None:
    await cluster.open()
    leader, follower = cluster.leader(), cluster.followers()[0]
    assert follower.store is not None
    await follower.store.put("/a", b"1")
    await leader.crash()
    await eventually(lambda: any(one.store and one.store.is_leader for one in cluster.machines))
    for number in range(20):
        await follower.store.put("/a", b"%d" % number)
    store = await leader.open(cluster.seeds)
    await store.wait_until_ready()
    entry = store.get("/a")
    assert entry is not None
    assert entry.value == b"19"


@simulated
async def test_a_write_to_a_leader_that_was_cut_off_ends_when_there_is_another(
    cluster: Cluster,
) -> None:
    await cluster.open()
    leader, (follower, other) = cluster.leader(), cluster.followers()
    assert follower.store is not None
    cluster.network.partition([leader.name], [follower.name, other.name])
    with pytest.raises(Unavailable, match="another leader was elected"):
        await follower.store.put("/a", b"1")
    await follower.store.put("/a", b"2")


@simulated
async def test_without_a_majority_nothing_is_written_and_nothing_is_lost(cluster: Cluster) -> None:
    await cluster.open()
    leader = cluster.leader()
    assert leader.store is not None
    await leader.store.put("/a", b"1")
    for follower in cluster.followers():
        await follower.crash()
    with pytest.raises(Unavailable):
        await leader.store.put("/a", b"2")
    with pytest.raises(Unavailable):
        await leader.store.read_barrier()
    for machine in cluster.machines:
        if machine.store is None:
            await machine.open(cluster.seeds)
    await leader.store.wait_until_ready()
    assert await leader.store.put("/a", b"3") >= 2


@simulated
async def test_a_node_joins_learns_votes_and_leaves(cluster: Cluster) -> None:
    stores = await cluster.open()
    for number in range(20):
        await stores[0].put(f"/{number}", b"")
    joiner = cluster.joiner()
    joined = await joiner.open([*cluster.seeds, joiner.address])
    members = await stores[0].add_member(joined.node, joiner.address)
    assert joined.node in members.learners
    await joined.wait_until_ready()
    assert len(joined.list("/")) == 20
    assert joined.node in (await stores[1].promote(joined.node)).voters
    await joined.put("/from-joiner", b"")
    assert joined.node not in (await stores[2].remove_member(joined.node)).voters
    await eventually(
        lambda: all(joined.node not in store.status().membership.voters for store in stores)
    )
    await stores[0].put("/after", b"")


@simulated
async def test_a_leader_that_is_removed_hands_over_first(cluster: Cluster) -> None:
    stores = await cluster.open()
    leader = cluster.leader()
    assert leader.store is not None
    others = [store for store in stores if store is not leader.store]
    members = await others[0].remove_member(leader.store.node)
    assert sorted(members.voters) == sorted(store.node for store in others)
    await others[1].put("/a", b"")


@simulated
async def test_leadership_is_transferred_and_writes_go_on(cluster: Cluster) -> None:
    await cluster.open()
    target = cluster.followers()[0]
    assert target.store is not None

    async def write() -> None:
        assert target.store is not None
        for number in range(50):
            await target.store.put("/a", b"%d" % number)

    writing = asyncio.create_task(write())
    await target.store.transfer_leadership(target.store.node)
    await eventually(lambda: bool(target.store and target.store.is_leader))
    await writing


@simulated
async def test_leases_outlive_their_leader_and_end_under_the_next(cluster: Cluster) -> None:
    await cluster.open()
    leader, follower = cluster.leader(), cluster.followers()[0]
    assert follower.store is not None
    store = follower.store
    lease = await store.grant_lease(2_000)
    await store.put("/a", b"", lease=lease)
    await leader.crash()
    await store.wait_until_ready()
    await store.renew_lease(lease)
    await asyncio.sleep(1.5)
    assert store.get("/a") is not None
    await asyncio.sleep(1.0)
    assert store.get("/a") is None


@simulated
async def test_the_time_of_a_lease_goes_on_while_nobody_leads(cluster: Cluster) -> None:
    await cluster.open()
    leader, (first, second) = cluster.leader(), cluster.followers()
    assert first.store is not None
    store = first.store
    lease = await store.grant_lease(10_000)
    await store.put("/a", b"", lease=lease)
    await asyncio.sleep(2.0)
    cluster.network.partition([first.name], [second.name])
    await leader.crash()
    await asyncio.sleep(7.0)
    cluster.network.heal()
    await store.wait_until_ready()
    assert store.get("/a") is not None
    # Less than a second of its time is left, once whoever holds it has had time to renew it.
    await asyncio.sleep(2.0)
    assert store.get("/a") is None


@simulated
async def test_after_a_time_without_a_leader_leases_can_be_renewed(cluster: Cluster) -> None:
    await cluster.open()
    leader, (first, second) = cluster.leader(), cluster.followers()
    assert first.store is not None
    store = first.store
    lease = await store.grant_lease(2_000)
    await store.put("/a", b"", lease=lease)
    cluster.network.partition([first.name], [second.name])
    await leader.crash()
    await asyncio.sleep(8.0)
    cluster.network.heal()
    await store.renew_lease(lease)
    await asyncio.sleep(1.5)
    assert store.get("/a") is not None
    await asyncio.sleep(1.0)
    assert store.get("/a") is None


@simulated
async def test_a_lease_renewed_by_a_new_leader_lasts_its_whole_time(cluster: Cluster) -> None:
    """What it proposes before it knows all that was committed goes by the same time."""
    await cluster.open()
    leader, (first, second) = cluster.leader(), cluster.followers()
    assert first.store is not None
    assert second.store is not None
    stores = (first.store, second.store)
    lease = await stores[0].grant_lease(4_000)
    await stores[0].put("/a", b"", lease=lease)
    cluster.network.partition([first.name], [second.name])
    await leader.crash()
    await asyncio.sleep(5.0)
    cluster.network.heal()
    async with asyncio.timeout(20):
        while not any(store._node.raft.is_leader for store in stores):
            await asyncio.sleep(0.0002)
    new = next(store for store in stores if store._node.raft.is_leader)
    assert not new.is_leader, "it does not know yet what is committed"
    await new.renew_lease(lease)
    await asyncio.sleep(3.5)
    assert new.get("/a") is not None
    await asyncio.sleep(1.0)
    assert new.get("/a") is None


@simulated
async def test_a_watch_tells_of_writes_through_other_nodes(cluster: Cluster) -> None:
    stores = await cluster.open()
    watch = stores[0].watch("/", 0)
    for number in range(1, 31):
        await stores[number % 3].put("/a", b"%d" % number)
    async with asyncio.timeout(10):
        seen = [await anext(watch) for _ in range(30)]
    assert seen == [Change("/a", b"%d" % number, number) for number in range(1, 31)]


@simulated
async def test_a_watch_on_a_node_that_was_given_a_snapshot_must_list_again(
    cluster: Cluster,
) -> None:
    stores = await cluster.open()
    follower = cluster.followers()[0]
    assert follower.store is not None
    watch = follower.store.watch("/", 0)
    others = [one.name for one in cluster.machines if one is not follower]
    cluster.network.partition([follower.name], others)
    writer = next(store for store in stores if store is not follower.store)
    for number in range(40):
        await writer.put("/a", b"%d" % number)
    # Until what was on its way has been given up.
    await asyncio.sleep(10)
    cluster.network.heal()
    await follower.store.wait_until_ready()
    with pytest.raises(Conflict, match="list again"):
        await read_for_ever(watch)
    entry = follower.store.get("/a")
    assert entry is not None
    assert entry.value == b"39"


@simulated
async def test_a_node_whose_log_was_lost_does_not_come_back_as_if_nothing_had_been(
    cluster: Cluster,
) -> None:
    await cluster.open()
    victim = cluster.followers()[0]
    await victim.close()
    for name in await victim.disk.list_names(DIRECTORY):
        if name.startswith("raft"):
            await victim.disk.remove(f"{DIRECTORY}/{name}")
    with pytest.raises(Corruption, match="its Raft log is missing"):
        await victim.open(cluster.seeds)


@simulated
async def test_a_node_with_a_failing_disk_stops_and_says_so(cluster: Cluster) -> None:
    await cluster.open()
    leader, follower = cluster.leader(), cluster.followers()[0]
    assert leader.store is not None
    assert follower.store is not None
    watch = leader.store.watch("/", 0)
    leader.disk.fail_next("sync", OSError(5, "broken"))
    with pytest.raises(Unavailable):
        await leader.store.put("/a", b"1")
    assert leader.store.failure is not None
    with pytest.raises(Unavailable, match="has stopped"):
        await anext(watch)
    await follower.store.wait_until_ready()
    await follower.store.put("/a", b"2")
    assert leader.failures


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_no_acknowledged_write_is_lost_and_reads_are_linearizable(seed: int) -> None:
    run_simulated(live, seed, steps_max=1_000_000)


async def live(randomness: Randomness) -> None:
    cluster = Cluster(randomness)
    history: dict[str, list[Operation]] = {key: [] for key in KEYS}
    values = iter(range(1, 100_000))
    await cluster.open()
    over = False

    async def client() -> None:
        while not over:
            await asyncio.sleep(randomness.uniform(0.0, 0.1))
            machine = cluster.machines[randomness.below(3)]
            if machine.store is None:
                continue
            key = KEYS[randomness.below(len(KEYS))]
            await operate(machine.store, key, history[key], b"%d" % next(values), randomness)

    clients = [asyncio.create_task(client()) for _ in range(3)]
    for _ in range(8):
        await asyncio.sleep(randomness.uniform(0.05, 1.0))
        await harm(cluster, randomness)
    over = True
    cluster.network.heal()
    for machine in cluster.machines:
        if machine.store is None:
            await machine.open(cluster.seeds)
    for machine in cluster.machines:
        assert machine.store is not None
        async with asyncio.timeout(120):
            await machine.store.wait_until_ready()
    await asyncio.gather(*clients)
    for machine in cluster.machines:
        assert machine.store is not None
        for key in KEYS:
            await operate(machine.store, key, history[key], None, randomness)
        assert machine.store.list("/") == cluster.machines[0].store.list("/")  # type: ignore[union-attr]
    await cluster.close()
    for key in KEYS:
        assert is_linearizable(history[key]), "\n".join(map(str, history[key]))


async def operate(
    store: RaftStore,
    key: str,
    history: list[Operation],
    value: bytes | None,
    randomness: Randomness,
) -> None:
    loop = asyncio.get_running_loop()
    kind = randomness.below(3) if value is not None else 0
    operation = Operation((READ, WRITE, SWAP)[kind], value, loop.time())
    try:
        if kind == 0:
            operation.ended = inf
            await store.read_barrier()
            entry = store.get(key)
            operation.value = entry.value if entry else None
        elif kind == 1:
            history.append(operation)
            assert value is not None
            await store.put(key, value)
        else:
            entry = store.get(key)
            operation.expected = entry.value if entry else None
            history.append(operation)
            assert value is not None
            try:
                await store.compare_and_swap(key, entry.revision if entry else 0, value)
            except Conflict:
                operation.happened = False
    except DanubeError:
        return
    operation.ended = loop.time()
    if kind == 0:
        history.append(operation)


async def harm(cluster: Cluster, randomness: Randomness) -> None:
    machine = cluster.machines[randomness.below(3)]
    match randomness.below(6):
        case 0 | 1:
            if machine.store is not None:
                await machine.crash()
        case 2:
            others = [one.name for one in cluster.machines if one is not machine]
            cluster.network.partition([machine.name], others)
        case 3:
            other = cluster.machines[randomness.below(3)]
            cluster.network.cut(machine.name, other.name)
        case 4:
            cluster.network.heal()
        case _:
            for one in cluster.machines:
                if one.store is None:
                    await one.open(cluster.seeds)
