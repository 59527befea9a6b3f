"""Segments that were joined elsewhere: checked, swapped at once or not at all, whatever crashes."""

import asyncio

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from pydanube.errors import Conflict, Corruption, InvalidRequest, Unavailable
from pydanube.model.ids import Offset, TopicId
from pydanube.model.message import Message
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.runtime.tasks import carry_through
from pydanube.storage.segments import encoding, staged
from pydanube.storage.segments.catalog import SegmentEntry
from pydanube.storage.segments.compaction import GRACE_MS
from pydanube.storage.segments.decoding import read_layout
from pydanube.storage.segments.encoding import SegmentEncoder, SegmentOrigin
from pydanube.storage.segments.planning import RetentionRule
from pydanube.storage.segments.staged import Staged, staged_key
from tests.support.garbled_joins import CHANGES, garbled, rich
from tests.support.segment_broker import SegmentBroker, simulated, small_config, topic_name

CONFIG = small_config(seal_bytes=100_000, seal_seconds=10**6)
ORIGIN = SegmentOrigin(topic=topic_name(1), topic_id=TopicId(1), epoch=0)
KEY = staged_key(ORIGIN, 7)


async def with_segments(
    disk: SimulatedDisk, randomness: Randomness, count: int = 4
) -> tuple[SegmentBroker, dict[int, Message]]:
    broker = await SegmentBroker.start(disk.mount(), randomness, CONFIG, tolerate=OSError)
    broker.log(1)
    await asyncio.sleep(1)  # The first round of upkeep is over.
    for first in range(0, count * 10, 10):
        await broker.append(1, [rich(number) for number in range(first, first + 10)])
        await broker.seal(1)
    return broker, await broker.read_all(1)


async def join(
    broker: SegmentBroker, run: list[SegmentEntry], origin: SegmentOrigin = ORIGIN
) -> bytes:
    """Join as a job elsewhere does."""
    encoder = SegmentEncoder(origin, run[0].base)
    for entry in run:
        data = await broker.store.read(entry.key, 0, entry.bytes)
        layout = read_layout(
            data, len(data), topic_id=entry.topic_id, base=entry.base, rows=entry.rows
        )
        for number, group in enumerate(layout.groups):
            pieces = layout.decode(number, data[group.position : group.position + group.size])
            encoder.add(pieces)
    return encoder.finish().data


async def stage(broker: SegmentBroker, data: bytes, key: str = KEY) -> Staged:
    await broker.store.put(key, data)
    return Staged(key=key, bytes=len(data), crc32c=google_crc32c.value(data))


async def names(broker: SegmentBroker) -> list[str]:
    return await broker.store.list(f"{topic_name(1)[1:]}/1/")


