"""Whatever happened to a topic, every offset is read back as it was published, from any tier."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.model.ids import Offset
from pydanube.model.message import Message
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.storage.segments.planning import RetentionRule
from tests.support.segment_broker import SegmentBroker, small_config
from tests.support.segment_rows import any_messages

Step = tuple[str, int]
LIMITS = st.fixed_dictionaries(
    {
        "file_bytes": st.sampled_from([1_500, 4_000, 100_000]),
        "seal_bytes": st.sampled_from([800, 3_000, 100_000]),
        "cache_bytes": st.sampled_from([0, 3_000, 100_000]),
        "keep_minutes": st.sampled_from([0, 5]),
    }
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "seal", "wait", "restart", "expire"]),
        st.integers(0, 40),
    ),
    min_size=3,
    max_size=14,
)


class Topic:
    """What was published, and what may be gone."""

    def __init__(self, randomness: Randomness) -> None:
        self.randomness = randomness
        self.messages: list[Message] = []
        self.first = 0

    async def step(self, broker: SegmentBroker, name: str, number: int) -> None:
        match name:
            case "append":
                batch = any_messages(self.randomness, number + 1)
                assert await broker.append(1, batch) == len(self.messages)
                self.messages += batch
            case "seal":
                await broker.seal(1)
            case "wait":
                await asyncio.sleep(number * 20)
            case "expire":
                await self._expire(broker, number)

    async def _expire(self, broker: SegmentBroker, number: int) -> None:
        """Give up all segments but the last few, as a policy of size does."""
        entries = broker.entries(1)[-(number % 4 + 1) :]
        kept = sum(entry.bytes for entry in entries)
        broker.retention[1] = RetentionRule(bytes_max=kept)
        await asyncio.sleep(61)
        broker.retention.clear()
        now_first = broker.log(1).first_offset
        left = broker.entries(1)
        assert self.first <= now_first <= (left[-1].base if left else self.first)
        self.first = now_first

    async def check(self, broker: SegmentBroker) -> None:
        log = broker.log(1)
        end = len(self.messages)
        assert (log.first_offset, log.durable_end) == (self.first if end else 0, end)
        await broker.check_catalog(1)
        starts = {0, self.first, end // 2, max(end - 1, 0)}
        starts |= {entry.base for entry in broker.entries(1)[-3:]}
        for start in sorted(starts):
            await self._read(broker, start, 1 + self.randomness.below(3_000))
        times = sorted({message.publish_time_ms for message in self.messages[self.first :]})
        for time in times[:3]:
            expected = next(
                offset
                for offset in range(self.first, end)
                if self.messages[offset].publish_time_ms >= time
            )
            assert await log.offset_at_time(time) == expected

    async def _read(self, broker: SegmentBroker, start: int, bytes_max: int) -> None:
        """Read to the end in steps of some size, and compare every column of every row."""
        log = broker.log(1)
        at = Offset(start)
        expected = max(start, self.first)
        while pieces := await log.read(at, log.durable_end, bytes_max=bytes_max):
            for piece in pieces:
                assert piece.start == expected, "a gap or a repeat"
                rows = piece.batch.messages(piece.first_row, piece.end_row)
                assert rows == self.messages[piece.start : piece.end]
                expected = piece.end
            at = pieces[-1].end
        assert expected == len(self.messages)


@settings(max_examples=60, deadline=None)
@given(limits=LIMITS, steps=STEPS, seed=st.integers(0, 1_000))
def test_every_offset_is_read_back_identically_through_every_tier(
    limits: dict[str, int], steps: list[Step], seed: int
) -> None:
    async def main(randomness: Randomness) -> None:
        disk = SimulatedDisk(randomness)
        config = small_config(**limits)
        topic = Topic(randomness)
        broker = await SegmentBroker.start(disk, randomness, config)
        for name, number in steps:
            if name == "restart":
                await broker.stop()
                broker = await SegmentBroker.start(disk, randomness, config)
            else:
                await topic.step(broker, name, number)
            await topic.check(broker)
        await broker.stop()

    run_simulated(main, seed)


@settings(max_examples=15, deadline=None)
@given(limits=LIMITS, seed=st.integers(0, 1_000))
def test_readers_that_are_overtaken_by_exports_and_deletions_miss_nothing(
    limits: dict[str, int], seed: int
) -> None:
    """Slow readers go through a topic while it grows, is exported, and loses its journal files."""

    async def main(randomness: Randomness) -> None:
        broker = await SegmentBroker.start(
            SimulatedDisk(randomness), randomness, small_config(**limits)
        )
        published: list[Message] = []

        async def publish() -> None:
            for _ in range(30):
                batch = any_messages(randomness, 1 + randomness.below(10))
                await broker.append(1, batch)
                published.extend(batch)
                await asyncio.sleep(randomness.uniform(0.0, 3.0))

        async def follow(pause: float) -> list[Message]:
            log = broker.log(1)
            seen: list[Message] = []
            while len(seen) < len(published) or not publishing.done():
                start = Offset(len(seen))
                for piece in await log.read(start, log.durable_end, bytes_max=600):
                    assert piece.start == len(seen), "a gap or a repeat"
                    seen += piece.batch.messages(piece.first_row, piece.end_row)
                await asyncio.sleep(randomness.uniform(0.0, pause))
            return seen

        publishing = asyncio.create_task(publish())
        readers = [asyncio.create_task(follow(pause)) for pause in (0.1, 1.0, 5.0)]
        await publishing
        for reader in readers:
            assert await reader == published
        await broker.stop()

    run_simulated(main, seed)
