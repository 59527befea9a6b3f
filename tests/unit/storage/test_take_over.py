"""What counts of a topic that has changed hands, now and after restarts."""

from typing import Literal

import pytest

from pydanube.errors import DanubeError, Overloaded, Unavailable
from pydanube.model.ids import Offset, ProducerId, TopicId
from pydanube.storage.topic_log import HELD_BYTES_MAX, LastBatch, ProducerStamp
from tests.support.journals import DIRECTORY, batch_of, broker_on, instant_disk, rotating_at

TOPIC = TopicId(1)


async def test_what_was_journaled_before_a_take_over_counts_no_more() -> None:
    disk = instant_disk()
    async with broker_on(disk) as broker:
        await broker.append(1, b"mine", b"never handed over")
        broker.storage.let_go(TOPIC, forget=False)
        await broker.storage.take_over(TOPIC, 7, Offset(1))
        assert broker.storage.epoch_of(TOPIC) == 7
        assert await broker.append(1, b"after") == 1
        assert await broker.read_all(1) == {1: b"after"}
    async with broker_on(disk) as broker:
        assert broker.storage.epoch_of(TOPIC) == 7
        assert await broker.read_all(1) == {1: b"after"}
        assert await broker.append(1, b"more") == 2


@pytest.mark.parametrize("indexed", [True, False])
async def test_ownerships_survive_rotation_and_restarts(*, indexed: bool) -> None:
    """Offsets of several ownerships overlap in the journal; the last one alone counts."""
    disk = instant_disk()
    expected: dict[int, bytes] = {}
    for epoch in range(1, 6):
        async with broker_on(disk, rotating_at(3000)) as broker:
            broker.storage.let_go(TOPIC, forget=False)
            await broker.storage.take_over(TOPIC, epoch, Offset(epoch * 2))
            expected = {}
            for number in range(8):
                payload = b"%d/%d" % (epoch, number)
                expected[await broker.append(1, payload)] = payload
                await broker.append(2, bytes(200))
            assert await broker.read_all(1) == expected
        if not indexed:
            for name in await disk.list_names(DIRECTORY):
                if name.endswith(".index"):
                    await disk.remove(f"{DIRECTORY}/{name}")
        async with broker_on(disk, rotating_at(3000)) as broker:
            assert broker.storage.epoch_of(TOPIC) == epoch
            assert await broker.read_all(1) == expected


async def test_a_take_over_brings_producers_along_and_forgets_those_of_before() -> None:
    disk = instant_disk()

    def last(number: int) -> LastBatch:
        stamp = ProducerStamp(producer_id=ProducerId(number), first_sequence=3, last_sequence=9)
        return LastBatch(stamp=stamp, base=Offset(10), count=7, time_ms=5)

    async with broker_on(disk, rotating_at(3000)) as broker:
        await broker.storage.take_over(TOPIC, 1, Offset(17), [last(1)])
        broker.storage.let_go(TOPIC, forget=False)
        await broker.storage.take_over(TOPIC, 2, Offset(17), [last(2)])
        assert set(broker.storage.topic(TOPIC).producers) == {2}
    for _ in range(2):
        async with broker_on(disk, rotating_at(3000)) as broker:
            assert dict(broker.storage.topic(TOPIC).producers) == {ProducerId(2): last(2)}
            for _ in range(20):
                await broker.append(2, bytes(300))


async def test_a_topic_that_was_lost_answers_nothing_as_stored() -> None:
    async with broker_on(instant_disk()) as broker:
        log = broker.storage.topic(TOPIC)
        lost: list[DanubeError] = []
        log.guard = lambda: lost[0] if lost else None
        await broker.append(1, b"in time")
        lost.append(Unavailable("another broker serves it"))
        answers: list[DanubeError | None] = []
        log.append(batch_of(b"too late"), answers.append)
        await broker.storage.flush()
        assert answers == lost
        assert log.durable_end == 1


async def test_what_is_in_doubt_is_answered_when_that_is_decided() -> None:
    async with broker_on(instant_disk()) as broker:
        log = broker.storage.topic(TOPIC)
        verdicts: list[DanubeError | Literal["wait"]] = ["wait"]
        log.guard = lambda: verdicts[0] if verdicts else None
        answers: list[DanubeError | None] = []
        log.append(batch_of(b"in doubt"), answers.append)
        log.append(batch_of(b"in doubt, too"), answers.append)
        await broker.storage.flush()
        log.settle()
        assert not answers
        assert log.durable_end == 0
        verdicts.clear()
        log.settle()
        assert answers == [None, None]
        assert log.durable_end == 2


async def test_what_is_in_doubt_is_refused_when_its_topic_goes() -> None:
    async with broker_on(instant_disk()) as broker:
        log = broker.storage.topic(TOPIC)
        log.guard = lambda: "wait"
        answers: list[DanubeError | None] = []
        log.append(batch_of(b"in doubt"), answers.append)
        await broker.storage.flush()
        broker.storage.let_go(TOPIC, forget=False)
        (answer,) = answers
        assert isinstance(answer, Unavailable)
        assert log.durable_end == 0


async def test_an_interrupted_log_answers_nothing_that_was_under_way() -> None:
    async with broker_on(instant_disk()) as broker:
        log = broker.storage.topic(TOPIC)
        log.interrupt(Unavailable("nothing is under way"))
        await broker.append(1, b"stored")
        answers: list[DanubeError | None] = []
        log.append(batch_of(b"under way"), answers.append)
        lost = Unavailable("another broker may serve it")
        log.interrupt(lost)
        await broker.storage.flush()
        assert answers == [lost]
        assert log.durable_end == 1


async def test_what_may_wait_in_doubt_is_bounded() -> None:
    async with broker_on(instant_disk()) as broker:
        log = broker.storage.topic(TOPIC)
        verdicts: list[DanubeError | Literal["wait"]] = ["wait"]
        log.guard = lambda: verdicts[0] if verdicts else None
        answers: list[DanubeError | None] = []
        log.append(batch_of(b"x"), answers.append)
        await broker.storage.flush()
        large = bytes(HELD_BYTES_MAX // 4)
        for _ in range(3):
            log.append(batch_of(large), answers.append)
        with pytest.raises(Overloaded):
            log.append(batch_of(large), answers.append)
        verdicts.clear()
        await broker.storage.flush()
        log.settle()
        assert answers == [None] * 4
        log.append(batch_of(large), answers.append)


async def test_a_journal_needs_no_more_what_later_owners_have() -> None:
    async with broker_on(instant_disk()) as broker:
        storage = broker.storage
        await storage.take_over(TOPIC, 5, Offset(0))
        for _ in range(4):
            await broker.append(1, b"x")
        index = storage._contents.topics[TOPIC]
        storage.follow(TOPIC, 6, Offset(0))
        assert index.exported == 0, "a topic that is served here is nobody else's"
        storage.let_go(TOPIC, forget=False)
        assert storage.left_topics() == [TOPIC]
        storage.follow(TOPIC, 5, Offset(2))
        assert index.exported == 2, "of this ownership, what is in segments"
        storage.follow(TOPIC, 6, Offset(2))
        assert index.exported == 4, "a later owner has recovered all of it"
