"""What a producer sends twice is stored once."""

import asyncio

import pytest
from msgspec.structs import replace

from pydanube.errors import InvalidRequest, Overloaded, Unavailable
from pydanube.model.policies import Policies
from pydanube.model.sequences import AlreadyApplied, Applied, MessageSequence, Overlap, sequence_key
from pydanube.storage.config import StorageConfig
from pydanube.topics import sequencing
from pydanube.topics.errors import (
    MessageTooLarge,
    SequencesUnknown,
    SinkNotDeterministic,
    TooManySequences,
)
from tests.support.advancing_clock import AdvancingClock
from tests.support.journals import instant_disk
from tests.support.served_topic import ServedTopic, batch_from, message, sequences, served

# Batches.


async def test_a_batch_without_a_stamp_gets_the_next_offsets() -> None:
    async with served(instant_disk()) as topic:
        assert await topic.publish_batch(batch_from(b"a", b"b")) == Applied(0)
        assert await topic.publish_batch(batch_from(b"a", b"b")) == Applied(2)
        assert await topic.payloads() == [b"a", b"b", b"a", b"b"]


async def test_what_is_new_repeated_or_both_is_told_apart() -> None:
    async with served(instant_disk()) as topic:
        put = topic.publish_batch
        assert await put(batch_from(b"a", b"b", b"c"), sequences(0, 2)) == Applied(0)
        assert await put(batch_from(b"a", b"b", b"c"), sequences(0, 2)) == AlreadyApplied(0)
        assert await put(batch_from(b"b"), sequences(1)) == AlreadyApplied(1)
        assert await put(batch_from(b"c", b"d"), sequences(2, 3)) == Overlap(2)
        assert await put(batch_from(b"z"), sequences(10, 19)) == Applied(3)
        assert await put(batch_from(b"d"), sequences(3, 9)) == AlreadyApplied(None)
        assert await put(batch_from(b"z"), sequences(12)) == AlreadyApplied(None)
        assert await topic.payloads() == [b"a", b"b", b"c", b"z"]


async def test_sequence_0_is_new_once_and_a_producer_counts_for_itself() -> None:
    async with served(instant_disk()) as topic:
        assert await topic.publish_batch(batch_from(b"a"), sequences(0)) == Applied(0)
        assert await topic.publish_batch(batch_from(b"a"), sequences(0)) == AlreadyApplied(0)
        other = sequences(0, producer="bill")
        assert await topic.publish_batch(batch_from(b"b"), other) == Applied(1)


async def test_a_repeat_waits_for_the_sync_of_the_first() -> None:
    disk = instant_disk()
    async with served(disk) as topic:
        disk.slow("sync", 0.05)
        first = topic.put(batch_from(b"a"), sequences(5))
        again = topic.put(batch_from(b"a"), sequences(5))
        across = topic.put(batch_from(b"a", b"b"), sequences(5, 6))
        assert not first.is_there
        assert not again.is_there
        assert not across.is_there
        assert await again.over == AlreadyApplied(0)
        assert first.over.result() == Applied(0)
        assert await across.over == Overlap(5)
        assert await topic.payloads() == [b"a"]


async def test_a_failed_sync_is_told_to_repeats_as_well() -> None:
    disk = instant_disk()
    topic = await ServedTopic.start(disk)
    disk.fail_next("sync", OSError(5, "no"))
    first = topic.put(batch_from(b"a"), sequences(5))
    again = topic.put(batch_from(b"a"), sequences(5))
    for answer in (first, again, topic.put(batch_from(b"a"), sequences(5))):
        with pytest.raises(Unavailable):
            await answer.over
    with pytest.raises(Unavailable):
        await topic.put(batch_from(b"a"), sequences(5)).over
    await topic.abandon()


async def test_other_contents_under_the_same_sequences_are_refused() -> None:
    async with served(instant_disk()) as topic:
        await topic.publish_batch(batch_from(b"a"), sequences(0, 4, digest=1))
        repeat = await topic.publish_batch(batch_from(b"a"), sequences(0, 4, digest=1))
        assert repeat == AlreadyApplied(0)
        with pytest.raises(SinkNotDeterministic, match="SINK_NOT_DETERMINISTIC"):
            await topic.publish_batch(batch_from(b"b"), sequences(0, 4, digest=2))
        # Without a digest, or of another range, nothing can be compared.
        assert await topic.publish_batch(batch_from(b"b"), sequences(0, 4)) == AlreadyApplied(0)
        other = await topic.publish_batch(batch_from(b"b"), sequences(0, 3, digest=2))
        assert other == AlreadyApplied(None)
        assert await topic.payloads() == [b"a"]


