import pytest

from pydanube.errors import Conflict, InvalidRequest, NotFound
from pydanube.model.ids import Offset, SubscriptionId, TopicId
from pydanube.model.progress import Progress, ProgressChange
from tests.support.journals import (
    DIRECTORY,
    Broker,
    batch_of,
    broker_on,
    instant_disk,
    payloads_of,
    rotating_at,
)


async def journal_files(disk, suffix=".log"):
    return [n for n in await disk.list_names(DIRECTORY) if n.endswith(suffix)]


async def settled_files(disk):
    """The journal files once nothing has touched them for a while."""
    left = await journal_files(disk)
    for _ in range(100):
        before, left = left, await journal_files(disk)
        if before != left:
            return await settled_files(disk)
    return left


async def test_offsets_are_given_in_order_and_per_topic() -> None:
    async with broker_on(instant_disk()) as broker:
        assert await broker.append(1, b"a", b"b") == 0
        assert await broker.append(2, b"x") == 0
        assert await broker.append(1, b"c") == 2
        log = broker.storage.topic(TopicId(1))
        assert (log.first_offset, log.next_offset, log.durable_end) == (0, 3, 3)


async def test_messages_and_offsets_survive_a_restart() -> None:
    disk = instant_disk()
    async with broker_on(disk) as broker:
        await broker.append(1, b"a", b"b")
        await broker.append(2, b"x")
    async with broker_on(disk) as broker:
        assert await broker.read_all(1) == {0: b"a", 1: b"b"}
        assert await broker.read_all(2) == {0: b"x"}
        assert await broker.append(1, b"c") == 2
        assert await broker.read_all(1) == {0: b"a", 1: b"b", 2: b"c"}


async def test_messages_survive_rotation_and_a_restart_with_and_without_indexes() -> None:
    disk = instant_disk()
    expected = {}
    async with broker_on(disk, rotating_at(3000)) as broker:
        for number in range(20):
            expected[await broker.append(1, b"%d" % number)] = b"%d" % number
        assert await broker.read_all(1) == expected
    assert len(await journal_files(disk)) > 3
    assert await journal_files(disk, ".index")
    async with broker_on(disk, rotating_at(3000)) as broker:
        assert await broker.read_all(1) == expected
    for name in await journal_files(disk, ".index"):
        await disk.remove(f"{DIRECTORY}/{name}")
    async with broker_on(disk, rotating_at(3000)) as broker:
        assert await broker.read_all(1) == expected
        assert await broker.append(1, b"next") == 20


async def test_a_damaged_index_is_ignored() -> None:
    disk = instant_disk()
    async with broker_on(disk, rotating_at(3000)) as broker:
        for number in range(20):
            await broker.append(1, b"%d" % number)
        expected = await broker.read_all(1)
    for name in await journal_files(disk, ".index"):
        disk.flip_bit(f"{DIRECTORY}/{name}", 50, 3)
    async with broker_on(disk, rotating_at(3000)) as broker:
        assert await broker.read_all(1) == expected


async def test_done_comes_after_the_message_can_be_read() -> None:
    async with broker_on(instant_disk()) as broker:
        log = broker.storage.topic(TopicId(1))
        seen = []

        def done(error: object) -> None:
            seen.append(
                (error, log.durable_end, payloads_of(log.read_cached(Offset(0), Offset(9))))
            )

        assert log.append(batch_of(b"a"), done) == 0
        assert log.durable_end == 0
        assert log.read_cached(Offset(0), Offset(9)) == []
        assert not seen
        await broker.storage.flush()
        assert seen == [(None, 1, [b"a"])]


async def test_everything_queued_meanwhile_shares_one_sync() -> None:
    disk = instant_disk()
    async with broker_on(disk) as broker:
        before = disk.operations
        over = [broker.begin_append(topic, b"x")[1] for topic in range(1, 101)]
        for waiter in over:
            await waiter
        assert disk.operations - before == 2  # One append, one sync.


async def test_reads_are_cut_to_the_range_and_the_bytes_asked_for() -> None:
    disk = instant_disk()
    async with broker_on(disk) as broker:
        for start in range(0, 30, 3):
            await broker.append(1, *(b"%d" % n for n in range(start, start + 3)))
    for cached in (False, True):
        async with broker_on(disk) as broker:
            first = 0
            if cached:
                first = await broker.append(1, *(b"%d" % n for n in range(3)))
                for start in range(3, 30, 3):
                    await broker.append(1, *(b"%d" % n for n in range(start, start + 3)))
            log = broker.storage.topic(TopicId(1))
            pieces = await log.read(Offset(first + 4), Offset(first + 11))
            assert payloads_of(pieces) == [b"%d" % n for n in range(4, 11)]
            assert [(p.start - first, p.end - first) for p in pieces] == [(4, 6), (6, 9), (9, 11)]
            small = await log.read(Offset(first + 4), Offset(first + 11), bytes_max=1)
            assert payloads_of(small) == [b"4", b"5"]
            assert (log.read_cached(Offset(first + 4), Offset(first + 11)) is not None) is cached


