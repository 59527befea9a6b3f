"""Retention by time and size, of topics and namespaces, as operators set it at any time."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from pydanube.topics.topic import Topic
from pydanube.wire.calls import CallRefused
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import PyDanube_pb2 as own
from tests.support.raw_client import RawClient
from tests.support.running_broker import RunningBroker

TOPIC = "/default/orders"
OTHER = "/default/others"
HOUR_MS = 3_600_000
SEGMENT_ROWS = 10


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    broker = RunningBroker(tmp_path / "data")
    await broker.start()
    yield broker
    await broker.close()


async def fill(broker: RunningBroker, topic: str = TOPIC, segments: int = 3) -> Topic:
    """Publish so many segments of ten messages each."""
    client = broker.client()
    producer = await client.create_producer(topic)
    for _ in range(segments):
        for _ in range(SEGMENT_ROWS):
            await client.send(topic, producer, b"x" * 500)
        await broker._serving.storage.seal_topic(broker.topics.get(topic).record.id)
    return broker.topics.get(topic)


async def go_round(broker: RunningBroker) -> None:
    await broker._serving.storage._tier.upkeep.go_round()


def first(topic: Topic) -> int:
    assert topic.log is not None
    return topic.log.first_offset


def segment_bytes(topic: Topic) -> int:
    assert topic.log is not None
    assert topic.log.segments is not None
    return max(entry.bytes for entry in topic.log.segments.entries())


async def set_retention(client: RawClient, **rule: Any) -> own.RetentionResponse:
    return await client.call(services.SET_RETENTION, own.SetRetentionRequest(**rule))


async def retention(client: RawClient, **of: str) -> tuple[int, int, bool, list[str]]:
    found = await client.call(services.GET_RETENTION, own.GetRetentionRequest(**of))
    return found.time_ms, found.bytes, found.waits_for_subscriptions, list(found.own)


async def test_size_counts_and_applies_at_once(broker: RunningBroker) -> None:
    topic = await fill(broker)
    client = broker.client()
    answer = await set_retention(client, topic=TOPIC, bytes=2 * segment_bytes(topic))
    assert (answer.time_ms, list(answer.own)) == (0, ["bytes"])
    await broker.until(lambda: first(topic) == SEGMENT_ROWS)


async def test_time_counts_from_when_messages_became_a_segment(broker: RunningBroker) -> None:
    topic = await fill(broker)
    await set_retention(broker.client(), topic=TOPIC, time_ms=HOUR_MS)
    await go_round(broker)
    broker.clock.advance(3_590)
    await fill(broker, segments=1)
    await go_round(broker)
    assert first(topic) == 0
    broker.clock.advance(20)
    await go_round(broker)
    assert first(topic) == 3 * SEGMENT_ROWS


async def test_a_namespaces_rule_holds_for_topics_without_their_own(broker: RunningBroker) -> None:
    client = broker.client()
    topic, other = await fill(broker), await fill(broker, OTHER)
    await set_retention(client, topic=TOPIC, bytes=0)
    await set_retention(client, namespace="default", bytes=1)
    await broker.until(lambda: first(other) == 2 * SEGMENT_ROWS)
    await go_round(broker)
    assert first(topic) == 0, "its own rule is: for ever"
    await set_retention(client, topic=TOPIC)
    await broker.until(lambda: first(topic) == 2 * SEGMENT_ROWS)
    assert await retention(client, topic=TOPIC) == (0, 1, True, [])


async def test_each_part_of_a_rule_is_a_topics_own_or_its_namespaces(broker: RunningBroker) -> None:
    client = broker.client()
    await fill(broker, segments=1)
    await set_retention(client, namespace="default", time_ms=5 * HOUR_MS, bytes=10**9)
    await set_retention(client, topic=TOPIC, time_ms=HOUR_MS, waits_for_subscriptions=False)
    expected = (HOUR_MS, 10**9, False, ["time_ms", "waits_for_subscriptions"])
    assert await retention(client, topic=TOPIC) == expected
    assert await retention(client, namespace="default") == (5 * HOUR_MS, 10**9, True, [])
    await broker.restart()
    client = broker.client()
    assert await retention(client, topic=TOPIC) == expected
    assert await retention(client, namespace="default") == (5 * HOUR_MS, 10**9, True, [])


async def test_a_partitioned_topic_has_one_rule_for_all_its_partitions(
    broker: RunningBroker,
) -> None:
    client = broker.client()
    await client.create_partitioned("/default/parts", 2)
    topics = [await fill(broker, f"/default/parts-part-{number}") for number in range(2)]
    await set_retention(client, topic="/default/parts", bytes=1)
    await broker.until(lambda: all(first(topic) == 2 * SEGMENT_ROWS for topic in topics))


@pytest.mark.parametrize("of", ["topic", "namespace"])
async def test_nothing_goes_that_a_subscription_has_not_settled_unless_it_is_forced(
    broker: RunningBroker, of: str
) -> None:
    client = broker.client()
    await client.create_topic(TOPIC)
    await client.subscribe(TOPIC, "slow")
    topic = await fill(broker)
    name = {"topic": TOPIC} if of == "topic" else {"namespace": "default"}
    await set_retention(client, **name, bytes=1, time_ms=1)
    broker.clock.advance(10)
    await go_round(broker)
    assert first(topic) == 0
    await set_retention(client, **name, bytes=1, time_ms=1, waits_for_subscriptions=False)
    await broker.until(lambda: first(topic) == 3 * SEGMENT_ROWS)


async def test_a_consumer_whose_messages_were_forced_out_goes_on_with_what_there_is(
    broker: RunningBroker,
) -> None:
    client = broker.client()
    await client.create_topic(TOPIC)
    await client.subscribe(TOPIC, "slow")
    topic = await fill(broker)
    await set_retention(client, topic=TOPIC, bytes=1, waits_for_subscriptions=False)
    await broker.until(lambda: first(topic) == 2 * SEGMENT_ROWS)
    await broker.restart()
    stream = await broker.client().consume(TOPIC, "slow")
    (message, *_) = await stream.take(SEGMENT_ROWS)
    assert message.msg_id.topic_offset == 2 * SEGMENT_ROWS


@pytest.mark.parametrize(
    ("request_of", "code"),
    [
        (lambda: own.SetRetentionRequest(bytes=1), "INVALID_ARGUMENT"),
        (lambda: own.SetRetentionRequest(topic="/default/none", bytes=1), "NOT_FOUND"),
        (lambda: own.SetRetentionRequest(namespace="none", bytes=1), "NOT_FOUND"),
        (lambda: own.SetRetentionRequest(topic="/default/flying", bytes=1), "FAILED_PRECONDITION"),
        (lambda: own.SetRetentionRequest(topic=TOPIC, time_ms=2**63), "INVALID_ARGUMENT"),
    ],
)
async def test_a_rule_that_makes_no_sense_is_refused_and_changes_nothing(
    broker: RunningBroker, request_of: Callable[[], own.SetRetentionRequest], code: str
) -> None:
    client = broker.client()
    await client.create_topic(TOPIC)
    await client.create_producer("/default/flying", reliable=False)
    refusal = await broker.refusal(client, services.SET_RETENTION, request_of())
    assert refusal.code.name == code


async def test_a_long_list_of_segments_is_given_in_parts(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(broker, segments=5)
    client = broker.client()
    method = services.LIST_SEGMENT_DESCRIPTORS
    monkeypatch.setattr("pydanube.broker.servicers.storage.LISTED_MAX", 2)
    found: list[Any] = []
    while part := (
        await client.call(
            method,
            method.request(
                topic="default/orders", after_offset=found[-1].end_offset if found else 0
            ),
        )
    ).segments:
        assert len(part) <= 2
        found += part
    assert [segment.start_offset for segment in found] == [0, 10, 20, 30, 40]


async def test_both_ports_answer(broker: RunningBroker) -> None:
    await fill(broker, segments=1)
    with pytest.raises(CallRefused, match="neither a topic nor a namespace"):
        await broker.client().call(services.GET_RETENTION, own.GetRetentionRequest())
