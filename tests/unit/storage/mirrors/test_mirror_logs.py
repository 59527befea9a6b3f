"""What a journal holds of other brokers' topics, now and after restarts."""

from collections.abc import Sequence
from contextlib import suppress

import pytest

from pydanube.errors import Conflict, Corruption, DanubeError, NotFound
from pydanube.model.ids import Offset, ProducerId, SubscriptionId, TopicId
from pydanube.model.progress import Progress, ProgressChange
from pydanube.storage.errors import Fenced
from pydanube.storage.journal.producers import LastBatch, ProducerStamp
from pydanube.storage.journal.records import Kind, encode_batch_header, encode_progress
from pydanube.storage.mirrors.mirror_logs import MirrorLogs, Outcome, Section, Whole
from pydanube.storage.mirrors.stream import Record
from tests.support.journals import (
    DIRECTORY,
    Broker,
    batch_of,
    broker_on,
    instant_disk,
    rotating_at,
)

TOPIC = TopicId(1)
SUBSCRIPTION = SubscriptionId(4)
STREAM = 77
NOTHING = Whole(sequence=0, producers=(), progress={})


def batch(base: int, *payloads: bytes, epoch: int = 5, producer: int = 0) -> Record:
    stamp = None
    if producer:
        stamp = ProducerStamp(
            producer_id=ProducerId(producer), first_sequence=base, last_sequence=base
        )
    made = batch_of(*payloads)
    header = encode_batch_header(TOPIC, epoch, base, made.count, 1, stamp)
    return Record(Kind.BATCH, 0, (header, made.data))


def settled(start: int, end: int) -> Record:
    change = ProgressChange(settled=((start, end),))
    return Record(Kind.PROGRESS, 0, (encode_progress(SUBSCRIPTION, change),))


def section(before: int | None, *records: Record, epoch: int = 5, **rest: object) -> Section:
    return Section(
        topic_id=TOPIC,
        epoch=epoch,
        stream=STREAM,
        before=before,
        records=records,
        **rest,  # type: ignore[arg-type]
    )


async def sent(logs: MirrorLogs, *sections: Section) -> list[tuple[Outcome, int | None, int]]:
    answers = await logs.append(sections)
    return [(answer.outcome, answer.sequence, answer.end) for answer in answers]


async def begun(logs: MirrorLogs, epoch: int = 5, start: int = 0, whole: Whole | None = NOTHING):
    return await logs.begin(TOPIC, epoch, STREAM, Offset(start), whole)


async def held(logs: MirrorLogs, epoch: int = 5) -> Sequence[int]:
    return [record.base for record in await logs.read(TOPIC, epoch, Offset(0), 1 << 20)]


async def test_records_are_there_after_a_restart_with_their_sequence() -> None:
    disk = instant_disk()
    whole = Whole(sequence=0, producers=(), progress={SUBSCRIPTION: Progress(Offset(0))})
    async with broker_on(disk) as broker:
        logs = broker.storage.mirrors
        assert (await begun(logs, whole=whole)).sequence == 0
        assert await sent(logs, section(0, batch(0, b"a", b"b", producer=3), settled(0, 1))) == [
            (Outcome.SYNCED, 2, 2)
        ]
    async with broker_on(disk) as broker:
        logs = broker.storage.mirrors
        assert await held(logs) == [0]
        holding = await logs.fence(TOPIC, 6)
        assert (holding.epoch, holding.stream, holding.sequence, holding.end) == (5, STREAM, 2, 2)
        assert logs.progress([SUBSCRIPTION]) == {SUBSCRIPTION: Progress(Offset(1))}
        assert [last.stamp.producer_id for last in logs.producers(TOPIC)] == [3]


@pytest.mark.parametrize("indexed", [True, False])
async def test_copies_of_several_epochs_survive_rotation_and_restarts(*, indexed: bool) -> None:
    disk = instant_disk()
    for epoch in range(5, 9):
        async with broker_on(disk, rotating_at(3000)) as broker:
            logs = broker.storage.mirrors
            await begun(logs, epoch, start=epoch)
            for number in range(12):
                record = batch(epoch + number, bytes(150), epoch=epoch)
                await sent(logs, section(number, record, epoch=epoch))
        if not indexed:
            for name in await disk.list_names(DIRECTORY):
                if name.endswith(".index"):
                    await disk.remove(f"{DIRECTORY}/{name}")
        async with broker_on(disk, rotating_at(3000)) as broker:
            logs = broker.storage.mirrors
            assert logs.topics() == [TOPIC]
            assert await held(logs, epoch) == list(range(epoch, epoch + 12))
            assert broker.storage.epoch_of(TOPIC) == 0
            assert broker.storage.journaled_end(TOPIC) == 0


