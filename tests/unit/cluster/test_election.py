"""A leader is whoever holds the key, as long as its lease is fresh."""

import asyncio
from collections.abc import Awaitable, Callable

from pydanube.cluster.election import KeyElection
from pydanube.cluster.membership import LeaseTerms
from pydanube.metadata.memory_store import MemoryMetadataStore
from pydanube.model.ids import BrokerId
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.loop import run_simulated

TERMS = LeaseTerms(ttl_ms=1_000)


class World:
    """Brokers that share one store, each with a clock of its own."""

    def __init__(self) -> None:
        self.store = MemoryMetadataStore(SimulatedClock())
        self.elections: list[KeyElection] = []
        self.tasks: list[asyncio.Task[None]] = []

    def add(self) -> KeyElection:
        number = BrokerId(len(self.elections) + 1)
        election = KeyElection(self.store, SimulatedClock(), number, TERMS)
        self.elections.append(election)
        self.tasks.append(asyncio.create_task(election.run()))
        return election

    def leaders(self) -> list[int]:
        return [number for number, one in enumerate(self.elections, 1) if one.is_leader]

    async def stop(self, number: int) -> None:
        """Let a broker fall silent."""
        self.tasks[number - 1].cancel()
        await asyncio.wait([self.tasks[number - 1]])

    async def close(self) -> None:
        for number in range(1, len(self.tasks) + 1):
            await self.stop(number)
        await self.store.close()


def simulated(body: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    async def run(_: Randomness) -> None:
        world = World()
        try:
            await body(world)
        finally:
            await world.close()

    def test() -> None:
        run_simulated(run, body.__name__)

    test.__name__ = body.__name__
    return test


@simulated
async def test_one_of_several_leads_and_goes_on_leading(world: World) -> None:
    for _ in range(3):
        world.add()
    seen = set()
    for _ in range(100):
        await asyncio.sleep(0.1)
        seen.add(tuple(world.leaders()))
    assert seen == {(1,)}


@simulated
async def test_one_that_falls_silent_stops_leading_before_another_begins(world: World) -> None:
    for _ in range(3):
        world.add()
    await asyncio.sleep(1)
    assert world.leaders() == [1]
    await world.stop(1)
    seen = []
    for _ in range(300):
        await asyncio.sleep(0.01)
        if world.leaders() not in seen:
            seen.append(world.leaders())
    assert seen[:2] == [[1], []]
    assert len(seen) == 3
    assert seen[2] in ([2], [3])


@simulated
async def test_one_that_resigns_is_followed_at_once(world: World) -> None:
    first = world.add()
    world.add()
    await asyncio.sleep(1)
    await world.stop(1)
    await first.resign()
    assert world.leaders() == []
    await asyncio.sleep(0.2)
    assert world.leaders() == [2]