async def test_reads_cross_file_boundaries_and_skip_other_topics() -> None:
    disk = instant_disk()
    async with broker_on(disk, rotating_at(5000)) as broker:
        for number in range(60):
            await broker.append(1 + number % 3, b"%d" % number)
    async with broker_on(disk, rotating_at(5000)) as broker:
        log = broker.storage.topic(TopicId(2))
        pieces = await log.read(Offset(0), Offset(100))
        assert payloads_of(pieces) == [b"%d" % n for n in range(60) if n % 3 == 1]


async def test_progress_survives_a_restart_and_rotation() -> None:
    disk = instant_disk()
    async with broker_on(disk, rotating_at(3000)) as broker:
        await broker.create_subscription(7, 5)
        await broker.begin_settle(7, ProgressChange(settled=((5, 8), (10, 12))))
        await broker.begin_settle(7, ProgressChange(attempts=((8, 10, 1), (12, 13, 2))))
        for number in range(20):
            await broker.append(1, b"%d" % number)
        await broker.begin_settle(7, ProgressChange(settled=((8, 9),)))
        expected = Progress(Offset(9), ((10, 12),), ((9, 10, 1), (12, 13, 2)))
        assert broker.storage.progress(SubscriptionId(7)) == expected
    async with broker_on(disk) as broker:
        assert broker.storage.progress(SubscriptionId(7)) == expected
        assert broker.storage.progress(SubscriptionId(8)) is None


async def test_progress_of_an_unknown_subscription_cannot_change() -> None:
    async with broker_on(instant_disk()) as broker:
        with pytest.raises(NotFound):
            await broker.begin_settle(7, ProgressChange(settled=((5, 8),)))


async def test_what_metadata_does_not_know_is_forgotten() -> None:
    disk = instant_disk()
    async with broker_on(disk) as broker:
        await broker.append(1, b"a")
        await broker.append(2, b"b")
        await broker.create_subscription(7, 0)
        await broker.create_subscription(8, 0)
    async with broker_on(disk) as broker:
        broker.storage.keep_only({TopicId(1)}, {SubscriptionId(7)})
        assert await broker.read_all(1) == {0: b"a"}
        assert await broker.read_all(2) == {}
        assert broker.storage.topic(TopicId(2)).next_offset == 0
        assert broker.storage.progress(SubscriptionId(8)) is None
        assert broker.storage.progress(SubscriptionId(7)) == Progress(Offset(0))


async def test_files_without_a_living_topic_are_deleted_from_the_front() -> None:
    disk = instant_disk()
    broker = await Broker.start(disk, rotating_at(3000))
    await broker.create_subscription(7, 3)
    for _ in range(10):
        await broker.append(1, b"old")
    await broker.append(2, b"kept")
    for _ in range(10):
        await broker.append(1, b"old")
    before = await journal_files(disk)
    broker.storage.drop_topic(TopicId(1))
    left = await settled_files(disk)
    await broker.stop()
    assert 1 < len(left) < len(before)
    assert left == before[-len(left) :]
    async with broker_on(disk) as broker:
        assert await broker.read_all(2) == {0: b"kept"}
        # Its record went with the first file; the snapshot in a later one remembers.
        assert broker.storage.progress(SubscriptionId(7)) == Progress(Offset(3))


async def test_a_dropped_topic_takes_no_more_messages() -> None:
    async with broker_on(instant_disk()) as broker:
        log = broker.storage.topic(TopicId(1))
        await broker.append(1, b"a")
        broker.storage.drop_topic(TopicId(1))
        with pytest.raises(NotFound):
            log.append(batch_of(b"b"), lambda error: None)


async def test_a_directory_serves_one_process_at_a_time() -> None:
    disk = instant_disk()
    async with broker_on(disk):
        with pytest.raises(Conflict, match="in use"):
            await Broker.start(disk)
    async with broker_on(disk):
        pass


async def test_another_brokers_directory_is_refused() -> None:
    disk = instant_disk()
    async with broker_on(disk, identity="CLUSTER/1") as broker:
        await broker.append(1, b"a")
    with pytest.raises(
        InvalidRequest, match=r"belongs to CLUSTER/1, this broker is CLUSTER/2"
    ) as caught:
        await Broker.start(disk, identity="CLUSTER/2")
    assert "DANUBE_STORAGE__LOCAL_WAL_ROOT=" in str(caught.value)
    async with broker_on(disk, identity="CLUSTER/1") as broker:
        assert await broker.read_all(1) == {0: b"a"}
