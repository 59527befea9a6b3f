import asyncio
import errno

import pytest

from pydanube.errors import InvalidRequest, Overloaded, Unavailable
from pydanube.model.batch import Batch
from pydanube.model.ids import Offset, SubscriptionId, TopicId
from pydanube.model.progress import ProgressChange
from pydanube.runtime.randomness import SeededRandomness
from pydanube.storage import frames
from pydanube.storage.config import Rotation, StorageConfig, Wal
from pydanube.storage.journal import writer
from tests.support.journals import (
    DIRECTORY,
    Broker,
    batch_of,
    broker_on,
    instant_disk,
    payloads_of,
    rotating_at,
)

EIO = OSError(errno.EIO, "Input/output error")
ENOSPC = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("operation", "error"),
    [("append", EIO), ("sync", EIO), ("sync", ENOSPC)],
    ids=["EIO-append", "EIO-sync", "ENOSPC-sync"],
)
async def test_a_failed_write_stops_the_journal_for_good(operation: str, error: OSError) -> None:
    disk = instant_disk()
    broker = await Broker.start(disk)
    heard: list[object] = []
    broker.storage.on_failure = heard.append
    await broker.append(1, b"good")
    await broker.create_subscription(7, 0)
    disk.fail_next(operation, error)
    waiting = [broker.begin_append(topic, b"bad")[1] for topic in (1, 1, 2)]
    waiting.append(broker.begin_settle(7, ProgressChange(settled=((0, 1),))))
    for waiter in waiting:
        with pytest.raises(Unavailable, match=error.strerror):
            await waiter
    assert heard == [broker.storage.failure]
    before = disk.operations
    with pytest.raises(Unavailable, match="restart the broker"):
        broker.begin_append(1, b"later")
    with pytest.raises(Unavailable):
        await broker.begin_settle(7, ProgressChange(settled=((0, 1),)))
    with pytest.raises(Unavailable):
        await broker.storage.flush()
    # What was durable stays readable, what failed never shows, and nothing is tried again.
    log = broker.storage.topic(TopicId(1))
    assert log.durable_end == 1
    assert payloads_of(await log.read(Offset(0), Offset(9))) == [b"good"]
    await broker.stop()
    assert disk.operations == before
    async with broker_on(disk) as broker:
        assert (await broker.read_all(1))[0] == b"good"
        assert await broker.append(1, b"after") >= 1


@pytest.mark.parametrize("seed", range(20))
async def test_what_is_shown_after_a_failed_sync_is_never_taken_back(seed: int) -> None:
    disk = instant_disk()
    broker = await Broker.start(disk)
    await broker.append(1, b"good")
    disk.fail_next("sync", EIO)
    with pytest.raises(Unavailable):
        await broker.append(1, b"doubtful")
    # The process ends, the machine goes on and still shows bytes that will never be on disk.
    disk.kill()
    await broker.abandon()
    broker = await Broker.start(disk)
    shown = await broker.read_all(1)
    assert shown[0] == b"good"
    given = await broker.append(1, b"new")
    disk.crash(SeededRandomness(seed))
    await broker.abandon()
    async with broker_on(disk) as broker:
        assert await broker.read_all(1) == shown | {given: b"new"}


async def test_a_failed_rotation_stops_the_journal() -> None:
    failures = [("create", EIO), ("append", EIO), ("sync", ENOSPC), ("sync_directory", ENOSPC)]
    for operation, error in failures:
        disk = instant_disk()
        broker = await Broker.start(disk, rotating_at(1))
        expected = {}
        for number in range(3):
            expected[await broker.append(1, b"%d" % number)] = b"%d" % number
        for _ in range(50):  # Until the finished files have their indexes.
            await disk.exists(DIRECTORY)
        disk.fail_next(operation, error)
        with pytest.raises(Unavailable, match=error.strerror):
            await broker.append(1, b"too much")
        await broker.stop()
        disk.kill()
        async with broker_on(disk) as broker:
            assert await broker.read_all(1) == expected


async def test_memory_and_os_are_done_earlier_than_fsync() -> None:
    disk = instant_disk()
    disk.slow("append", 0.02)
    disk.slow("sync", 0.02)
    async with broker_on(disk) as broker:
        order: list[str] = []
        before = disk.operations
        for topic, how in enumerate(("fsync", "os", "memory"), start=1):
            _, over = broker.begin_append(topic, b"x", durability=how)
            over.add_done_callback(
                lambda _, how=how: order.append(f"{how} after {disk.operations - before}")
            )
        await broker.storage.flush()
        await asyncio.sleep(0)
        assert order == ["memory after 0", "os after 1", "fsync after 2"]
        # All three are written, whatever they waited for.
        assert disk.contents(f"{DIRECTORY}/journal-{0:020}.log").count(b"producer") == 3


async def test_a_stricter_batch_holds_back_the_laxer_ones_behind_it() -> None:
    async with broker_on(instant_disk()) as broker:
        order: list[str] = []
        log = broker.storage.topic(TopicId(1))
        for how in ("fsync", "os", "memory"):
            log.append(batch_of(b"x"), lambda _, how=how: order.append(how), durability=how)
        await asyncio.sleep(0)
        assert log.durable_end == 0
        await broker.storage.flush()
        assert order == ["fsync", "os", "memory"]