@simulated
async def test_a_joined_segment_takes_the_place_of_its_parts_and_readers_notice_nothing(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker, expected = await with_segments(disk, randomness)
    before = broker.entries(1)
    run = before[1:3]
    keys = [each.key for each in run]
    staged = await stage(broker, await join(broker, run))
    joined = await broker.log(1).adopt(keys, staged)
    assert broker.entries(1) == [before[0], joined, before[3]]
    assert (joined.base, joined.end, joined.rows) == (10, 30, 20)
    assert joined.created_ms == max(each.created_ms for each in run)
    assert joined.raw_bytes == sum(each.raw_bytes for each in run)
    await broker.check_catalog(1)
    assert await broker.read_all(1) == expected
    # Whoever planned with the old ones still reads them, many rounds of upkeep later.
    await asyncio.sleep(GRACE_MS / 1000 / 2)
    for each in run:
        assert len(await broker.store.read(each.key, 0, each.bytes)) == each.bytes
    history = broker.log(1)._history
    assert history is not None
    pieces = await history.reader.read(run[0], Offset(12), run[0].end, 10**6)
    assert pieces[0].start == 12
    assert set(await names(broker)) == {each.key for each in (*before, joined)}
    # An answer that was lost is asked for again.
    assert await broker.log(1).adopt(keys, staged) == joined
    await asyncio.sleep(GRACE_MS / 1000 + 100)
    assert set(await names(broker)) == {each.key for each in broker.entries(1)}
    assert await broker.read_all(1) == expected
    await broker.stop()


@simulated
async def test_segments_that_changed_meanwhile_are_left_alone(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker, expected = await with_segments(disk, randomness)
    before = broker.entries(1)
    data = await join(broker, before[:3])
    first = await broker.log(1).adopt(
        [each.key for each in before[1:3]], await stage(broker, await join(broker, before[1:3]))
    )
    with pytest.raises(Conflict, match="have changed"):
        await broker.log(1).adopt([each.key for each in before[:3]], await stage(broker, data))
    assert broker.entries(1) == [before[0], first, before[3]]
    assert KEY not in await names(broker)
    broker.retention[1] = RetentionRule(bytes_max=1)
    await asyncio.sleep(61)
    left = broker.entries(1)
    assert len(left) == 1, "the rest has expired"
    with pytest.raises(Conflict, match="have changed"):
        await broker.log(1).adopt([before[0].key, first.key], await stage(broker, data))
    assert broker.entries(1) == left
    assert (await broker.read_all(1)).items() <= expected.items()
    await broker.stop()


@simulated
async def test_of_two_jobs_at_once_one_swaps(randomness: Randomness, disk: SimulatedDisk) -> None:
    broker, expected = await with_segments(disk, randomness)
    before = broker.entries(1)
    wide = await stage(broker, await join(broker, before[:3]), staged_key(ORIGIN, 1))
    narrow = await stage(broker, await join(broker, before[1:3]), staged_key(ORIGIN, 2))
    outcomes = await asyncio.gather(
        broker.log(1).adopt([each.key for each in before[:3]], wide),
        broker.log(1).adopt([each.key for each in before[1:3]], narrow),
        return_exceptions=True,
    )
    assert [isinstance(each, Conflict) for each in outcomes] == [False, True]
    assert [(each.base, each.end) for each in broker.entries(1)] == [(0, 30), (30, 40)]
    assert await broker.read_all(1) == expected
    await broker.check_catalog(1)
    await broker.stop()


@simulated
async def test_an_object_that_does_not_hold_just_that_is_refused(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker, expected = await with_segments(disk, randomness)
    before = broker.entries(1)
    keys = [each.key for each in before[:2]]
    good = await join(broker, before[:2])
    flipped = bytearray(good)
    layout = read_layout(good, len(good), topic_id=1, base=Offset(0), rows=20)
    flipped[layout.groups[0].position + layout.groups[0].size - 10] ^= 1  # Among the payloads.
    written = await stage(broker, good)
    await broker.store.put(KEY, bytes(flipped))
    with pytest.raises(Corruption, match="CRC-32C"):
        await broker.log(1).adopt(keys, written)
    another = SegmentOrigin(topic=topic_name(1), topic_id=TopicId(2), epoch=0)
    wrong = {
        "page": bytes(flipped),
        "other rows": await join(broker, before[1:3]),
        "fewer rows": await join(broker, before[:1]),
        "more rows": await join(broker, before[:3]),
        "another topic": await join(broker, before[:2], another),
        "no segment": b"PAR1" * 10,
    }
    for what, data in wrong.items():
        with pytest.raises(Corruption, match="is no segment of"):
            await broker.log(1).adopt(keys, await stage(broker, data))
        assert KEY not in await names(broker), what
    with pytest.raises(Corruption, match="join the segments again"):
        await broker.log(1).adopt(keys, written)
    assert broker.entries(1) == before
    assert await broker.read_all(1) == expected
    await broker.stop()


@simulated
async def test_an_object_whose_messages_are_not_just_the_same_is_refused_by_offset(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker, expected = await with_segments(disk, randomness)
    before = broker.entries(1)
    keys = [each.key for each in before[1:]]
    good = await join(broker, before[1:])
    for what, (columns, change) in CHANGES.items():
        # The ends of the object, and both sides of where one of its parts ends.
        for at in (10, 19, 20, 39):
            data = garbled(good, ORIGIN, 10, 40, at, change)
            first = max(at - 1, 10) if what == "swapped payloads" else at
            told = f"offset {first} has another {columns} than in segment"
            with pytest.raises(Corruption, match=told) as refusal:
                await broker.log(1).adopt(keys, await stage(broker, data))
            assert before[first // 10].key in str(refusal.value), what
            assert broker.entries(1) == before, what
            assert set(await names(broker)) == {each.key for each in before}, what
    assert await broker.read_all(1) == expected
    unaltered = garbled(good, ORIGIN, 10, 40, 10, lambda messages, at: None)
    await broker.log(1).adopt(keys, await stage(broker, unaltered))
    assert await broker.read_all(1) == expected
    await broker.stop()


@simulated
async def test_row_groups_may_end_anywhere_and_each_is_compared(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker, expected = await with_segments(disk, randomness)
    before = broker.entries(1)
    keys = [each.key for each in before]
    _, flip = CHANGES["a flipped bit"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encoding, "GROUP_ROWS_MAX", 7)
        good = await join(broker, before)
        for at in range(40):
            data = garbled(good, ORIGIN, 0, 40, at, flip)
            with pytest.raises(Corruption, match=f"offset {at} has another payload"):
                await broker.log(1).adopt(keys, await stage(broker, data))
    assert broker.entries(1) == before
    joined = await broker.log(1).adopt(keys, await stage(broker, good))
    assert len(joined.group_crc32c) == 6
    await broker.check_catalog(1)
    assert await broker.read_all(1) == expected
    await broker.stop()


@simulated
async def test_what_readers_elsewhere_would_stumble_over_is_refused(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker, _ = await with_segments(disk, randomness)
    before = broker.entries(1)
    keys = [each.key for each in before[:2]]
    good = await join(broker, before[:2])
    table = pq.read_table(pa.BufferReader(good))
    offset = table.schema.get_field_index("offset")
    wrong = {
        "column topic is not /default/topic-1": await join(
            broker, before[:2], structs.replace(ORIGIN, topic="/default/topic-2")
        ),
        "column partition is not 0": rewritten(
            table.set_column(
                1,
                table.schema.field(1),
                pa.chunked_array([pa.repeat(pa.scalar(1, pa.int32()), 20)]),
            )
        ),
        "columns are not those": rewritten(
            table.set_column(
                offset, table.schema.field(offset).with_nullable(True), table.column(offset)
            )
        ),
    }
    for what, data in wrong.items():
        with pytest.raises(Corruption, match=what):
            await broker.log(1).adopt(keys, await stage(broker, data))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(staged, "GROUP_ROWS_MAX", 19)
        with pytest.raises(Corruption, match="from offset 0 on has 20 messages"):
            await broker.log(1).adopt(keys, await stage(broker, good))
        patched.setattr(staged, "GROUP_ROWS_MAX", 20)
        patched.setattr(staged, "_GROUP_STORED_BYTES_MAX", 100)
        with pytest.raises(Corruption, match="bytes together"):
            await broker.log(1).adopt(keys, await stage(broker, good))
    assert broker.entries(1) == before
    await broker.log(1).adopt(keys, await stage(broker, rewritten(table)))
    await broker.stop()


def rewritten(table: pa.Table) -> bytes:
    """Write a segment's rows with another writer, under the same file metadata."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


@simulated
async def test_a_part_that_is_damaged_is_named_and_what_was_joined_of_it_is_kept(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker, expected = await with_segments(disk, randomness)
    before = broker.entries(1)
    keys = [each.key for each in before[:2]]
    given = await stage(broker, await join(broker, before[:2]))
    whole = await broker.store.read(keys[1], 0, before[1].bytes)
    await broker.store.put(keys[1], whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(Corruption, match=f"segment {keys[1]} of .* is damaged"):
        await broker.log(1).adopt(keys, given)
    await broker.store.delete(keys[1])
    with pytest.raises(Corruption, match=f"no object {keys[1]}. Restore the object"):
        await broker.log(1).adopt(keys, given)
    assert broker.entries(1) == before
    assert KEY in await names(broker), "perhaps the last that holds these messages"
    await broker.store.put(keys[1], whole)
    await broker.log(1).adopt(keys, given)
    assert await broker.read_all(1) == expected
    await broker.stop()


@simulated
async def test_an_order_that_makes_no_sense_touches_nothing(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker, _ = await with_segments(disk, randomness)
    before = broker.entries(1)
    keys = [each.key for each in before[:2]]
    for key in (before[3].key, "default/topic-2/2/joined-0000000000000007.parquet", f"../{KEY}"):
        with pytest.raises(InvalidRequest, match="is no name"):
            await broker.log(1).adopt(keys, Staged(key=key, bytes=10, crc32c=1))
    for few in (keys[:1], [keys[0], keys[0]]):
        with pytest.raises(InvalidRequest, match="two different"):
            await broker.log(1).adopt(few, Staged(key=KEY, bytes=10, crc32c=1))
    with pytest.raises(InvalidRequest, match="at most"):
        await broker.log(1).adopt(keys, Staged(key=KEY, bytes=2**40, crc32c=1))
    assert broker.entries(1) == before
    assert set(await names(broker)) == {each.key for each in before}
    await broker.stop()


@simulated
async def test_upkeep_sweeps_up_what_a_dead_job_left(
    randomness: Randomness, disk: SimulatedDisk
) -> None:
    broker, expected = await with_segments(disk, randomness)
    before = broker.entries(1)
    staged = await stage(broker, await join(broker, before[:2]))
    await broker.stop()
    broker = await SegmentBroker.start(disk.mount(), randomness, CONFIG)
    broker.log(1)
    await asyncio.sleep(200)
    assert set(await names(broker)) == {each.key for each in before}
    with pytest.raises(Corruption, match="join the segments again"):
        await broker.log(1).adopt([each.key for each in before[:2]], staged)
    assert await broker.read_all(1) == expected
    await broker.stop()


async def _adopt_and_crash(randomness: Randomness, number: int | None) -> int:
    """Stop the machine at an operation of the disk; return how many an adoption takes."""
    disk = SimulatedDisk(randomness)
    broker, expected = await with_segments(disk, randomness)
    before = broker.entries(1)
    keys = [each.key for each in before[1:3]]
    staged = await stage(broker, await join(broker, before[1:3]))
    begun = disk.operations
    if number is not None:
        disk.crash_at(begun + number, after=number % 2 == 0)
    alive = asyncio.create_task(broker.log(1).adopt(keys, staged))
    stopped = asyncio.create_task(disk.wait_until_stopped())
    await asyncio.wait([alive, stopped], return_when=asyncio.FIRST_COMPLETED)
    taken = disk.operations - begun
    for task in (alive, stopped):
        task.cancel()
    await asyncio.gather(alive, stopped, return_exceptions=True)
    await carry_through(broker.abandon())
    disk.crash(randomness)
    broker = await SegmentBroker.start(disk.mount(), randomness, CONFIG)
    assert await broker.read_all(1) == expected, "something is lost or repeated"
    await broker.check_catalog(1)
    assert len(broker.entries(1)) in (3, 4), "half of a swap"
    try:
        await broker.log(1).adopt(keys, staged)
    except (Corruption, Unavailable):
        # Upkeep was faster, and swept up what is in no catalogue.
        assert broker.entries(1) == before
    else:
        assert [(each.base, each.end) for each in broker.entries(1)] == [
            (0, 10),
            (10, 30),
            (30, 40),
        ]
    await broker.check_catalog(1)
    await asyncio.sleep(GRACE_MS / 1000 + 200)
    assert await broker.read_all(1) == expected
    assert set(await names(broker)) == {each.key for each in broker.entries(1)}
    await broker.stop()
    return taken


def test_a_machine_may_stop_at_every_step_of_a_swap() -> None:
    async def count(randomness: Randomness) -> int:
        return await _adopt_and_crash(randomness, None)

    total = run_simulated(count, "count")
    assert total > 5
    for number in range(1, total + 1):

        async def main(randomness: Randomness, at: int = number) -> int:
            return await _adopt_and_crash(randomness, at)

        run_simulated(main, f"stopped at {number}")