async def test_a_mirrored_topic_is_not_served() -> None:
    async with broker_on(instant_disk()) as broker:
        await begun(broker.storage.mirrors)
        with pytest.raises(Conflict, match="mirrored here"):
            broker.storage.topic(TOPIC)


async def test_it_is_served_after_it_was_taken_over_and_what_was_mirrored_counts_no_more() -> None:
    disk = instant_disk()
    async with broker_on(disk) as broker:
        await begun(broker.storage.mirrors)
        await sent(broker.storage.mirrors, section(0, batch(0, b"exported meanwhile")))
        await broker.storage.take_over(TOPIC, 6, Offset(1))
        assert await broker.append(1, b"mine") == 1
    async with broker_on(disk) as broker:
        assert broker.storage.epoch_of(TOPIC) == 6
        assert await broker.read_all(1) == {1: b"mine"}
        assert broker.storage.mirrors.topics() == []


async def test_records_that_do_not_follow_are_refused_and_those_that_are_there_are_skipped() -> (
    None
):
    async with broker_on(instant_disk()) as broker:
        logs = broker.storage.mirrors
        assert await sent(logs, section(0, batch(0, b"x"))) == [(Outcome.MISSING, None, 0)]
        await begun(logs)
        assert await sent(logs, section(1, batch(1, b"b"))) == [(Outcome.MISSING, 0, 0)]
        records = [batch(0, b"a"), batch(1, b"b"), batch(2, b"c")]
        await sent(logs, section(0, *records[:2]))
        assert await sent(logs, section(0, *records)) == [(Outcome.SYNCED, 3, 3)]
        assert await held(logs) == [0, 1, 2]


async def test_a_promise_is_kept_after_a_restart() -> None:
    disk = instant_disk()
    async with broker_on(disk, rotating_at(3000)) as broker:
        await begun(broker.storage.mirrors)
        await broker.storage.mirrors.fence(TOPIC, 9)
        for _ in range(30):
            await broker.append(2, bytes(300))
    for _ in range(2):
        async with broker_on(disk, rotating_at(3000)) as broker:
            logs = broker.storage.mirrors
            assert await sent(logs, section(0, batch(0, b"late"))) == [(Outcome.FENCED, 0, 0)]
            with pytest.raises(Fenced):
                await begun(logs, 8)
            with pytest.raises(Fenced):
                await logs.fence(TOPIC, 8)
            with pytest.raises(Fenced):
                await broker.storage.take_over(TOPIC, 8, Offset(0))


async def test_a_broker_without_a_copy_promises_too() -> None:
    disk = instant_disk()
    async with broker_on(disk) as broker:
        holding = await broker.storage.mirrors.fence(TOPIC, 9)
        assert (holding.epoch, holding.sequence) == (0, None)
    async with broker_on(disk) as broker:
        with pytest.raises(Fenced):
            await begun(broker.storage.mirrors, 8)


async def test_an_owner_that_is_asked_acknowledges_nothing_more() -> None:
    async with broker_on(instant_disk()) as broker:
        await broker.storage.take_over(TOPIC, 5, Offset(0))
        await broker.append(1, b"in time")
        answers: list[DanubeError | None] = []
        log = broker.storage.topic(TOPIC)
        log.append(batch_of(b"too late"), answers.append)
        holding = await broker.storage.mirrors.fence(TOPIC, 6)
        assert (holding.epoch, holding.stream, holding.sequence, holding.end) == (5, 0, 0, 2)
        assert isinstance(answers[0], Fenced)
        with pytest.raises(Fenced):
            log.append(batch_of(b"even later"), answers.append)
        assert await held(broker.storage.mirrors) == [0, 1]


