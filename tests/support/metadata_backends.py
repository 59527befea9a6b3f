"""The backends of the metadata store, each in a simulated world of its own."""

from collections.abc import Awaitable, Callable

import pytest
from typing_extensions import override

from pydanube.metadata.commands import MIB
from pydanube.metadata.local_store import LocalMetadataStore
from pydanube.metadata.memory_store import MemoryMetadataStore
from pydanube.metadata.store import MetadataStore
from pydanube.metadata.watches import WatchLimits
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.runtime.simulation.network import SimulatedNetwork
from pydanube.runtime.tasks import TaskScope
from tests.support.raft_cluster import QUICK, StoreMachine, small_log


class Backend:
    """Opens one kind of store; what is open at the end is closed."""

    durable = False

    def __init__(self, randomness: Randomness) -> None:
        self.clock = SimulatedClock()
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


BACKENDS = [
    MemoryBackend,
    LocalBackend,
    SmallLogBackend,
    RaftBackend,
    RaftLeaderBackend,
    RaftFollowerBackend,
]


def on_every_backend(body: Callable[[Backend], Awaitable[None]]) -> Callable[..., None]:
    """Make a test of `body` for each backend, in virtual time."""

    async def run(backend: Backend) -> None:
        try:
            await body(backend)
        finally:
            await backend.close()

    @pytest.mark.parametrize("kind", BACKENDS)
    def test(kind: type[Backend]) -> None:
        run_simulated(lambda randomness: run(kind(randomness)), body.__name__)

    test.__name__ = body.__name__
    return test
