"""The journal on a disk that loses, tears and fails, at every step it takes."""

import asyncio
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import pytest
from typing_extensions import override

from pydanube.errors import Corruption, Unavailable
from pydanube.model.ids import SubscriptionId, TopicId
from pydanube.model.progress import ProgressChange
from pydanube.model.ranges import RangeSet
from pydanube.runtime.files import AppendFile, Files
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.disk_faults import Operation
from pydanube.runtime.simulation.loop import run_simulated
from tests.support.journals import Broker, rotating_at

STAYING, GOING, SUBSCRIPTION = 1, 2, 7
# So small that a new file begins every other round.
CONFIG = rotating_at(2_000, journal_direct_bytes_min=1)


class Promises:
    """What was acknowledged, and what anybody has seen."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], bytes] = {}
        self.settled = RangeSet()
        self.asked = RangeSet()
        self.subscribed = False
        self.attempts = 0
        self.attempts_asked = 0

    async def check(self, broker: Broker, topics: Sequence[int]) -> None:
        for topic in topics:
            found = await broker.read_all(topic)
            for (seen_topic, offset), value in self.seen.items():
                if seen_topic == topic:
                    assert offset in found, f"offset {offset} of topic {topic} is lost"
                    assert found[offset] == value, (
                        f"offset {offset} of topic {topic} has two values"
                    )
            self.seen |= {(topic, offset): value for offset, value in found.items()}
            assert list(found) == list(range(len(found))), "there is a gap"
        progress = broker.storage.progress(SubscriptionId(SUBSCRIPTION))
        if progress is None:
            assert not self.subscribed, "the subscription is forgotten"
            return
        held = RangeSet([(0, progress.cursor), *progress.settled])
        for start, end in self.settled:
            assert not held.missing(start, end), "acknowledged progress is forgotten"
        for start, end in held:
            assert not self.asked.missing(start, end), "progress that nobody made"
        counted = max((attempts for _, _, attempts in progress.attempts), default=0)
        assert self.attempts <= counted <= self.attempts_asked


class World:
    """One machine, whose broker publishes and acks and may be stopped anywhere."""

    def __init__(self, randomness: Randomness, careless: frozenset[str] = frozenset()) -> None:
        self.randomness = randomness
        self.disk = SimulatedDisk(randomness)
        self.promises = Promises()
        self.topics = [STAYING, GOING]
        self._careless = careless
        self._number = 0
        self._acked = 0

    async def run_broker(self, *, work: bool = True) -> bool:
        """Start, work and stop; tell whether it came to its end."""
        files = CarelessFiles(self.disk.mount(), self._careless)
        try:
            broker = await Broker.start(files, CONFIG)  # type: ignore[arg-type]
        except Unavailable:
            return False
        try:
            broker.storage.keep_only(
                {TopicId(topic) for topic in self.topics}, {SubscriptionId(SUBSCRIPTION)}
            )
            await self.promises.check(broker, self.topics)
            if not work:
                await broker.storage.close()
                return True
            if broker.storage.progress(SubscriptionId(SUBSCRIPTION)) is None:
                await broker.create_subscription(SUBSCRIPTION, 0)
            self.promises.subscribed = True
            if GOING in self.topics:
                # Alone in the first files, so that these go when it does.
                for _ in range(4):
                    await self._one_round(broker, [GOING, GOING])
                self.topics.remove(GOING)
                broker.storage.drop_topic(TopicId(GOING))
            for _ in range(3):
                await self._one_round(broker, [STAYING, STAYING])
            await self.promises.check(broker, self.topics)
            await broker.storage.close()
        except (Unavailable, OSError):
            return False
        finally:
            await broker.abandon()
        return True

    async def _one_round(self, broker: Broker, topics: Sequence[int]) -> None:
        work = []
        for topic in topics:
            values = [self._next_value() for _ in range(1 + self.randomness.below(2))]
            offset, over = broker.begin_append(topic, *values)
            work.append(self._published(over, topic, offset, values))
        start = self._acked
        self._acked += 2
        self.promises.asked.add(start, start + 1)
        self.promises.attempts_asked += 1
        change = ProgressChange(
            settled=((start, start + 1),),
            attempts=((10_000, 10_001, self.promises.attempts_asked),),
        )
        settling = broker.begin_settle(SUBSCRIPTION, change)
        work.append(self._settled(settling, start, self.promises.attempts_asked))
        results = await asyncio.gather(*work, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _published(self, over, topic: int, offset: int, values: list[bytes]) -> None:
        await over
        for number, value in enumerate(values):
            key = (topic, offset + number)
            assert self.promises.seen.setdefault(key, value) == value, f"{key} was given twice"

    async def _settled(self, over, start: int, attempts: int) -> None:
        await over
        self.promises.settled.add(start, start + 1)
        self.promises.attempts = attempts

    def _next_value(self) -> bytes:
        self._number += 1
        return b"message %d" % self._number


class CarelessFiles:
    """Files of which some calls do nothing, as a program with a bug would leave them out."""

    def __init__(self, files: Files, careless: frozenset[str]) -> None:
        self._files = files
        self._careless = careless

    def __getattr__(self, name: str):
        return getattr(self._files, name)

    async def create(self, path: str) -> AppendFile:
        file = await self._files.create(path)
        return UnsyncedFile(file) if self._forgets_sync_of(path) else file

    async def open_append(self, path: str) -> AppendFile:
        file = await self._files.open_append(path)
        return UnsyncedFile(file) if self._forgets_sync_of(path) else file

    async def sync_directory(self, path: str) -> None:
        if "sync directory" not in self._careless:
            await self._files.sync_directory(path)

    def _forgets_sync_of(self, path: str) -> bool:
        return ("sync log" in self._careless and path.endswith(".log")) or (
            "sync rewrite" in self._careless and ".rewrite" in path
        )


class UnsyncedFile(AppendFile):
    def __init__(self, file: AppendFile) -> None:
        self._file = file

    @override
    async def append(self, parts: Sequence[bytes]) -> None:
        await self._file.append(parts)

    @override
    async def sync(self) -> None:
        pass

    @override
    async def append_and_sync(self, parts: Sequence[bytes]) -> None:
        await self._file.append(parts)

    @override
    async def close(self) -> None:
        await self._file.close()


@cache
def operations() -> list[Operation]:
    """What two brokers do, one after the other, when nothing goes wrong."""

    async def main(randomness: Randomness) -> list[Operation]:
        world = World(randomness)
        assert await world.run_broker()
        assert await world.run_broker()
        return world.disk.operation_log

    return run_simulated(main, "count")


def syncs_of_directory() -> list[int]:
    """The numbers of the operations that make the name of a new journal file durable."""
    return [
        this.number
        for before, this in pairwise(operations())
        if this.name == "sync_directory" and before.name == "sync" and before.path.endswith(".log")
    ]


def crash_everywhere(seeds: int, careless: frozenset[str] = frozenset()) -> int:
    """Stop the broker at each of its operations, and look what the next ones find."""

    async def main(randomness: Randomness, number: int, after: bool) -> int:
        world = World(randomness, careless)
        world.disk.crash_at(number, after=after)
        for _ in range(2):
            if not await world.run_broker():
                break
        crashes = 0
        # Recovery is a program like any other: it may be stopped as well.
        for _ in range(3):
            if randomness.below(4):
                world.disk.crash(randomness)
            else:
                world.disk.kill()
            crashes += 1
            world.disk.crash_at(world.disk.operations + 1 + randomness.below(12))
            await world.run_broker()
        world.disk.crash(randomness)
        assert await world.run_broker()
        return crashes + 1

    return sum(
        run_simulated(lambda r, n=number, a=after: main(r, n, a), f"{number} {after} {seed}")
        for number in range(1, len(operations()) + 1)
        for after in (False, True)
        for seed in range(seeds)
    )


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_wherever_the_machine_stops() -> None:
    crashes = crash_everywhere(seeds=1)
    print(f"stopped at {len(operations())} operations, {crashes} crashes recovered from")


def stop_recoveries(seed: str, *, killed_at: int, stops: Sequence[int]) -> bool:
    """Kill the broker, stop one recovery after another, cut the power; tell if all were stopped."""

    async def main(randomness: Randomness) -> bool:
        world = World(randomness)
        world.disk.crash_at(killed_at)
        assert not await world.run_broker()
        stopped = True
        for number in stops:
            world.disk.kill()
            world.disk.crash_at(world.disk.operations + number)
            stopped = stopped and not await world.run_broker(work=False)
        world.disk.crash(randomness)
        assert await world.run_broker(work=False)
        return stopped

    return run_simulated(main, seed)


@pytest.mark.slow
def test_the_power_may_fail_anywhere_while_the_first_file_is_recovered() -> None:
    stopped = [
        stop_recoveries(f"{number} {seed}", killed_at=syncs_of_directory()[0], stops=[number])
        for number in range(1, 14)
        for seed in range(60)
    ]
    assert sum(stopped) > len(stopped) / 2, "recovery was hardly ever stopped"


@pytest.mark.slow
def test_recovery_may_be_stopped_twice_and_the_power_fail_after_it() -> None:
    stopped = [
        stop_recoveries(
            f"{first} {second} {seed}", killed_at=syncs_of_directory()[1] + 2, stops=[first, second]
        )
        for first in range(1, 14)
        for second in range(1, 14)
        for seed in range(2)
    ]
    assert sum(stopped) > len(stopped) / 2, "recovery was hardly ever stopped"


@pytest.mark.slow
@pytest.mark.parametrize("forgotten", ["sync log", "sync directory", "sync rewrite"])
def test_the_crashes_find_each_sync_that_is_forgotten(forgotten: str) -> None:
    with pytest.raises((AssertionError, Corruption)) as found:
        crash_everywhere(seeds=1, careless=frozenset({forgotten}))
    print(forgotten, "->", type(found.value).__name__, found.value)
