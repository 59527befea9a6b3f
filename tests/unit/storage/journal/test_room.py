"""A journal without room waits and refuses; with room it goes on where it was."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from pydanube.errors import Overloaded, Unavailable
from pydanube.model.ids import TopicId
from pydanube.model.policies import Durability
from pydanube.model.progress import ProgressChange
from pydanube.runtime.randomness import SeededRandomness
from pydanube.runtime.simulation.append_file import SimulatedAppendFile
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.storage.config import StorageConfig
from tests.support.journals import DIRECTORY, Broker, broker_on, instant_disk, rotating_at

NEWEST = f"{DIRECTORY}/journal-{0:020}.log"


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.001)


async def housekeeping_done(disk: SimulatedDisk) -> None:
    for _ in range(50):
        await disk.exists(DIRECTORY)


def fill(disk: SimulatedDisk, room: int) -> None:
    disk.capacity_bytes = disk._medium.used_bytes() + room


@asynccontextmanager
async def full(config: StorageConfig | None = None) -> AsyncIterator[tuple[SimulatedDisk, Broker]]:
    """A broker with one durable message, on a disk that has room for ten bytes."""
    disk = instant_disk()
    async with broker_on(disk, config) as broker:
        await broker.append(1, b"first")
        await broker.create_subscription(7, 0)
        await housekeeping_done(disk)
        fill(disk, 10)
        yield disk, broker
        disk.capacity_bytes = None


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC])
async def test_a_rotation_that_cannot_open_its_file_is_tried_again(number: int) -> None:
    disk = instant_disk()
    async with broker_on(disk, rotating_at(1)) as broker:
        heard: list[object] = []
        broker.storage.on_failure = heard.append
        assert await broker.append(1, b"0") == 0
        await housekeeping_done(disk)
        disk.exhaust(number)
        _, waiting = broker.begin_append(1, b"1")
        await until(lambda: broker.storage.waiting_for)
        assert broker.storage.failure is None
        with pytest.raises(Overloaded, match="waits for room"):
            broker.begin_append(1, b"refused")
        assert not waiting.done()
        disk.exhaust(None)
        await waiting
        assert broker.storage.waiting_for is None
        assert heard == []
        assert await broker.append(1, b"2") == 2
        expected = await broker.read_all(1)
    async with broker_on(disk) as broker:
        assert await broker.read_all(1) == expected == {0: b"0", 1: b"1", 2: b"2"}


@pytest.mark.parametrize("room", [0, 10, 90, 170])
async def test_a_rotation_on_a_full_disk_leaves_nothing_of_the_new_file(room: int) -> None:
    disk = instant_disk()
    async with broker_on(disk, rotating_at(1)) as broker:
        await broker.append(1, b"0")
        await housekeeping_done(disk)
        names = await disk.list_names(DIRECTORY)
        fill(disk, room)
        _, waiting = broker.begin_append(1, b"1")
        await until(lambda: broker.storage.waiting_for)
        assert await disk.list_names(DIRECTORY) == names
        disk.capacity_bytes = None
        await waiting
        assert await broker.read_all(1) == {0: b"0", 1: b"1"}


async def test_a_new_file_whose_name_cannot_be_synced_is_begun_again() -> None:
    disk = instant_disk()
    async with broker_on(disk, rotating_at(1)) as broker:
        await broker.append(1, b"0")
        await housekeeping_done(disk)
        _, waiting = broker.begin_append(1, b"1")
        while disk.operation_log[-1].name != "append":
            await asyncio.sleep(0)
        disk.exhaust(errno.EMFILE)
        await until(lambda: broker.storage.waiting_for)
        disk.exhaust(None)
        await waiting
    disk.crash(SeededRandomness(3))
    async with broker_on(disk) as broker:
        assert await broker.read_all(1) == {0: b"0", 1: b"1"}


@pytest.mark.parametrize("durability", ["fsync", "os", "memory"])
async def test_what_a_full_disk_did_not_take_is_written_when_there_is_room(
    durability: Durability,
) -> None:
    async with full() as (disk, broker):
        before = disk.contents(NEWEST)
        appended = [
            broker.begin_append(topic, b"x" * 100, durability=durability)[1] for topic in (1, 1, 2)
        ]
        settled = broker.begin_settle(7, ProgressChange(settled=((0, 1),)))
        await until(lambda: broker.storage.waiting_for)
        assert "free space" in (broker.storage.waiting_for or "")
        assert durability == "memory" or not any(each.done() for each in appended)
        assert not settled.done(), "nothing of a failed write is acknowledged"
        disk.capacity_bytes = None
        await asyncio.gather(*appended, settled)
        assert disk.contents(NEWEST).startswith(before)
        expected = await broker.read_all(1)
        assert list(expected.values()) == [b"first", b"x" * 100, b"x" * 100]
    disk.crash(SeededRandomness(5))
    async with broker_on(disk) as broker:
        assert await broker.read_all(1) == expected
        assert list((await broker.read_all(2)).values()) == [b"x" * 100]


async def test_acks_are_taken_while_the_journal_waits_and_flushes_are_not_kept_waiting() -> None:
    async with full() as (disk, broker):
        _, over = broker.begin_append(1, b"x" * 100)
        flush = asyncio.create_task(broker.storage.flush())
        await until(lambda: broker.storage.waiting_for)
        with pytest.raises(Unavailable, match="waits for room"):
            await flush
        with pytest.raises(Unavailable, match="waits for room"):
            await broker.storage.flush()
        settled = broker.begin_settle(7, ProgressChange(settled=((0, 1),)))
        disk.capacity_bytes = None
        await asyncio.gather(over, settled)
        await broker.storage.flush()


async def test_what_a_failed_write_left_behind_is_cut_off_before_anything_follows() -> None:
    async with full() as (disk, broker):
        end = len(disk.contents(NEWEST))
        fill(disk, 60)
        _, over = broker.begin_append(1, b"x" * 100)
        await until(lambda: broker.storage.waiting_for)
        assert len(disk.contents(NEWEST)) > end
        operations = disk.operations
        disk.capacity_bytes = None
        await over
        done = [each.name for each in disk.operation_log if each.number > operations]
        assert done[-4:] == ["truncate", "sync", "append", "sync"]


async def test_a_tail_that_reads_otherwise_than_it_was_written_ends_the_journal() -> None:
    async with full() as (disk, broker):
        _, over = broker.begin_append(1, b"x" * 100)
        await until(lambda: broker.storage.waiting_for)
        disk.flip_bit(NEWEST, len(disk.contents(NEWEST)) - 30, 3)
        disk.capacity_bytes = None
        with pytest.raises(Unavailable, match="ends otherwise than it was written"):
            await over
        assert broker.storage.failure is not None
        assert broker.storage.waiting_for is None


async def test_a_sync_that_fails_while_the_file_is_mended_ends_the_journal() -> None:
    async with full() as (disk, broker):
        _, over = broker.begin_append(1, b"x" * 100)
        await until(lambda: broker.storage.waiting_for)
        disk.fail_next("sync", OSError(errno.ENOSPC, "No space left on device"))
        with pytest.raises(Unavailable, match="stopped after a failed write"):
            await over


async def test_a_broker_that_waits_for_room_can_be_stopped_and_killed() -> None:
    disk = instant_disk()
    broker = await Broker.start(disk)
    await broker.append(1, b"first")
    fill(disk, 50)
    _, over = broker.begin_append(1, b"x" * 100)
    await until(lambda: broker.storage.waiting_for)
    await broker.stop()
    with pytest.raises(Unavailable, match=r"closed while it waited.*free space"):
        await over
    disk.capacity_bytes = None
    disk.crash(SeededRandomness(1))
    async with broker_on(disk) as again:
        assert (await again.read_all(1))[0] == b"first"


async def test_a_file_is_deleted_though_the_deletion_was_interrupted_for_want_of_room() -> None:
    disk = instant_disk()
    async with broker_on(disk, rotating_at(1)) as broker:
        for number in range(3):
            await broker.append(1, b"%d" % number)
        await housekeeping_done(disk)
        names = [name for name in await disk.list_names(DIRECTORY) if name.endswith(".log")]
        broker.storage.drop_topic(TopicId(1))
        while disk.operation_log[-1].name != "remove":
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        disk.exhaust(errno.EMFILE)
        await housekeeping_done(disk)
        disk.exhaust(None)
        broker.storage.keep_only(frozenset(), frozenset())
        await housekeeping_done(disk)
        left = [name for name in await disk.list_names(DIRECTORY) if name.endswith(".log")]
        assert left == names[-1:]


async def test_a_journal_that_finds_no_memory_for_a_write_stops_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = instant_disk()
    broker = await Broker.start(disk)
    heard: list[object] = []
    broker.storage.on_failure = heard.append
    await broker.append(1, b"first")

    async def fail(*arguments: object) -> None:
        raise MemoryError("no memory for a copy")

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedAppendFile, "append_and_sync", fail)
        with pytest.raises(Unavailable, match="no memory for a copy"):
            await broker.append(1, b"second")
    assert heard == [broker.storage.failure]
    await broker.stop()
    async with broker_on(disk) as again:
        assert await again.read_all(1) == {0: b"first"}


async def test_a_journal_that_cannot_be_opened_for_want_of_room_says_what_to_do() -> None:
    disk = instant_disk()
    disk.capacity_bytes = 0
    with pytest.raises(Unavailable, match=r"cannot open the journal.*No space left.*free space"):
        await Broker.start(disk)
    disk.capacity_bytes = None
    disk.exhaust(errno.EMFILE)
    with pytest.raises(Unavailable, match=r"cannot open the journal.*ulimit -n"):
        await Broker.start(disk)
    disk.exhaust(None)
    async with broker_on(disk) as broker:
        await broker.append(1, b"first")
