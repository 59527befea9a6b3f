"""One stream over segments, journal and cache, on an instant simulated disk."""

import asyncio
from typing import Any

import pytest
from msgspec import structs
from typing_extensions import override

from pydanube.errors import Corruption, InvalidRequest, Overloaded, Unavailable
from pydanube.model.ids import Offset, TopicId
from pydanube.model.message import Message
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.storage.config import LocalRetention
from pydanube.storage.errors import StoreFailed, StoreProblem
from pydanube.storage.journal.quarantine import quarantine
from pydanube.storage.segments.directory_store import DirectoryStore
from pydanube.storage.segments.planning import RetentionRule
from tests.support.faulty_store import Cloud, FaultyStore
from tests.support.segment_broker import (
    ROOT,
    CountingStore,
    SegmentBroker,
    simulated,
    small_config,
    topic_name,
)


def numbered(first: int, end: int) -> list[Message]:
    return [
        Message(payload=b"message %d" % n, publish_time_ms=n * 10, producer_name="p")
        for n in range(first, end)
    ]


async def filled(broker: SegmentBroker, topic: int, end: int, first: int = 0) -> dict[int, Message]:
    for at in range(first, end, 5):
        assert await broker.append(topic, numbered(at, min(at + 5, end))) == at
    return dict(enumerate(numbered(first, end), first))


async def journal_names(disk: SimulatedDisk) -> list[str]:
    return [name for name in await disk.list_names("/data/wal") if name.endswith(".log")]