async def test_behind_a_refused_batch_nothing_is_stored_that_names_it() -> None:
    async with served(instant_disk()) as topic:
        await topic.publish_batch(batch_from(b"0"), sequences(0))
        across = topic.put(batch_from(b"0", b"1"), sequences(0, 1))
        behind = topic.put(batch_from(b"2"), replace(sequences(2), previous=1))
        assert await across.over == Overlap(0)
        with pytest.raises(Unavailable, match="ends with sequence 1 has not been stored"):
            await behind.over
        await topic.publish_batch(batch_from(b"1"), replace(sequences(1), previous=0))
        await topic.publish_batch(batch_from(b"2"), replace(sequences(2), previous=1))
        # What is there already is told so, whatever is said to come before it.
        again = await topic.publish_batch(batch_from(b"2"), replace(sequences(2), previous=9))
        assert again == AlreadyApplied(2)
        assert await topic.payloads() == [b"0", b"1", b"2"]


async def test_sequences_survive_a_restart() -> None:
    disk = instant_disk()
    async with served(disk) as topic:
        await topic.publish_batch(batch_from(b"a", b"b"), sequences(7, 8, digest=9))
    async with served(disk) as topic:
        again = await topic.publish_batch(batch_from(b"a", b"b"), sequences(7, 8, digest=9))
        assert again == AlreadyApplied(0)
        with pytest.raises(SinkNotDeterministic):
            await topic.publish_batch(batch_from(b"x"), sequences(7, 8, digest=10))
        last = await topic.topic.last_batch("anne")
        assert last is not None
        assert (last.stamp.first_sequence, last.stamp.last_sequence) == (7, 8)
        assert last.stamp.digest == 9
        assert await topic.topic.last_batch("bill") is None


async def test_the_last_batch_is_told_once_it_is_durable() -> None:
    disk = instant_disk()
    async with served(disk) as topic:
        disk.slow("sync", 0.05)
        put = topic.put(batch_from(b"a"), sequences(3))
        last = await topic.topic.last_batch("anne")
        assert put.is_there
        assert last is not None
        assert last.stamp.last_sequence == 3


@pytest.mark.parametrize(
    "wrong",
    [sequences(3, 2), sequences(-1, 2), sequences(0, 2**64), sequences(0, producer="")],
)
async def test_what_is_no_range_is_refused(wrong) -> None:
    async with served(instant_disk()) as topic:
        with pytest.raises(InvalidRequest):
            await topic.publish_batch(batch_from(b"a"), wrong)
        assert await topic.payloads() == []


async def test_batches_are_checked_like_messages() -> None:
    policies = Policies(max_message_size=5_000)
    async with served(instant_disk(), policies=policies) as topic:
        small = batch_from(*[bytes(4_000)] * 3)
        assert await topic.publish_batch(small) == Applied(0)
        with pytest.raises(MessageTooLarge, match="5001 bytes"):
            await topic.publish_batch(batch_from(b"a", bytes(5_001)))
        topic.topic.drain()
        with pytest.raises(Unavailable):
            await topic.publish_batch(batch_from(b"a"))


async def test_a_topic_that_stores_nothing_takes_batches_without_sequences_only() -> None:
    async with served(instant_disk(), reliable=False) as topic:
        assert await topic.publish_batch(batch_from(b"a")) == Applied(None)
        with pytest.raises(InvalidRequest, match="not reliable"):
            await topic.publish_batch(batch_from(b"a"), sequences(1))


async def test_a_batch_comes_behind_what_came_before_it() -> None:
    async with served(instant_disk()) as topic:
        single = topic.send(message(b"1"))
        batch = topic.put(batch_from(b"2"))
        after = topic.send(message(b"3"))
        await asyncio.gather(single.over, batch.over, after.over)
        assert await topic.payloads() == [b"1", b"2", b"3"]


