"""Exports on a machine that may stop at every step: nothing acknowledged is lost, no law broken."""

import asyncio
from collections.abc import Iterator
from functools import cache
from unittest.mock import patch

import pytest

from pydanube.errors import Corruption, Unavailable
from pydanube.model.ids import TopicId
from pydanube.model.message import Message
from pydanube.runtime.files import Files
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.runtime.tasks import carry_through
from pydanube.storage.errors import ObjectMissing
from pydanube.storage.segments import compaction
from pydanube.storage.segments.planning import RetentionRule
from tests.support.careless_files import CarelessFiles
from tests.support.faulty_store import Cloud, FaultyStore
from tests.support.segment_broker import SegmentBroker, small_config, topic_name

TOPICS = (1, 2)
EXPIRING, GOING = 3, 4
CONFIG = small_config(file_bytes=2_500, seal_bytes=8_000, seal_seconds=1, cache_bytes=1_000)


class World:
    """One machine whose broker publishes and exports; the cloud, if any, is another machine."""

    def __init__(
        self,
        randomness: Randomness,
        cloud: Cloud | None = None,
        careless: frozenset[str] = frozenset(),
    ) -> None:
        self.randomness = randomness
        self.disk = SimulatedDisk(randomness)
        self.cloud = cloud
        self.seen: dict[tuple[int, int], bytes] = {}
        self.stopped = asyncio.Event()
        self.deleting = False
        self.joined = 0
        self._careless = careless
        self._number = 0

    async def run_broker(self, *, rounds: int = 3) -> bool:
        """Start, check, work and stop; tell whether it came to its end before the machine did."""
        self.stopped.clear()
        alive = asyncio.create_task(self._live(rounds))
        ends = [
            asyncio.create_task(self.stopped.wait()),
            asyncio.create_task(self.disk.wait_until_stopped()),
        ]
        await asyncio.wait([alive, *ends], return_when=asyncio.FIRST_COMPLETED)
        for task in (alive, *ends):
            task.cancel()
        [result, *_] = await asyncio.gather(alive, *ends, return_exceptions=True)
        if isinstance(result, BaseException) and not isinstance(
            result, Unavailable | OSError | asyncio.CancelledError
        ):
            raise result
        return result is True

    def stop(self) -> None:
        """Cut the power now."""
        self.disk.crash(self.randomness)
        self.stopped.set()

    async def _live(self, rounds: int) -> bool:
        files: Files = CarelessFiles(self.disk.mount(), self._careless)  # type: ignore[assignment]
        store = FaultyStore(self.cloud) if self.cloud is not None else None
        broker = await SegmentBroker.start(files, self.randomness, CONFIG, store, tolerate=OSError)
        try:
            if self.deleting:
                await self._delete(broker)
            await self._check(broker)
            for _ in range(rounds):
                await self._publish(broker)
                await asyncio.sleep(self.randomness.uniform(0.0, 3.0))
            await asyncio.gather(*(broker.seal(topic) for topic in (*TOPICS, EXPIRING)))
            await self._expire(broker)
            if not self.deleting:
                self.deleting = True  # As the mark in the metadata, which outlives a crash.
                await self._delete(broker)
            await self._check(broker)
            self.joined += broker.metrics.joined
            await broker.stop()
        except BaseException:
            await carry_through(broker.abandon())
            raise
        return True

    async def _expire(self, broker: SegmentBroker) -> None:
        """Let all but the newest segment go, and wait for the round that does it."""
        broker.retention[EXPIRING] = RetentionRule(bytes_max=1)
        await asyncio.sleep(61)
        broker.retention.clear()

    async def _delete(self, broker: SegmentBroker) -> None:
        await broker.storage.remove_segments(TopicId(GOING), topic_name(GOING))
        broker.storage.drop_topic(TopicId(GOING))

    async def _publish(self, broker: SegmentBroker) -> None:
        topics = [*TOPICS, EXPIRING] if self.deleting else [*TOPICS, EXPIRING, GOING]
        for topic in topics:
            values = [self._next_value() for _ in range(1 + self.randomness.below(3))]
            messages = [
                Message(payload=value, publish_time_ms=1, producer_name="p") for value in values
            ]
            offset = await broker.append(topic, messages)
            for number, value in enumerate(values):
                key = (topic, offset + number)
                assert self.seen.setdefault(key, value) == value, f"{key} was given twice"

    async def _check(self, broker: SegmentBroker) -> None:
        for topic in (*TOPICS, EXPIRING):
            found = {o: m.payload for o, m in (await broker.read_all(topic)).items()}
            first = broker.log(topic).first_offset
            assert first == 0 or topic == EXPIRING
            assert list(found) == list(range(first, first + len(found))), "there is a gap"
            for (seen_topic, offset), value in self.seen.items():
                if seen_topic == topic and offset >= first:
                    assert found.get(offset) == value, f"offset {offset} of {topic} is lost"
            self.seen |= {(topic, offset): value for offset, value in found.items()}
            await broker.check_catalog(topic)

    async def check_nothing_is_left_over(self) -> None:
        """After a quiet while, the store holds what the catalogue names and nothing else."""
        store = FaultyStore(self.cloud) if self.cloud is not None else None
        broker = await SegmentBroker.start(self.disk.mount(), self.randomness, CONFIG, store)
        for topic in (*TOPICS, EXPIRING):
            broker.log(topic)
        await asyncio.sleep(200)
        for topic in (*TOPICS, EXPIRING, GOING):
            named = [entry.key for entry in broker.entries(topic)]
            found = await broker.store.list(f"{topic_name(topic)[1:]}/{topic}/")
            assert found == sorted(named)
        assert broker.entries(GOING) == []
        assert broker.catalog.retired() == []
        await broker.stop()

    def _next_value(self) -> bytes:
        self._number += 1
        return b"message %d " % self._number * 10