@simulated
async def test_sealed_messages_are_read_from_segments_after_the_journal_let_go(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker = await SegmentBroker.start(disk, randomness)
    expected = await filled(broker, 1, 200)
    await broker.seal(1)
    expected |= await filled(broker, 1, 230, first=200)
    assert await broker.read_all(1) == expected
    index = broker.storage._contents.topics[TopicId(1)]
    assert index.first_offset > 0, "the journal still holds everything"
    assert broker.log(1).first_offset == 0
    assert len(broker.entries(1)) > 3
    await broker.check_catalog(1)
    for start in (0, 7, 99, 199, 200, 229):
        assert await broker.read_all(1, start) == {o: m for o, m in expected.items() if o >= start}
    await broker.stop()


@simulated
async def test_everything_is_there_after_a_restart(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker = await SegmentBroker.start(disk, randomness)
    expected = await filled(broker, 1, 100)
    await broker.seal(1)
    await broker.stop()
    broker = await SegmentBroker.start(disk, randomness)
    assert await broker.read_all(1) == expected
    assert await broker.append(1, numbered(100, 101)) == 100
    await broker.stop()


@simulated
async def test_a_broker_without_its_journal_goes_on_where_the_segments_end(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker = await SegmentBroker.start(disk, randomness)
    expected = await filled(broker, 1, 100)
    await broker.seal(1)
    await broker.stop()
    for name in await disk.list_names("/data/wal"):
        await disk.remove(f"/data/wal/{name}")
    broker = await SegmentBroker.start(disk, randomness)
    assert await broker.read_all(1) == expected
    assert await broker.append(1, numbered(100, 105)) == 100
    assert len(await broker.read_all(1)) == 105
    await broker.seal(1)
    await broker.check_catalog(1)
    await broker.stop()


@simulated
async def test_a_topic_is_exported_when_it_has_waited_long_enough(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker = await SegmentBroker.start(disk, randomness, small_config(seal_bytes=10**6))
    await filled(broker, 1, 5)
    await _pass(59)
    assert broker.entries(1) == []
    await _pass(2)
    assert [(e.base, e.end) for e in broker.entries(1)] == [(0, 5)]
    await _pass(600)
    assert len(broker.entries(1)) == 1, "nothing came in, so nothing is exported"
    await broker.append(1, numbered(5, 6))
    await _pass(61)
    assert [(e.base, e.end) for e in broker.entries(1)] == [(0, 5), (5, 6)]
    await broker.stop()


async def _pass(seconds: float) -> None:
    await asyncio.sleep(seconds)


@simulated
async def test_a_topic_is_exported_as_soon_as_enough_has_gathered(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker = await SegmentBroker.start(disk, randomness, small_config(seal_seconds=10**6))
    await filled(broker, 1, 300)
    await _pass(1)
    assert len(broker.entries(1)) > 3
    assert broker.storage.unexported_bytes < 2 * 1_500
    await broker.check_catalog(1)
    await broker.stop()


@simulated
async def test_journal_files_go_once_all_their_topics_are_exported(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker = await SegmentBroker.start(disk, randomness, small_config(seal_bytes=10**6))
    for first in range(0, 50, 5):
        await filled(broker, 1, first + 5, first)
        await filled(broker, 2, first + 5, first)
    before = await journal_names(disk)
    assert len(before) > 3
    await broker.seal(1)
    await _pass(1)
    assert set(before) <= set(await journal_names(disk)), "the other topic needs them"
    await broker.seal(2)
    await _pass(1)
    assert len(await journal_names(disk)) == 1
    assert len(await broker.read_all(1)) == len(await broker.read_all(2)) == 50
    await broker.stop()


@simulated
async def test_exported_journal_files_stay_for_their_time(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker = await SegmentBroker.start(disk, randomness, small_config(keep_minutes=60))
    await filled(broker, 1, 100)
    await broker.seal(1)
    await _pass(50 * 60)
    assert len(await journal_names(disk)) > 3
    await _pass(15 * 60)
    assert len(await journal_names(disk)) == 1
    await broker.stop()


@simulated
async def test_many_readers_share_what_is_read(randomness: Randomness, disk: SimulatedDisk) -> None:
    store = CountingStore(DirectoryStore(disk, ROOT, provider="local", setting=""))
    broker = await SegmentBroker.start(
        disk, randomness, small_config(seal_bytes=10**6, cache_bytes=0), store
    )
    await filled(broker, 1, 100)
    await broker.seal(1)
    await _pass(1)
    store.reads.clear()
    results = await asyncio.gather(*(broker.read_all(1) for _ in range(20)))
    assert all(len(found) == 100 for found in results)
    assert len(store.reads) == 1, "a small object is fetched once, whole"
    await broker.stop()


@simulated
async def test_a_damaged_segment_is_named_and_nothing_of_it_is_shown(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker = await SegmentBroker.start(disk, randomness, small_config(seal_bytes=10**6))
    await filled(broker, 1, 50)
    await broker.seal(1)
    await broker.append(1, numbered(50, 51))
    await _pass(1)
    await broker.stop()
    [entry] = broker.entries(1)
    disk.flip_bit(f"{ROOT}/{entry.key}", entry.bytes // 2, 3)
    broker = await SegmentBroker.start(disk, randomness, small_config(keep_minutes=0))
    with pytest.raises(Corruption, match=rf"offsets 0 to 49.*{entry.crc32c:08x}"):
        await broker.read_all(1)
    assert broker.metrics.reader_errors == {("local", "crc"): 1}
    assert list(await broker.read_all(1, 50)) == [50]
    await broker.stop()


@simulated
async def test_a_missing_segment_is_named(randomness: Randomness, disk: SimulatedDisk) -> None:
    broker = await SegmentBroker.start(disk, randomness, small_config(seal_bytes=10**6))
    await filled(broker, 1, 50)
    await broker.seal(1)
    await _pass(1)
    [entry] = broker.entries(1)
    await broker.stop()
    await disk.remove(f"{ROOT}/{entry.key}")
    broker = await SegmentBroker.start(disk, randomness)
    with pytest.raises(Corruption, match="Restore the object"):
        await broker.read_all(1)
    await broker.stop()


@simulated
async def test_the_first_offset_at_a_time_is_found_in_every_tier(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker = await SegmentBroker.start(disk, randomness)
    await filled(broker, 1, 100)
    await broker.seal(1)
    await filled(broker, 1, 120, first=100)
    log = broker.log(1)
    for time_ms, offset in ((0, 0), (1, 1), (500, 50), (991, 100), (1190, 119), (1191, 120)):
        assert await log.offset_at_time(time_ms) == offset
    await broker.stop()


@simulated
async def test_history_expires_and_readers_begin_at_what_is_left(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker = await SegmentBroker.start(disk, randomness)
    expected = await filled(broker, 1, 200)
    await broker.seal(1)
    files = await _object_names(broker, 1)
    broker.retention[1] = RetentionRule(time_ms=3_600_000, held_from=Offset(0))
    await _pass(2 * 3600)
    assert broker.log(1).first_offset == 0, "somebody has not read it"
    third = broker.entries(1)[3].base
    broker.retention[1] = RetentionRule(time_ms=3_600_000, held_from=third)
    await _pass(120)
    assert broker.log(1).first_offset == third
    assert await broker.read_all(1) == {o: m for o, m in expected.items() if o >= third}
    assert len(await _object_names(broker, 1)) == len(files) - 3
    await broker.check_catalog(1)
    broker.retention[1] = RetentionRule(bytes_max=0)
    await _pass(120)
    assert len(broker.entries(1)) == 1
    broker.retention[1] = RetentionRule(time_ms=0)
    await _pass(120)
    assert (broker.log(1).first_offset, broker.log(1).durable_end) == (200, 200)
    assert await broker.read_all(1) == {}
    await broker.stop()
    broker = await SegmentBroker.start(disk, randomness)
    assert await broker.append(1, numbered(200, 201)) == 200
    assert broker.log(1).first_offset == 200
    await broker.stop()


async def _object_names(broker: SegmentBroker, topic: int) -> list[str]:
    return await broker.store.list(f"{topic_name(topic)[1:]}/{topic}/")


@simulated
async def test_a_deleted_topic_leaves_nothing_behind(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker = await SegmentBroker.start(disk, randomness)
    await filled(broker, 1, 200)
    await filled(broker, 2, 50)
    await broker.seal(1)
    await broker.seal(2)
    assert await _object_names(broker, 1)
    await filled(broker, 1, 250, first=200)
    await broker.storage.remove_segments(TopicId(1), topic_name(1))
    broker.storage.drop_topic(TopicId(1))
    await _pass(1)
    assert await _object_names(broker, 1) == []
    assert broker.entries(1) == []
    assert broker.catalog.retired() == []
    assert len(await broker.read_all(2)) == 50
    await broker.stop()


@simulated
async def test_objects_of_an_earlier_life_are_swept_up(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker = await SegmentBroker.start(disk, randomness)
    expected = await filled(broker, 1, 200)
    await broker.seal(1)
    names = await _object_names(broker, 1)
    orphan = names[0][:-20] + "0123456789abcdef.parquet"
    await broker.store.put(orphan, b"half a segment")
    await broker.store.put(names[0] + ".tmp", b"half a file")
    await broker.stop()
    broker = await SegmentBroker.start(disk, randomness)
    broker.log(1)
    await _pass(5)
    assert await _object_names(broker, 1) == names
    assert await broker.read_all(1) == expected
    await broker.stop()


async def _append_until_refused(broker: SegmentBroker, message: Message) -> int:
    for stored in range(200):
        try:
            await broker.append(1, [message])
        except Overloaded:
            return stored
        await _pass(1)
    raise AssertionError("everything was accepted")


@simulated
async def test_an_outage_costs_space_until_there_is_none_and_then_publishes_are_refused(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    cloud = Cloud(randomness)
    base = small_config(file_bytes=200_000, seal_bytes=100_000)
    config = structs.replace(base, local_retention=LocalRetention(size_mb=1))
    broker = await SegmentBroker.start(disk, randomness, config, FaultyStore(cloud))
    cloud.fault_percent = 100
    big = Message(payload=b"x" * 20_000, publish_time_ms=1, producer_name="p")
    stored = await _append_until_refused(broker, big)
    assert 45 < stored < 60
    assert isinstance(broker.storage.store_failure, StoreFailed)
    assert len(await broker.read_all(1)) == stored, "what was accepted stays readable"
    cloud.fault_percent = 0
    await _pass(300)
    assert broker.storage.store_failure is None
    await broker.append(1, [big])
    assert len(await broker.read_all(1)) == stored + 1
    await broker.check_catalog(1)
    await broker.stop()


@simulated
async def test_a_store_that_an_operator_must_mend_is_refused_at_the_start(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    class Refusing(FaultyStore):
        problem = StoreProblem.CREDENTIALS

        @override
        async def put_if_absent(self, key: str, data: bytes) -> bool:
            raise StoreFailed(self.description, self.problem, "refused", "check the key")

    with pytest.raises(InvalidRequest, match="check the key"):
        await SegmentBroker.start(disk, randomness, store=Refusing(Cloud(randomness)))
    Refusing.problem = StoreProblem.UNREACHABLE
    broker = await SegmentBroker.start(disk, randomness, store=Refusing(Cloud(randomness)))
    assert await filled(broker, 1, 20) == await broker.read_all(1)
    await broker.stop()


@simulated
async def test_offsets_that_the_journal_lost_are_an_entry_without_messages(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    config = small_config(seal_bytes=10**6, seal_seconds=10**6)
    broker = await SegmentBroker.start(disk, randomness, config)
    expected = await filled(broker, 1, 100)
    await broker.stop()
    second = (await journal_names(disk))[1]
    disk.replace_contents(f"/data/wal/{second}", b"\0" * len(disk.contents(f"/data/wal/{second}")))
    await quarantine(disk, "/data/wal", SimulatedClock())
    broker = await SegmentBroker.start(disk, randomness, config)
    left = await broker.read_all(1)
    assert 50 < len(left) < 100
    await broker.seal(1)
    lost = [entry for entry in broker.entries(1) if entry.is_lost]
    assert [e.rows for e in lost] == [0]
    assert {o for o in expected if o not in left} == set(range(lost[0].base, lost[0].end))
    assert await broker.read_all(1) == left
    await broker.append(1, numbered(100, 101))
    await _pass(1)
    assert not broker.storage._contents.topics[TopicId(1)].holds(0)
    assert {o: m for o, m in (await broker.read_all(1)).items() if o < 100} == left
    pieces = await broker.log(1).read(lost[0].base, Offset(10**6))
    assert pieces[0].start == lost[0].end, "readers go on behind what is lost"
    await broker.stop()


@simulated
async def test_small_segments_are_joined_and_the_old_ones_stay_for_an_hour(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    config = small_config(seal_bytes=100_000, seal_seconds=10**6)
    broker = await SegmentBroker.start(disk, randomness, config)
    broker.log(1)
    await _pass(1)  # The first round is over; the next one comes in a minute.
    expected: dict[int, Message] = {}
    for first in range(0, 200, 10):
        expected |= await filled(broker, 1, first + 10, first)
        await broker.seal(1)
    before = broker.entries(1)
    assert len(before) == 20
    await _pass(120)
    after = broker.entries(1)
    assert [(e.base, e.end, e.rows) for e in after] == [(0, 200, 200)]
    assert after[0].created_ms == max(e.created_ms for e in before)
    await broker.check_catalog(1)
    assert await broker.read_all(1) == expected
    assert set(await _object_names(broker, 1)) == {e.key for e in (*before, *after)}
    await _pass(3_700)
    assert await _object_names(broker, 1) == [after[0].key]
    assert await broker.read_all(1) == expected
    await broker.stop()


@simulated
async def test_a_swap_that_happens_after_it_was_reported_as_failed_loses_nothing(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    config = small_config(seal_bytes=100_000, seal_seconds=10**6)
    broker = await SegmentBroker.start(disk, randomness, config)
    broker.log(1)
    await _pass(1)
    expected: dict[int, Message] = {}
    for first in range(0, 100, 10):
        expected |= await filled(broker, 1, first + 10, first)
        await broker.seal(1)
    swap = broker.catalog.replace
    late: list[asyncio.Task[None]] = []

    async def answer_too_early(*arguments: Any) -> None:
        async def happen() -> None:
            await _pass(5)
            await swap(*arguments)

        if not late:
            late.append(asyncio.create_task(happen()))
            raise Unavailable("no answer in time")
        await swap(*arguments)

    broker.catalog.replace = answer_too_early  # type: ignore[method-assign]
    await _pass(66)
    await late[0]
    assert [(e.base, e.end) for e in broker.entries(1)] == [(0, 100)]
    await _pass(4_000)
    await broker.check_catalog(1)
    broker.log(1).segments.look_again()  # type: ignore[union-attr]
    assert await broker.read_all(1) == expected
    await broker.stop()


@simulated
async def test_a_run_that_changed_while_it_was_read_is_not_swapped(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    config = small_config(seal_bytes=100_000, seal_seconds=10**6)
    broker = await SegmentBroker.start(disk, randomness, config)
    broker.log(1)
    await _pass(1)
    for first in range(0, 100, 10):
        await filled(broker, 1, first + 10, first)
        await broker.seal(1)
    swap = broker.catalog.replace
    segments = broker.log(1).segments
    assert segments is not None

    async def expire_meanwhile(*arguments: Any) -> None:
        broker.catalog.replace = swap  # type: ignore[method-assign]
        await broker.catalog.expire(segments.origin, segments.entries()[:1], 0)
        await swap(*arguments)

    broker.catalog.replace = expire_meanwhile  # type: ignore[method-assign]
    await _pass(65)
    assert broker.entries(1)[0].base == 10, "what expired has not come back"
    await broker.check_catalog(1)
    assert sorted(await broker.read_all(1)) == list(range(10, 100))
    known = {entry.key for entry in broker.entries(1)}
    known |= {retired.key for retired in broker.catalog.retired()}
    assert set(await _object_names(broker, 1)) <= known, "the attempt left nothing behind"
    await broker.stop()
