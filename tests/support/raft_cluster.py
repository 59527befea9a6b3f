"""Whole Raft stores in a simulated world: each on a machine with a disk, a clock and a network."""

from collections.abc import Sequence

from pydanube.metadata.commands import MIB
from pydanube.metadata.node import NodeSettings
from pydanube.metadata.raft.settings import RaftSettings
from pydanube.metadata.raft_store import RaftPlace, RaftStore
from pydanube.metadata.watches import WatchLimits
from pydanube.runtime.machine import Machine
from pydanube.runtime.randomness import Randomness, SeededRandomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.network import SimulatedNetwork
from pydanube.runtime.tasks import TaskScope
from tests.support.broker_machine import MortalClock
from tests.support.plain_engine import PlainChannel, PlainEngine

PORT = 7650
DIRECTORY = "/data/raft"

QUICK = NodeSettings(
    tick_ms=20, raft=RaftSettings(heartbeat_ticks=2, election_ticks=8, snapshot_ticks=100)
)


class StoreMachine:
    """A machine on which one store lives at a time."""

    def __init__(
        self,
        name: str,
        network: SimulatedNetwork,
        randomness: Randomness,
        settings: NodeSettings = QUICK,
    ) -> None:
        self.name = name
        self.network = network
        self.disk = SimulatedDisk(SeededRandomness(randomness.below(2**32)))
        self.randomness = SeededRandomness(randomness.below(2**32))
        self.settings = settings
        self.clock: SimulatedClock = MortalClock()
        self.failures: list[BaseException] = []
        self.tasks = TaskScope(self._failed)
        self.store: RaftStore | None = None

    @property
    def address(self) -> str:
        return f"{self.name}:{PORT}"

    def _failed(self, _: str, failure: BaseException) -> None:
        self.failures.append(failure)

    async def open(
        self,
        seed_nodes: Sequence[str] = (),
        *,
        limits: WatchLimits | None = None,
        clock: SimulatedClock | None = None,
        join: bool = False,
    ) -> RaftStore:
        self.clock = clock or MortalClock()
        host = self.network.host(self.name)
        self.tasks = TaskScope(self._failed)
        machine = Machine(
            clock=self.clock, files=self.disk.mount(), network=host, randomness=self.randomness
        )

        def connect(address: str) -> PlainChannel:
            name, _, port = address.partition(":")
            return PlainChannel(host, name, int(port))

        self.store = await RaftStore.open(
            machine,
            self.tasks,
            PlainEngine(host),
            connect,
            RaftPlace(
                directory=DIRECTORY,
                host=self.name,
                port=PORT,
                address=self.address,
                seed_nodes=tuple(seed_nodes),
                join=join,
            ),
            settings=self.settings,
            watch_limits=limits,
        )
        return self.store

    async def close(self) -> None:
        if self.store is not None:
            await self.store.close()
            self.store = None
        await self.tasks.close()

    async def crash(self) -> None:
        """Cut the power: what was not synced is lost, torn or kept, by seed."""
        if isinstance(self.clock, MortalClock):
            self.clock.alive = False
        self.network.crash(self.name)
        self.disk.crash(self.randomness)
        self.store = None
        await self.tasks.close()


def small_log(snapshot_entries: int = 5, keep_entries: int = 2) -> NodeSettings:
    """Return settings under which the log is cut again and again."""
    return NodeSettings(
        tick_ms=QUICK.tick_ms,
        raft=QUICK.raft,
        snapshot_entries=snapshot_entries,
        keep_entries=keep_entries,
        log_bytes_max=MIB,
    )