# Stopped at every operation of the disk, which holds journal, metadata and segments.


@cache
def count_disk_operations() -> int:
    async def main(randomness: Randomness) -> int:
        world = World(randomness)
        assert await world.run_broker()
        assert await world.run_broker()
        assert world.joined, "a life without compaction"
        return world.disk.operations

    return run_simulated(main, "count")


def crash_disk_at(number: int, after: bool, careless: frozenset[str], seed: int = 0) -> int:
    async def main(randomness: Randomness) -> int:
        world = World(randomness, careless=careless)
        world.disk.crash_at(number, after=after)
        crashes = 0
        for _ in range(2):
            if not await world.run_broker():
                break
        for _ in range(2):
            world.disk.crash(randomness)
            crashes += 1
            world.disk.crash_at(world.disk.operations + 1 + randomness.below(60))
            await world.run_broker(rounds=1)
        world.disk.crash(randomness)
        assert await world.run_broker(rounds=1)
        await world.check_nothing_is_left_over()
        return crashes + 1

    return run_simulated(main, f"{number} {after} {seed}")


@pytest.fixture(autouse=True)
def joined_early() -> Iterator[None]:
    """Let short lives see how segments are joined, and how the old ones go."""
    with patch.object(compaction, "RUN_MIN", 2), patch.object(compaction, "GRACE_MS", 30_000):
        yield


@pytest.mark.slow
def test_nothing_is_lost_and_every_law_holds_wherever_the_machine_stops() -> None:
    # Right after one operation is right before the next, but for what waits in between.
    numbers = range(1, count_disk_operations() + 1, 2)
    crashes = sum(
        crash_disk_at(number, after=number % 4 == 1, careless=frozenset()) for number in numbers
    )
    print(f"stopped at {len(numbers)} operations, {crashes} crashes recovered from")


@pytest.mark.slow
@pytest.mark.parametrize("forgotten", ["sync segment", "sync segment directory"])
def test_the_crashes_find_each_sync_that_is_forgotten(forgotten: str) -> None:
    def crash_everywhere() -> None:
        for number in range(1, count_disk_operations() + 1):
            crash_disk_at(number, False, frozenset({forgotten}))

    with pytest.raises((AssertionError, Corruption, ObjectMissing)) as found:
        crash_everywhere()
    print(forgotten, "->", type(found.value).__name__, str(found.value)[:200])


# Stopped at every call of a store that works.


def run_with_cloud(seed: str, *, stop: tuple[int, bool] | None = None, faults: int = 0) -> Cloud:
    async def main(randomness: Randomness) -> Cloud:
        cloud = Cloud(randomness)
        world = World(randomness, cloud)
        cloud.on_stop = world.stop
        if stop is not None:
            cloud.stop_at(stop[0], after=stop[1])
        cloud.fault_percent = faults
        for _ in range(3):
            await world.run_broker()
            if faults and randomness.below(2):
                world.disk.crash(randomness)
            else:
                world.disk.kill()
        cloud.fault_percent = 0
        await asyncio.sleep(30)  # Requests that come late have come by then.
        # Of a short history, the call to stop at may come in this life.
        assert await world.run_broker() or (stop and await world.run_broker())
        await world.check_nothing_is_left_over()
        return cloud

    return run_simulated(main, seed)


@pytest.mark.slow
def test_nothing_is_lost_wherever_the_machine_stops_between_calls_of_the_store() -> None:
    calls = run_with_cloud("count").calls // 2
    for number in range(1, calls + 1):
        run_with_cloud(f"{number}", stop=(number, number % 2 == 0))
    print(f"stopped at {calls} calls of the store")


@pytest.mark.slow
def test_nothing_is_lost_however_the_store_fails() -> None:
    faults: dict[str, int] = {}
    for seed in range(40):
        cloud = run_with_cloud(f"faults {seed}", faults=10 + seed)
        for name, count in cloud.faults.items():
            faults[name] = faults.get(name, 0) + count
    print("faults:", faults)
    assert len(faults) == 5
    assert min(faults.values()) > 20