async def test_the_publish_rate_counts_the_messages_of_a_batch() -> None:
    clock = AdvancingClock()
    policies = Policies(max_publish_rate=10)
    async with served(instant_disk(), policies=policies, clock=clock) as topic:
        first = topic.put(batch_from(*[b"x"] * 30))
        second = topic.put(batch_from(b"y"))
        single = topic.send(message(b"z"))
        await first.over
        assert not second.is_there
        topic.topic.drain()
        clock.advance(10)
        # What waits for its turn while the topic closes is refused, and not forgotten.
        for answer in (second, single):
            with pytest.raises(Unavailable):
                await answer.over


async def test_batches_of_a_session_count_apart_and_are_forgotten_with_it() -> None:
    clock = AdvancingClock()
    async with served(instant_disk(), clock=clock) as topic:
        for session in (None, 1, 2):
            stamp = replace(sequences(0), session=session)
            assert isinstance(await topic.publish_batch(batch_from(b"a"), stamp), Applied)
            assert isinstance(await topic.publish_batch(batch_from(b"a"), stamp), AlreadyApplied)
        assert len(await topic.payloads()) == 3
        clock.advance(sequencing.SESSION_IDLE_MS / 1000 + 1)
        topic.topic.forget_idle_producers()
        log = topic.topic.log
        assert log is not None
        assert set(log.producers) == {sequence_key("anne")}


# Single messages.


def number(sequence: int, previous: int | None = None, session: int | None = 1) -> MessageSequence:
    return MessageSequence(sequence, previous, session)


async def test_numbered_messages_of_a_tick_are_one_batch_per_producer() -> None:
    async with served(instant_disk()) as topic:
        anne = [topic.send(message(b"a%d" % n), number(n)) for n in range(3)]
        bill = [topic.send(message(b"b%d" % n, "bill"), number(n)) for n in range(2)]
        offsets = [await answer.over for answer in [*anne, *bill]]
        assert offsets == [0, 1, 2, 3, 4]
        log = topic.topic.log
        assert log is not None
        known = log.producers[sequence_key("anne", 1)]
        assert (known.stamp.first_sequence, known.stamp.last_sequence) == (0, 2)
        assert known.stamp.session
        assert len(log.producers) == 2


async def test_a_repeated_message_gets_the_answer_of_the_first() -> None:
    disk = instant_disk()
    async with served(disk) as topic:
        first = [topic.send(message(b"%d" % n), number(n)) for n in range(3)]
        in_same_tick = topic.send(message(b"1"), number(1))
        assert [await answer.over for answer in first] == [0, 1, 2]
        assert await in_same_tick.over == 1
        assert await topic.send(message(b"2"), number(2)).over == 2
        await topic.send(message(b"3"), number(3)).over
        assert await topic.send(message(b"0"), number(0)).over is None
    async with served(disk) as topic:
        assert await topic.send(message(b"3"), number(3)).over == 3
        assert await topic.payloads() == [b"0", b"1", b"2", b"3"]


async def test_sessions_and_names_count_apart() -> None:
    async with served(instant_disk()) as topic:
        for session in (1, 2, None):
            await topic.send(message(), number(0, session=session)).over
        assert len(await topic.payloads()) == 3


async def test_a_message_that_overtook_the_one_before_it_waits_for_it() -> None:
    async with served(instant_disk()) as topic:
        await topic.send(message(b"0"), number(0)).over
        third = topic.send(message(b"3"), number(3, previous=2))
        second = topic.send(message(b"2"), number(2, previous=1))
        first = topic.send(message(b"1"), number(1, previous=0))
        assert [await answer.over for answer in (first, second, third)] == [1, 2, 3]
        assert await topic.payloads() == [b"0", b"1", b"2", b"3"]


async def test_a_thousand_messages_in_the_wrong_order_are_put_right() -> None:
    async with served(instant_disk()) as topic:
        await topic.send(message(b"0"), number(0)).over
        answers = [
            topic.send(message(b"%d" % n), number(n, previous=n - 1)) for n in range(1000, 0, -1)
        ]
        await asyncio.gather(*(answer.over for answer in answers))
        assert await topic.payloads() == [b"%d" % n for n in range(1001)]


