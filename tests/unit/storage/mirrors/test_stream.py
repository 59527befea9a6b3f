"""A topic's records on their way to its mirrors, and the memory they may take."""

import pytest

from pydanube.errors import DanubeError, Overloaded, Unavailable
from pydanube.model.ids import BrokerId, TopicId
from pydanube.storage.journal.records import Kind
from pydanube.storage.mirrors.stream import TopicStream, WaitingBytes
from tests.support.journals import batch_of, broker_on, instant_disk

OWN, ONE, TWO = map(BrokerId, (1, 2, 3))


def stream_of(*members: BrokerId, unacknowledged: int = 1000, backlog: int = 1000) -> TopicStream:
    stream = TopicStream(TopicId(1), 5, 77, OWN, WaitingBytes(unacknowledged, backlog))
    stream.replication.begin_change(members)
    stream.replication.end_change(recorded=True)
    return stream


def add(stream: TopicStream, size: int = 10) -> int:
    number = stream.add(Kind.BATCH, 0, (bytes(size),))
    stream.synced(number)
    return number


def test_records_are_kept_until_every_mirror_has_them() -> None:
    stream = stream_of(OWN, ONE, TWO)
    for mirror in (ONE, TWO):
        stream.keep_for(mirror, 0)
    for _ in range(3):
        add(stream)
    stream.has(ONE, 3)
    assert stream.acknowledged == 3
    assert len(stream.take(0, 1 << 20)) == 3
    stream.has(TWO, 2)
    assert not stream.keep_for(TWO, 1)
    assert len(stream.take(2, 1 << 20)) == 1


def test_about_so_many_bytes_are_taken_and_at_least_one_record() -> None:
    stream = stream_of(OWN, ONE)
    for _ in range(5):
        add(stream, 100)
    assert len(stream.take(0, 250)) == 2
    assert len(stream.take(0, 1)) == 1
    assert stream.take(5, 250) == []


def test_too_much_that_waits_refuses_more_until_mirrors_have_it() -> None:
    stream = stream_of(OWN, ONE, unacknowledged=100)
    add(stream, 100)
    with pytest.raises(Overloaded, match="unacknowledged_bytes_max"):
        stream.check()
    stream.has(ONE, 1)
    stream.check()


def test_a_slow_mirror_is_left_behind_before_memory_runs_out() -> None:
    stream = stream_of(OWN, ONE, TWO, backlog=25)
    cut: list[BrokerId] = []
    stream.on_cut = cut.append
    for mirror in (ONE, TWO):
        stream.keep_for(mirror, 0)
    for number in range(1, 4):
        add(stream)
        stream.has(ONE, number)
    assert cut == [TWO]
    assert not stream.keeps_for(TWO)
    assert not stream.keep_for(TWO, 0)
    assert stream.keep_for(TWO, 3)


def test_a_closed_stream_takes_no_memory() -> None:
    waiting = WaitingBytes(1000, 1000)
    stream = TopicStream(TopicId(1), 5, 77, OWN, waiting)
    stream.keep_for(ONE, 0)
    add(stream)
    stream.close()
    assert (waiting.unacknowledged, waiting.backlog) == (0, 0)


def test_whoever_waits_is_told_in_order_and_once() -> None:
    stream = stream_of(OWN, ONE)
    told: list[tuple[int, DanubeError | None]] = []
    for number in (add(stream), add(stream), add(stream)):
        stream.when_acknowledged(number, lambda error, number=number: told.append((number, error)))  # type: ignore[misc]
    stream.has(ONE, 2)
    assert told == [(1, None), (2, None)]
    lost = Unavailable("gone")
    stream.fail(lost)
    stream.fail(Unavailable("again"))
    assert told[2:] == [(3, lost)]
    with pytest.raises(Unavailable, match="gone"):
        stream.check()


def test_nothing_is_acknowledged_after_a_failure() -> None:
    stream = stream_of(OWN, ONE)
    add(stream)
    stream.fail(Unavailable("gone"))
    stream.has(ONE, 1)
    assert stream.acknowledged == 0
    stream.close()
    assert stream.acknowledged == 0


async def test_a_batch_is_answered_and_shown_once_a_majority_has_it() -> None:
    async with broker_on(instant_disk()) as broker:
        await broker.storage.take_over(TopicId(1), 5, 0)  # type: ignore[arg-type]
        log = broker.storage.topic(TopicId(1))
        stream = stream_of(OWN, ONE)
        broker.storage.replicate(TopicId(1), stream)
        answers: list[DanubeError | None] = []
        log.append(batch_of(b"a"), answers.append)
        log.append(batch_of(b"b"), answers.append)
        await broker.storage.flush()
        assert (answers, log.durable_end, log.synced_end) == ([], 0, 0)
        stream.has(ONE, 1)
        assert (answers, log.durable_end) == ([None], 1)
        lost = Unavailable("fenced")
        stream.fail(lost)
        assert (answers, log.durable_end) == ([None, lost], 1)


async def test_mirrors_alone_are_not_enough() -> None:
    async with broker_on(instant_disk()) as broker:
        await broker.storage.take_over(TopicId(1), 5, 0)  # type: ignore[arg-type]
        log = broker.storage.topic(TopicId(1))
        stream = stream_of(OWN, ONE)
        broker.storage.replicate(TopicId(1), stream)
        answers: list[DanubeError | None] = []
        log.append(batch_of(b"a"), answers.append)
        stream.has(ONE, 1)
        assert answers == []
        await broker.storage.flush()
        assert answers == [None]
