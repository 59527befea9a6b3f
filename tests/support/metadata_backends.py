"""The backends of the metadata store: each in a simulated world of its own, but for a real etcd."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence

import pytest
from typing_extensions import override

from pydanube.metadata.commands import MIB
from pydanube.metadata.etcd_layout import EtcdLayout
from pydanube.metadata.etcd_store import EtcdMetadataStore
from pydanube.metadata.local_store import LocalMetadataStore
from pydanube.metadata.memory_store import MemoryMetadataStore
from pydanube.metadata.store import MetadataStore
from pydanube.metadata.watches import WatchLimits
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.randomness import Randomness, SeededRandomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.runtime.simulation.network import SimulatedNetwork
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.etcd.client import EtcdClient
from pydanube.wire.http2.channel import Http2Channel
from tests.support.etcd_server import shared_etcd
from tests.support.raft_cluster import QUICK, StoreMachine, small_log


class Backend:
    """Opens one kind of store; what is open at the end is closed."""

    durable = False
    counts_by_one = True
    """Whether revisions are 1, 2, 3 …; else they ascend."""
    keeps_order = True
    """Whether writes asked for at once happen in that order."""
    quiet_seconds = 10.0
    """Time enough for anything to be told."""

    def __init__(self, randomness: Randomness) -> None:
        self.clock: Clock = SimulatedClock()
        self.disk = SimulatedDisk(randomness)
        self.failures: list[BaseException] = []
        self.tasks = TaskScope(lambda _, failure: self.failures.append(failure))
        self._stores: list[MetadataStore] = []

    async def open(self, limits: WatchLimits | None = None) -> MetadataStore:
        store = await self._open(limits)
        self._stores.append(store)
        return store

    async def _open(self, limits: WatchLimits | None) -> MetadataStore:
        raise AssertionError("a backend says how it is opened")

    async def close(self) -> None:
        for store in self._stores:
            await store.close()
        await self.tasks.close()
        assert not self.failures, self.failures

    def assert_ascending(self, revisions: Sequence[int]) -> None:
        """Check that these are revisions of changes that followed each other."""
        assert list(revisions) == sorted(set(revisions)), revisions
        if self.counts_by_one:
            first = revisions[0]
            assert list(revisions) == list(range(first, first + len(revisions)))


class MemoryBackend(Backend):
    @override
    async def _open(self, limits: WatchLimits | None) -> MetadataStore:
        return MemoryMetadataStore(self.clock, limits)


class LocalBackend(Backend):
    durable = True
    log_bytes_max = 8 * MIB

    @override
    async def _open(self, limits: WatchLimits | None) -> MetadataStore:
        return await LocalMetadataStore.open(
            self.disk.mount(),
            self.clock,
            self.tasks,
            "/data/metadata",
            log_bytes_max=self.log_bytes_max,
            watch_limits=limits,
        )


class SmallLogBackend(LocalBackend):
    """Starts its log anew after every few commands."""

    log_bytes_max = 200


class RaftBackend(Backend):
    """Opens a node that is alone."""

    durable = True
    nodes = 1
    settings = QUICK

    def __init__(self, randomness: Randomness) -> None:
        super().__init__(randomness)
        network = SimulatedNetwork(randomness)
        self.machines = [
            StoreMachine(f"node{number}", network, randomness, self.settings)
            for number in range(1, self.nodes + 1)
        ]

    @override
    async def _open(self, limits: WatchLimits | None) -> MetadataStore:
        seeds = [machine.address for machine in self.machines] if self.nodes > 1 else []
        for machine in self.machines:
            if machine.store is None or machine.store in self._stores:
                await machine.open(seeds, limits=limits, clock=self.clock)
        for machine in self.machines:
            assert machine.store is not None
            await machine.store.wait_until_ready()
        chosen = self.choose()
        store = chosen.store
        assert store is not None
        chosen.store = None
        return store

    def choose(self) -> StoreMachine:
        """Return the machine whose store is tested."""
        return self.machines[0]

    @override
    async def close(self) -> None:
        await super().close()
        for machine in self.machines:
            await machine.close()
            assert not machine.failures, machine.failures


class ShortRaftBackend(RaftBackend):
    """Cuts its log after every few commands."""

    settings = small_log()


class RaftLeaderBackend(RaftBackend):
    """Opens three nodes and tests the one that leads."""

    nodes = 3

    @override
    def choose(self) -> StoreMachine:
        leading = [one for one in self.machines if one.store and one.store.is_leader]
        return leading[0] if leading else self.machines[0]


class RaftFollowerBackend(RaftBackend):
    """Opens three nodes and tests one that follows."""

    nodes = 3

    @override
    def choose(self) -> StoreMachine:
        return next(one for one in self.machines if one.store and not one.store.is_leader)


class EtcdBackend(Backend):
    """Opens a prefix of its own in a real etcd, in real time."""

    durable = True
    counts_by_one = False
    keeps_order = False
    quiet_seconds = 0.3

    def __init__(self) -> None:
        super().__init__(SeededRandomness(0))
        self.clock = SystemClock()
        self._prefix = f"/test/{uuid.uuid4()}"

    @override
    async def _open(self, limits: WatchLimits | None) -> MetadataStore:
        return await EtcdMetadataStore.open(
            EtcdClient([shared_etcd().url], Http2Channel),
            self.clock,
            EtcdLayout(self._prefix),
            identity=b"test",
            watch_limits=limits,
        )


SIMULATED = [
    MemoryBackend,
    LocalBackend,
    SmallLogBackend,
    RaftBackend,
    RaftLeaderBackend,
    RaftFollowerBackend,
]


Body = Callable[[Backend], Awaitable[None]]


def on_every_backend(body: Body) -> Callable[..., None]:
    """Make a test of `body` for each backend."""
    return _parametrized(body, [*SIMULATED, EtcdBackend])


def in_virtual_time(body: Body) -> Callable[..., None]:
    """Make a test of `body` for each backend that keeps its own time, to the millisecond."""
    return _parametrized(body, SIMULATED)


def _parametrized(body: Body, kinds: Sequence[type[Backend]]) -> Callable[..., None]:
    async def run(backend: Backend) -> None:
        try:
            await body(backend)
        finally:
            await backend.close()

    async def run_on_etcd() -> None:
        await run(EtcdBackend())

    @pytest.mark.parametrize("kind", kinds)
    def test(kind: type[Backend]) -> None:
        if kind is EtcdBackend:
            shared_etcd()
            asyncio.run(run_on_etcd())
        else:
            run_simulated(lambda randomness: run(kind(randomness)), body.__name__)

    test.__name__ = body.__name__
    return test
