"""What a topic with a schema lets pass, and that nothing else is ever stored."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pydanube.errors import Overloaded, Unavailable
from pydanube.model.batch import Batch
from pydanube.model.message import Message
from pydanube.model.policies import Policies
from pydanube.model.schemas import TopicSchema
from pydanube.model.sequences import Applied, MessageSequence
from pydanube.registry.decisions import NewSchema
from pydanube.topics import inspection
from pydanube.topics.errors import SchemaViolation
from pydanube.topics.schema_rules import Violation, find_violations
from tests.support.advancing_clock import AdvancingClock
from tests.support.journals import instant_disk
from tests.support.served_topic import Answer, ServedTopic, message, sequences, served

BAD = b"\xff"
ENFORCED = TopicSchema(subject="texts", policy="enforce", validates_payloads=True)
IN_A_THREAD = pytest.mark.parametrize("at_once_bytes", [0, 2**20], ids=["in a thread", "at once"])


@pytest.fixture(autouse=True)
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "at_once_bytes" in request.fixturenames:
        limit = request.getfixturevalue("at_once_bytes")
        monkeypatch.setattr(inspection, "AT_ONCE_BYTES_MAX", limit)


@asynccontextmanager
async def strict(**options: Any) -> AsyncIterator[ServedTopic]:
    """Serve a topic that takes nothing but texts, and says so."""
    async with served(instant_disk(), **options) as topic:
        new = NewSchema(subject="texts", schema_type="string", definition=b"")
        assert (await topic.schemas.registry.register(new)).schema_id == 1
        topic.topic.set_schema(ENFORCED)
        yield topic


def text(payload: bytes, **fields: Any) -> Message:
    return message(payload, **({"schema_id": 1, "schema_version": 1} | fields))


def texts(*payloads: bytes) -> Batch:
    return Batch.gather([text(payload) for payload in payloads])


async def verdict(answer: Answer) -> bool:
    """Tell whether it was stored; anything but that or a violation fails the test."""
    try:
        await answer.over
    except SchemaViolation:
        return False
    return True


@IN_A_THREAD
async def test_messages_and_batches_keep_their_order_whoever_is_refused(at_once_bytes) -> None:
    async with strict() as topic:
        answers = [
            topic.send(text(b"a")),
            topic.send(text(BAD)),
            topic.put(texts(b"b", b"c")),
            topic.put(texts(b"d", BAD)),
            topic.send(text(b"e")),
            topic.send(message(b"without a schema")),
            topic.put(texts(b"f")),
        ]
        stored = [await verdict(each) for each in answers]
        assert stored == [True, False, True, False, True, False, True]
        assert await topic.payloads() == [b"a", b"b", b"c", b"e", b"f"]
        assert topic.schemas.waiting.bytes == 0
        assert not topic.topic.is_inspecting


async def test_one_bad_row_refuses_its_batch_and_is_named() -> None:
    async with strict() as topic:
        with pytest.raises(SchemaViolation, match=r"nothing of the batch .* row 2 of 4, nor 1 oth"):
            await topic.publish_batch(texts(b"a", b"b", BAD, BAD))
        assert await topic.payloads() == []


async def test_a_mixed_batch_is_judged_row_by_row() -> None:
    rows = [text(b"a"), text(b"b", schema_version=None), text(BAD, schema_id=7)]
    async with strict() as topic:
        with pytest.raises(SchemaViolation, match=r"row 2 of 3: .*unknown_schema.*schema_id 7"):
            await topic.publish_batch(Batch.gather(rows))
        assert await topic.publish_batch(Batch.gather(rows[:2])) == Applied(0)


@IN_A_THREAD
async def test_numbered_messages_are_judged_before_they_are_counted(at_once_bytes) -> None:
    async with strict() as topic:
        first = topic.send(text(b"a"), MessageSequence(0, None, 5))
        await first.over
        bad = topic.send(text(BAD), MessageSequence(1, 0, 5))
        after = topic.send(text(b"b"), MessageSequence(2, 0, 5))
        assert await verdict(bad) is False
        assert await after.over == 1
        assert await topic.payloads() == [b"a", b"b"]
        with pytest.raises(SchemaViolation):
            await topic.publish_batch(texts(BAD), sequences(0))
        assert await topic.publish_batch(texts(b"c"), sequences(0)) == Applied(2)


@IN_A_THREAD
async def test_a_rule_that_changes_meanwhile_is_the_one_that_counts(at_once_bytes) -> None:
    async with strict() as topic:
        topic.topic.set_schema(TopicSchema(subject="texts", policy="warn"))
        lenient = topic.send(text(BAD))
        topic.topic.set_schema(ENFORCED)
        assert await verdict(lenient) is False
        strictly = topic.send(text(BAD))
        topic.topic.set_schema(None)
        assert await verdict(strictly) is True
        assert await topic.payloads() == [BAD]


async def test_a_rule_that_changes_during_the_look_is_the_one_that_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inspection, "AT_ONCE_BYTES_MAX", 0)
    looking, go_on = threading.Event(), threading.Event()

    def look_slowly(*arguments: Any) -> list[Violation]:
        looking.set()
        assert go_on.wait(10)
        return find_violations(*arguments)

    monkeypatch.setattr(inspection, "find_violations", look_slowly)
    async with strict() as topic:
        topic.topic.set_schema(TopicSchema(subject="texts", policy="warn", validates_payloads=True))
        lenient = topic.send(text(BAD))
        assert await asyncio.to_thread(looking.wait, 10)
        topic.topic.set_schema(ENFORCED)
        go_on.set()
        assert await verdict(lenient) is False
        assert await topic.payloads() == []


async def test_what_waits_for_its_turn_meets_the_rule_of_its_turn() -> None:
    clock = AdvancingClock()
    async with strict(clock=clock, policies=Policies(max_publish_rate=1)) as topic:
        topic.topic.set_schema(None)
        first, second = topic.send(text(b"a")), topic.send(text(BAD))
        await first.over
        assert not second.is_there
        topic.topic.set_schema(ENFORCED)
        clock.advance(5)
        assert await verdict(second) is False


async def test_what_came_too_early_is_sent_back_when_the_rule_changes() -> None:
    async with strict() as topic:
        topic.topic.set_schema(None)
        await topic.send(text(b"a"), MessageSequence(0, None, 5)).over
        early = topic.send(text(BAD), MessageSequence(2, 1, 5))
        topic.topic.set_schema(ENFORCED)
        with pytest.raises(Unavailable, match="send it again"):
            await early.over
        assert await topic.payloads() == [b"a"]


@IN_A_THREAD
async def test_nothing_passes_a_topic_that_closes(at_once_bytes) -> None:
    async with strict() as topic:
        answers = [topic.send(text(b"a")), topic.send(text(BAD))]
        topic.topic.drain()
        for each in answers:
            with pytest.raises(Unavailable, match="closing"):
                await each.over
        assert topic.schemas.waiting.bytes == 0


async def test_only_so_many_bytes_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "WAITING_BYTES_MAX", 1_000)
    async with strict() as topic:
        answers = [topic.send(text(b"x" * 200)) for _ in range(3)]
        with pytest.raises(Overloaded):
            await answers[2].over
        assert [await verdict(each) for each in answers[:2]] == [True, True]
        assert await verdict(topic.send(text(b"x" * 200))) is True


async def test_a_topic_without_a_rule_inspects_nothing() -> None:
    async with strict() as topic:
        topic.topic.set_schema(None)
        assert topic.topic._inspection is None
        topic.topic.set_schema(TopicSchema(subject="texts", policy="none"))
        assert topic.topic._inspection is None


async def test_a_subject_that_is_gone_refuses_everything_where_it_is_enforced() -> None:
    async with strict() as topic:
        await topic.schemas.registry.delete_subject("texts", force=True)
        with pytest.raises(SchemaViolation, match="subject texts is not registered"):
            await topic.send(text(b"a")).over


async def test_warnings_are_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    clock = AdvancingClock()
    async with strict(clock=clock) as topic:
        topic.topic.set_schema(TopicSchema(subject="texts", policy="warn", validates_payloads=True))
        for _ in range(3):
            await topic.send(text(BAD)).over
        clock.advance(60)
        await topic.send(text(BAD)).over
        warned = [each for each in caplog.records if "accepted" in each.getMessage()]
        assert len(warned) == 2
        assert await topic.payloads() == [BAD] * 4