async def test_a_message_does_not_wait_for_ever() -> None:
    clock = AdvancingClock()
    async with served(instant_disk(), clock=clock) as topic:
        await topic.send(message(b"0"), number(0)).over
        early = topic.send(message(b"2"), number(2, previous=1))
        clock.advance(1)
        with pytest.raises(Overloaded, match="has not reached"):
            await early.over
        # Its client repeats both, and nothing is lost or doubled.
        again = topic.send(message(b"2"), number(2, previous=1))
        await topic.send(message(b"1"), number(1, previous=0)).over
        await again.over
        assert await topic.payloads() == [b"0", b"1", b"2"]


async def test_too_many_early_messages_are_refused_at_once(monkeypatch) -> None:
    monkeypatch.setattr("pydanube.topics.early_messages.EARLY_MAX", 2)
    async with served(instant_disk()) as topic:
        await topic.send(message(b"0"), number(0)).over
        waiting = [topic.send(message(), number(n, previous=n - 1)) for n in (2, 3, 4)]
        assert [answer.is_there for answer in waiting] == [False, False, True]
        topic.topic.drain()
        for answer, kind in zip(waiting, (Unavailable, Unavailable, Overloaded), strict=True):
            with pytest.raises(kind):
                await answer.over


async def test_what_was_given_up_may_be_left_out() -> None:
    async with served(instant_disk()) as topic:
        await topic.send(message(b"0"), number(0)).over
        # Message 1 was given up by its client; 2 follows 0 now. Then 1 arrives after all.
        await topic.send(message(b"2"), number(2, previous=0)).over
        await topic.send(message(b"1"), number(1, previous=0)).over
        assert await topic.payloads() == [b"0", b"2"]


async def test_a_message_of_an_unknown_session_is_not_stored() -> None:
    async with served(instant_disk()) as topic:
        with pytest.raises(SequencesUnknown):
            await topic.send(message(b"5"), number(5, previous=4)).over
        assert await topic.payloads() == []


async def test_what_the_disk_has_no_room_for_keeps_later_messages_out() -> None:
    disk = instant_disk()
    config = StorageConfig(unsynced_bytes_max=4_000)
    async with served(disk, config=config) as topic:
        await topic.send(message(b"0"), number(0)).over
        disk.slow("sync", 0.05)
        filler = topic.put(batch_from(bytes(3_500)))
        big = topic.send(message(bytes(3_000)), number(1, previous=0))
        with pytest.raises(Overloaded):
            await big.over
        small = topic.send(message(b"2"), number(2, previous=1))
        await filler.over
        again = topic.send(message(b"1"), number(1, previous=0))
        await asyncio.gather(again.over, small.over)
        assert (await topic.payloads())[2:] == [b"1", b"2"]


# Whom a topic remembers.


async def test_too_many_producers_are_refused_until_sessions_are_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sequencing, "PRODUCERS_MAX", 3)
    clock = AdvancingClock()
    async with served(instant_disk(), clock=clock) as topic:
        await topic.send(message(), number(0, session=1)).over
        await topic.send(message(), number(0, session=2)).over
        await topic.publish_batch(batch_from(b"a"), sequences(0))
        for refused in (
            topic.send(message(), number(0, session=3)),
            topic.put(batch_from(b"b"), sequences(0, producer="bill")),
        ):
            with pytest.raises(TooManySequences, match="forget_sequences_after_ms"):
                await refused.over
        # Whoever is known goes on.
        await topic.send(message(), number(1, session=1)).over
        clock.advance(sequencing.SESSION_IDLE_MS / 1000 + 1)
        await topic.send(message(), number(0, session=3)).over
        log = topic.topic.log
        assert log is not None
        assert set(log.producers) == {sequence_key("anne"), sequence_key("anne", 3)}


async def test_names_are_forgotten_only_when_a_policy_says_so() -> None:
    clock = AdvancingClock()
    for policies, forgets in ((Policies(), False), (Policies(forget_sequences_after_ms=50), True)):
        async with served(instant_disk(), clock=clock, policies=policies) as topic:
            await topic.publish_batch(batch_from(b"a"), sequences(0))
            topic.topic.forget_idle_producers()
            assert await topic.topic.last_batch("anne") is not None
            clock.advance(3600 * 24 * 365)
            topic.topic.forget_idle_producers()
            assert (await topic.topic.last_batch("anne") is None) is forgets
