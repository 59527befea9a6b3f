"""What a topic's log remembers of producers that number their batches."""

import pytest

from pydanube.errors import DanubeError, Unavailable
from pydanube.model.ids import ProducerId, TopicId
from pydanube.model.policies import Durability
from pydanube.storage.topic_log import LastBatch, ProducerStamp, TopicLog
from tests.support.journals import (
    DIRECTORY,
    Broker,
    batch_of,
    broker_on,
    instant_disk,
    rotating_at,
)

ANNE, BILL = ProducerId(11), ProducerId(12)


def stamp(producer: ProducerId, first: int, last: int | None = None) -> ProducerStamp:
    return ProducerStamp(
        producer_id=producer, first_sequence=first, last_sequence=first if last is None else last
    )


def append(
    log: TopicLog, of: ProducerStamp, payload: bytes = b"x", durability: Durability = "fsync"
) -> list[DanubeError | None]:
    answers: list[DanubeError | None] = []
    log.append(batch_of(payload), answers.append, stamp=of, durability=durability)
    return answers


def sequence(last: LastBatch | None) -> int | None:
    return None if last is None else last.stamp.last_sequence


async def test_nobody_is_known_before_his_first_batch_and_0_is_a_sequence() -> None:
    async with broker_on(instant_disk()) as broker:
        log = broker.storage.topic(TopicId(1))
        assert log.last_batch(ANNE) is None
        append(log, stamp(ANNE, 0))
        assert sequence(log.last_batch(ANNE)) == 0
        assert log.last_batch(BILL) is None


async def test_a_batch_counts_before_it_is_durable_but_repeats_wait_for_its_sync() -> None:
    async with broker_on(instant_disk()) as broker:
        log = broker.storage.topic(TopicId(1))
        order: list[str] = []
        log.append(batch_of(b"a"), lambda error: order.append("first"), stamp=stamp(ANNE, 5, 7))
        assert sequence(log.last_batch(ANNE)) == 7
        log.when_last_is_durable(ANNE, lambda error: order.append("repeat"))
        assert order == []
        await broker.storage.flush()
        assert order == ["first", "repeat"]
        log.when_last_is_durable(ANNE, lambda error: order.append("later"))
        assert order == ["first", "repeat", "later"]


@pytest.mark.parametrize("durability", ["fsync", "os", "memory"])
async def test_sequences_survive_a_restart(durability: Durability) -> None:
    disk = instant_disk()
    async with broker_on(disk) as broker:
        log = broker.storage.topic(TopicId(1))
        for number in range(3):
            append(log, stamp(ANNE, number), durability=durability)
            append(log, stamp(BILL, 100 + number), durability=durability)
        await broker.storage.flush()
        known = {key: log.last_batch(key) for key in (ANNE, BILL)}
    async with broker_on(disk) as broker:
        log = broker.storage.topic(TopicId(1))
        assert dict(log.producers) == known
        assert {key: log.last_batch(key) for key in (ANNE, BILL)} == known
        assert broker.storage.topic(TopicId(2)).last_batch(ANNE) is None


async def test_in_memory_a_batch_is_known_from_its_answer_until_it_is_written() -> None:
    async with broker_on(instant_disk()) as broker:
        log = broker.storage.topic(TopicId(1))
        seen: list[int | None] = []
        log.append(
            batch_of(b"a"),
            lambda error: seen.append(sequence(log.last_batch(ANNE))),
            stamp=stamp(ANNE, 3),
            durability="memory",
        )
        await broker.storage.flush()
        assert seen == [3]
        assert sequence(log.last_batch(ANNE)) == 3


async def test_the_only_copy_is_never_in_an_old_file() -> None:
    disk = instant_disk()
    async with broker_on(disk, rotating_at(1500)) as broker:
        log = broker.storage.topic(TopicId(1))
        append(log, stamp(ANNE, 41, 42))
        await broker.storage.flush()
        for _ in range(8):
            await broker.append(2, b"other")
        known = log.last_batch(ANNE)
    names = [name for name in await disk.list_names(DIRECTORY) if name.endswith(".log")]
    assert len(names) > 2
    for name in names[:-1]:
        await disk.remove(f"{DIRECTORY}/{name}")
    for name in await disk.list_names(DIRECTORY):
        if name.endswith(".index"):
            await disk.remove(f"{DIRECTORY}/{name}")
    async with broker_on(disk) as broker:
        assert broker.storage.topic(TopicId(1)).last_batch(ANNE) == known


async def test_a_new_file_does_not_know_what_is_only_queued() -> None:
    disk = instant_disk()
    broker = await Broker.start(disk, rotating_at(1))
    log = broker.storage.topic(TopicId(1))
    append(log, stamp(ANNE, 1))
    await broker.storage.flush()
    append(log, stamp(ANNE, 2))
    # The next file is begun, durable with its prologue, and then the process dies.
    while len([n for n in await disk.list_names(DIRECTORY) if n.endswith(".log")]) < 3:
        await disk.exists(DIRECTORY)
    disk.kill()
    await broker.abandon()
    async with broker_on(disk) as broker:
        log = broker.storage.topic(TopicId(1))
        stored = len(await broker.read_all(1))
        assert sequence(log.last_batch(ANNE)) == stored


async def test_after_a_failed_sync_nobody_is_told_that_it_was_stored() -> None:
    disk = instant_disk()
    broker = await Broker.start(disk)
    log = broker.storage.topic(TopicId(1))
    first = append(log, stamp(ANNE, 1))
    await broker.storage.flush()
    disk.fail_next("sync", OSError(5, "no"))
    second = append(log, stamp(ANNE, 2))
    repeats: list[DanubeError | None] = []
    log.when_last_is_durable(ANNE, repeats.append)
    with pytest.raises(Unavailable):
        await broker.storage.flush()
    log.when_last_is_durable(ANNE, repeats.append)
    assert first == [None]
    assert isinstance(second[0], Unavailable)
    assert [type(error) for error in repeats] == [Unavailable, Unavailable]
    await broker.abandon()


async def test_a_forgotten_producer_stays_so_once_a_new_file_has_begun() -> None:
    disk = instant_disk()
    async with broker_on(disk, rotating_at(1500)) as broker:
        log = broker.storage.topic(TopicId(1))
        append(log, stamp(ANNE, 1))
        log.forget_producer(ANNE)
        assert log.last_batch(ANNE) is not None, "it has something under way"
        append(log, stamp(BILL, 1))
        await broker.storage.flush()
        log.forget_producer(ANNE)
        assert log.last_batch(ANNE) is None
        for _ in range(4):
            await broker.append(2, b"other")
    async with broker_on(disk) as broker:
        log = broker.storage.topic(TopicId(1))
        assert list(log.producers) == [BILL]