async def test_an_epoch_has_one_stream() -> None:
    async with broker_on(instant_disk()) as broker:
        logs = broker.storage.mirrors
        await begun(logs)
        with pytest.raises(Fenced, match="new epoch"):
            await logs.begin(TOPIC, 5, STREAM + 1, Offset(0), NOTHING)


async def test_a_copy_that_is_catching_up_is_whole_only_at_the_end() -> None:
    disk = instant_disk()
    last = LastBatch(
        stamp=ProducerStamp(producer_id=ProducerId(8), first_sequence=1, last_sequence=1),
        base=Offset(2),
        count=1,
        time_ms=3,
    )
    whole = Whole(sequence=40, producers=(last,), progress={SUBSCRIPTION: Progress(Offset(3))})
    async with broker_on(disk) as broker:
        logs = broker.storage.mirrors
        assert (await begun(logs, start=10, whole=None)).sequence is None
        assert await sent(logs, section(None, batch(12, b"a", producer=9))) == [
            (Outcome.SYNCED, None, 13)
        ]
    async with broker_on(disk) as broker:
        logs = broker.storage.mirrors
        assert (await begun(logs, start=10, whole=None)).sequence is None
        # What it has is not sent again, or does no harm.
        assert await sent(logs, section(None, batch(12, b"a"), batch(13, b"b"))) == [
            (Outcome.SYNCED, None, 14)
        ]
        assert await sent(logs, section(None, whole=whole)) == [(Outcome.SYNCED, 40, 14)]
        assert await sent(logs, section(40, batch(14, b"c"))) == [(Outcome.SYNCED, 41, 15)]
    async with broker_on(disk) as broker:
        logs = broker.storage.mirrors
        holding = await logs.fence(TOPIC, 6)
        assert (holding.sequence, holding.start, holding.end) == (41, 10, 15)
        assert logs.producers(TOPIC) == [last]
        assert logs.progress([SUBSCRIPTION]) == {SUBSCRIPTION: Progress(Offset(3))}


async def test_an_earlier_copy_stays_until_the_next_one_is_whole() -> None:
    """A power cut between the two must leave one of them."""
    disk = instant_disk()
    async with broker_on(disk) as broker:
        await begun(broker.storage.mirrors)
        await sent(broker.storage.mirrors, section(0, batch(0, b"a")))
    whole = Whole(sequence=0, producers=(), progress={SUBSCRIPTION: Progress(Offset(1))})
    for step in range(1, 9):
        for after in (False, True):
            copy = disk.after_crash(disk._machine.randomness)
            broker = await Broker.start(copy.mount())
            copy.crash_at(copy.operations + step, after=after)
            with suppress(OSError, DanubeError):
                await begun(broker.storage.mirrors, 6, start=1, whole=whole)
            copy.crash(copy._machine.randomness)
            await broker.abandon()
            async with broker_on(copy.mount()) as restarted:
                holding = await restarted.storage.mirrors.fence(TOPIC, 7)
                assert (holding.epoch, holding.sequence) in [(5, 1), (6, 0)]


async def test_what_is_in_segments_or_was_recovered_need_not_stay() -> None:
    async with broker_on(instant_disk(), rotating_at(3000)) as broker:
        logs = broker.storage.mirrors
        await begun(logs)
        for number in range(40):
            await sent(logs, section(number, batch(number, bytes(150))))
        index = broker.storage._contents.topics[TOPIC]
        logs.follow(TOPIC, 5, Offset(10))
        assert index.exported == 10
        logs.follow(TOPIC, 6, Offset(10))
        assert index.exported == 40


async def test_reading_another_epoch_than_it_holds_is_refused() -> None:
    async with broker_on(instant_disk()) as broker:
        await begun(broker.storage.mirrors)
        with pytest.raises(NotFound):
            await broker.storage.mirrors.read(TOPIC, 4, Offset(0), 100)


async def test_records_of_another_topic_or_kind_are_refused() -> None:
    async with broker_on(instant_disk()) as broker:
        logs = broker.storage.mirrors
        await begun(logs)
        for record in (batch(0, b"x", epoch=4), Record(Kind.CLOSED, 0, (b"",))):
            with pytest.raises(Corruption):
                await logs.append([section(0, record)])
        with pytest.raises(Corruption, match="without its header"):
            await logs.append([section(0, Record(Kind.BATCH, 0, (b"short",)))])