async def test_behind_a_failed_batch_nothing_shows() -> None:
    disk = instant_disk()
    disk.slow("append", 0.01)
    broker = await Broker.start(disk)
    disk.fail_next("append", EIO)
    log = broker.storage.topic(TopicId(1))
    ended: list[object] = []
    log.append(batch_of(b"strict"), ended.append)
    log.append(batch_of(b"lax"), ended.append, durability="memory")
    with pytest.raises(Unavailable):
        await broker.storage.flush()
    assert ended == [broker.storage.failure] * 2
    assert log.durable_end == 0
    await broker.stop()


async def test_a_memory_batch_can_be_read_before_it_is_written_even_uncached() -> None:
    disk = instant_disk()
    disk.slow("append", 0.01)
    async with broker_on(disk, StorageConfig(tail_cache_bytes_max=0)) as broker:
        await broker.append(1, b"x", durability="memory")
        assert await broker.read_all(1) == {0: b"x"}


async def test_too_many_unsynced_bytes_are_refused_until_the_disk_catches_up() -> None:
    async with broker_on(instant_disk(), StorageConfig(unsynced_bytes_max=3000)) as broker:
        first, over = broker.begin_append(1, bytes(10_000))  # One is taken, whatever its size.
        assert first == 0
        with pytest.raises(Overloaded, match="unsynced_bytes_max"):
            broker.begin_append(1, b"x")
        assert broker.storage.topic(TopicId(1)).next_offset == 1
        await broker.create_subscription(7, 0)  # Acks still get through.
        await over
        assert broker.storage.unsynced_bytes == 0
        assert await broker.append(1, b"x") == 1


async def test_acks_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydanube.storage.storage._PROGRESS_RESERVE_BYTES", 100)
    async with broker_on(instant_disk(), StorageConfig(unsynced_bytes_max=3000)) as broker:
        await broker.create_subscription(7, 0)
        _, over = broker.begin_append(1, bytes(10_000))
        with pytest.raises(Overloaded):
            await broker.begin_settle(7, ProgressChange(settled=((0, 1),)))
        progress = broker.storage.progress(SubscriptionId(7))
        assert progress is not None
        assert progress.cursor == 0, "a change that was refused must not be counted"
        await over


async def test_a_batch_of_more_rows_than_bytes_is_refused() -> None:
    async with broker_on(instant_disk()) as broker:
        log = broker.storage.topic(TopicId(1))
        with pytest.raises(InvalidRequest, match="more rows than bytes"):
            log.append(Batch.from_bytes(bytes(10), 11), lambda error: None)
        assert log.next_offset == 0


async def test_a_record_beyond_the_frame_limit_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(writer, "PAYLOAD_BYTES_MAX", 2000)
    monkeypatch.setattr(frames, "PAYLOAD_BYTES_MAX", 2000)
    async with broker_on(instant_disk()) as broker:
        with pytest.raises(InvalidRequest, match="smaller batches"):
            broker.begin_append(1, bytes(2000))
        assert await broker.append(1, b"small") == 0


async def test_a_large_queue_is_written_in_bounded_groups(monkeypatch) -> None:
    monkeypatch.setattr(writer, "_GROUP_BYTES_MAX", 3000)
    disk = instant_disk()
    async with broker_on(disk) as broker:
        before = disk.operations
        over = [broker.begin_append(1, b"%d" % n)[1] for n in range(12)]
        for waiter in over:
            await waiter
        assert disk.operations - before == 2 * 3
        assert len(await broker.read_all(1)) == 12


async def test_closing_writes_what_is_queued_and_then_takes_nothing() -> None:
    disk = instant_disk()
    broker = await Broker.start(disk)
    _, over = broker.begin_append(1, b"x")
    closing = asyncio.ensure_future(broker.storage.close())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="closed"):
        broker.begin_append(1, b"y")
    await closing
    await over
    await broker.tasks.close()
    async with broker_on(disk) as broker:
        assert await broker.read_all(1) == {0: b"x"}


async def test_a_cancelled_writer_tells_everybody_who_waits() -> None:
    disk = instant_disk()
    disk.slow("append", 0.01)
    broker = await Broker.start(disk)
    _, over = broker.begin_append(1, b"x")
    await asyncio.sleep(0)
    _, queued = broker.begin_append(1, b"y")
    await broker.tasks.close()
    for waiter in (over, queued):
        with pytest.raises(Unavailable):
            await waiter
    await broker.storage.close()


async def test_the_journal_begins_a_new_file_at_the_configured_age() -> None:
    disk = instant_disk()
    config = StorageConfig(wal=Wal(rotation=Rotation(max_hours=1)))
    broker = await Broker.start(disk, config)
    await broker.append(1, b"x")
    broker.storage._writer._begun_ms -= 3_600_000
    await broker.append(1, b"y")
    await broker.append(1, b"z")
    await broker.stop()
    logs = [n for n in await disk.list_names(DIRECTORY) if n.endswith(".log")]
    assert len(logs) == 2
