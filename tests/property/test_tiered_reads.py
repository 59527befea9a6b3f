"""Whatever happened to a topic, every offset is read back as it was published, from any tier."""

import asyncio

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from pydanube.model.ids import Offset
from pydanube.model.message import Message
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.storage.segments.compaction import RUN_MIN
from pydanube.storage.segments.planning import RetentionRule
from pydanube.storage.topic_log import TopicLog
from pydanube.topics.positions import DISORDER_MS, start_offset
from tests.support.segment_broker import SegmentBroker, small_config
from tests.support.segment_rows import any_messages

Step = tuple[str, int]
LIMITS = st.fixed_dictionaries(
    {
        "file_bytes": st.sampled_from([1_500, 4_000, 100_000]),
        "seal_bytes": st.sampled_from([800, 3_000, 100_000]),
        "cache_bytes": st.sampled_from([0, 3_000, 100_000]),
        "keep_minutes": st.sampled_from([0, 5]),
        "read_cache_bytes": st.sampled_from([0, 2_000, 1_000_000]),
    }
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("append", "append", "append", "seal", "wait", "restart", "crash", "expire"),
                *("dust", "dust", "wait an hour"),
            ]
        ),
        st.integers(0, 40),
    ),
    min_size=3,
    max_size=14,
)


class Topic:
    """What was published, and what may be gone."""

    def __init__(self, randomness: Randomness, *, in_order: bool) -> None:
        self.randomness = randomness
        self.in_order = in_order
        """Whether publishers' clocks agree, more or less: only then a time is a start position."""
        self.messages: list[Message] = []
        self.first = 0

    async def step(self, broker: SegmentBroker, name: str, number: int) -> None:
        match name:
            case "append":
                await self._append(broker, number + 1)
            case "seal":
                await broker.seal(1)
            case "dust":
                # So many tiny segments that some are joined, and later the old ones deleted.
                for _ in range(RUN_MIN + number % 4):
                    await self._append(broker, 1 + number % 3)
                    await broker.seal(1)
            case "wait an hour":
                await asyncio.sleep(3_700)
            case "wait":
                await asyncio.sleep(number * 20)
            case "expire":
                await self._expire(broker, number)

    async def _append(self, broker: SegmentBroker, count: int) -> None:
        batch = any_messages(self.randomness, count)
        if self.in_order:
            batch = [
                structs.replace(message, publish_time_ms=self._next_time_ms(number))
                for number, message in enumerate(batch)
            ]
        assert await broker.append(1, batch) == len(self.messages)
        self.messages += batch

    def _next_time_ms(self, number: int) -> int:
        steady = 10_000 + 300 * (len(self.messages) + number)
        return steady + self.randomness.below(DISORDER_MS)

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
        await self._check_start_positions(log, times)

    async def _check_start_positions(self, log: TopicLog, times: list[int]) -> None:
        end = len(self.messages)
        assert await start_offset(log, "earliest") == log.first_offset
        assert await start_offset(log, "latest") == end
        for wanted in (0, self.first, end // 2, end, end + 5):
            found = await start_offset(log, f"offset:{wanted}")
            assert found == min(max(wanted, log.first_offset), end)
        if not self.in_order:
            return
        for time in [*times[:: max(1, len(times) // 4)], *times[-1:], 0, 2**60]:
            kept = enumerate(self.messages[self.first :], self.first)
            expected = next((at for at, each in kept if each.publish_time_ms >= time), end)
            assert await start_offset(log, f"time:{time}") == expected

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
@given(limits=LIMITS, steps=STEPS, seed=st.integers(0, 1_000), in_order=st.booleans())
@example(
    limits={"file_bytes": 1_500, "seal_bytes": 100_000, "cache_bytes": 0, "keep_minutes": 0},
    steps=[("dust", 0), ("dust", 0), ("append", 0)],
    seed=1,
    in_order=False,
)
@example(
    limits={"file_bytes": 1_500, "seal_bytes": 100_000, "cache_bytes": 0, "keep_minutes": 0},
    steps=[("dust", 3), ("wait", 4), ("dust", 2), ("crash", 0), ("wait an hour", 0), ("wait", 10)],
    seed=1,
    in_order=True,
)
def test_every_offset_is_read_back_identically_through_every_tier(
    limits: dict[str, int], steps: list[Step], seed: int, in_order: bool
) -> None:
    async def main(randomness: Randomness) -> None:
        disk = SimulatedDisk(randomness)
        config = small_config(**limits)
        topic = Topic(randomness, in_order=in_order)
        broker = await SegmentBroker.start(disk.mount(), randomness, config)
        for name, number in steps:
            if name == "restart":
                await broker.stop()
                broker = await SegmentBroker.start(disk.mount(), randomness, config)
            elif name == "crash":
                # Nothing is under way that was not acknowledged, so that nothing may be lost.
                disk.crash(randomness)
                await broker.abandon()
                broker = await SegmentBroker.start(disk.mount(), randomness, config)
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
