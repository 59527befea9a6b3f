"""Laws of the metadata, for any sequence of commands, restarts and power losses."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.errors import Conflict, NotFound
from pydanube.metadata import keys
from pydanube.metadata.local_store import LocalMetadataStore
from pydanube.metadata.store import Delete, Entry, Expect, Put
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.runtime.tasks import TaskScope

# Narrow on purpose: what matters happens when keys, leases and revisions meet again.
key_names = st.sampled_from(["/a", "/a/b", "/a/c", "/ab"])
values = st.sampled_from([b"", b"1", b"22"])
lease_numbers = st.integers(1, 4)
puts = st.builds(Put, key_names, values, st.none() | lease_numbers)
operations = st.lists(
    puts | st.builds(Delete, key_names), max_size=3, unique_by=lambda operation: operation.key
)
conditions = st.lists(st.builds(Expect, key_names, st.integers(0, 3)), max_size=2)


@dataclass(frozen=True)
class Transact:
    conditions: list[Expect]
    operations: list[Put | Delete]


@dataclass(frozen=True)
class Count:
    key: str


@dataclass(frozen=True)
class Grant:
    ttl_seconds: int


@dataclass(frozen=True)
class Renew:
    lease: int


@dataclass(frozen=True)
class Revoke:
    lease: int


@dataclass(frozen=True)
class Wait:
    seconds: int


@dataclass(frozen=True)
class Restart:
    how: str


steps = st.lists(
    st.builds(Transact, conditions, operations)
    | st.builds(Count, key_names)
    | st.builds(Grant, st.integers(1, 5))
    | st.builds(Renew, lease_numbers)
    | st.builds(Revoke, lease_numbers)
    | st.builds(Wait, st.integers(1, 4))
    | st.builds(Restart, st.sampled_from(["close", "kill", "power"])),
    max_size=30,
)


@dataclass
class Model:
    """What the store should hold, said as plainly as possible."""

    now: float = 0.0
    revision: int = 0
    entries: dict[str, tuple[bytes, int, int | None]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    leases: dict[int, tuple[int, float]] = field(default_factory=dict)
    granted: int = 0

    def transact(self, step: Transact) -> int | type[Exception]:
        for condition in step.conditions:
            if self.entries.get(condition.key, (b"", 0, None))[1] != condition.revision:
                return Conflict
        puts = [operation for operation in step.operations if isinstance(operation, Put)]
        if any(put.lease is not None and put.lease not in self.leases for put in puts):
            return NotFound
        deleted = [o.key for o in step.operations if isinstance(o, Delete)]
        if puts or any(key in self.entries for key in deleted):
            self.revision += 1
        for key in deleted:
            self.entries.pop(key, None)
        for put in puts:
            self.entries[put.key] = (put.value, self.revision, put.lease)
        return self.revision

    def end_leases(self, ended: list[int]) -> None:
        bound = [key for key, (_, _, lease) in self.entries.items() if lease in ended]
        for lease in ended:
            del self.leases[lease]
        for key in bound:
            del self.entries[key]
        if bound:
            self.revision += 1

    def wait(self, seconds: int) -> None:
        end = self.now + seconds
        while due := [at for _, at in self.leases.values() if at <= end]:
            first = min(due)
            self.end_leases([lease for lease, (_, at) in self.leases.items() if at == first])
        self.now = end

    def apply(self, step: object) -> object:
        match step:
            case Transact():
                return self.transact(step)
            case Count(key):
                self.counters[key] = self.counters.get(key, 0) + 1
                return self.counters[key]
            case Grant(ttl_seconds):
                self.granted += 1
                self.leases[self.granted] = (ttl_seconds, self.now + ttl_seconds)
                return self.granted
            case Renew(lease) if lease in self.leases:
                ttl_seconds, _ = self.leases[lease]
                self.leases[lease] = (ttl_seconds, self.now + ttl_seconds)
                return None
            case Revoke(lease) if lease in self.leases:
                self.end_leases([lease])
                return None
            case Renew() | Revoke():
                return NotFound
            case Wait(seconds):
                return self.wait(seconds)
        return None

    def listed(self) -> list[Entry]:
        return [Entry(key, value, at) for key, (value, at, _) in sorted(self.entries.items())]


class World:
    def __init__(self, randomness: Randomness) -> None:
        self.randomness = randomness
        # Instant, so that the store's time is the model's.
        self.disk = SimulatedDisk(randomness, delay_seconds=(0.0, 0.0))
        self.clock = SimulatedClock()
        self.tasks = TaskScope(lambda name, failure: None)
        self.store: LocalMetadataStore

    async def open(self) -> None:
        self.store = await LocalMetadataStore.open(
            self.disk.mount(), self.clock, self.tasks, "/metadata", log_bytes_max=400
        )

    async def apply(self, step: object) -> object:
        try:
            return await self._apply(step)
        except (Conflict, NotFound) as error:
            return type(error)

    async def _apply(self, step: object) -> object:
        store = self.store
        match step:
            case Transact(conditions, operations):
                return await store.transact(conditions, operations)
            case Count(key):
                return await store.next_id(key)
            case Grant(ttl_seconds):
                return await store.grant_lease(ttl_seconds * 1000)
            case Renew(lease):
                return await store.renew_lease(lease)
            case Revoke(lease):
                return await store.revoke_lease(lease)
            case Wait(seconds):
                await self.clock.sleep(seconds)
                # Leases that end at this very instant take a few turns of the loop.
                for _ in range(20):
                    await self.clock.sleep(0)
            case Restart(how):
                await self._restart(how)
        return None

    async def _restart(self, how: str) -> None:
        if how == "close":
            await self.store.close()
        elif how == "kill":
            self.disk.kill()
        else:
            self.disk.crash(self.randomness)
        await self.open()


@given(steps, st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_a_store_holds_what_the_model_holds_through_any_restart(steps: list[object], seed: int):
    async def main(randomness: Randomness) -> None:
        world, model = World(randomness), Model()
        await world.open()
        for step in steps:
            expected = model.apply(step)
            assert await world.apply(step) == expected, step
            assert world.store.list("/") == model.listed(), step
            assert world.store.revision == model.revision, step
        await world.store.close()
        await world.tasks.close()

    run_simulated(main, seed)


names = st.text(min_size=1).filter(str.isprintable)


@given(names, names, names)
def test_names_of_any_letters_are_one_part_of_a_key_and_come_back(
    subscription: str, other: str, consumer: str
):
    topic = "/default/orders"
    key = keys.subscription(topic, subscription)
    assert keys.name_directly_below(keys.subscriptions(topic), key) == subscription
    assert (key == keys.subscription(topic, other)) == (subscription == other)
    nested = keys.consumer(topic, subscription, consumer)
    assert keys.name_directly_below(keys.subscriptions(topic), nested) is None
    assert keys.name_directly_below(keys.consumers(topic, subscription), nested) == consumer
