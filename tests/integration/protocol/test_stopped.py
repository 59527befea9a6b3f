"""A subscription that stops says so: in the log, in every listing, in health and metrics."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from pydanube.errors import Unavailable
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.generated import PyDanube_pb2 as own
from tests.support.broker_process import operator_page
from tests.support.raw_client import KEY_SHARED, RawClient, Stream
from tests.support.running_broker import RunningBroker

TOPIC = "/default/orders"
BLOCKED = "blocked by a message whose deliveries are used up"


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pydanube")


@pytest.fixture
async def producer(client: RawClient) -> int:
    return await client.create_producer(TOPIC)


async def blocked(client: RawClient, producer: int, **options: Any) -> Stream:
    """A subscription whose first message has used its deliveries up."""
    await client.set_failure_policy(TOPIC, max_redelivery_count=0)
    stream = await client.consume(TOPIC, **options)
    await client.send(TOPIC, producer, b"bad", routing_key="k")
    await client.nack(await stream.next(), reason="not an\nOrder")
    return stream


async def standing(client: RawClient) -> admin.SubscriptionStanding:
    listed = await client.call(services.LIST_SUBSCRIPTIONS, admin.TopicRequest(name=TOPIC))
    [found] = listed.standings
    described = await client.call(services.DESCRIBE_TOPIC, admin.DescribeTopicRequest(name=TOPIC))
    assert list(described.standings) == [found]
    assert list(listed.subscriptions) == list(described.subscriptions) == ["s"]
    return found


def said(caplog: pytest.LogCaptureFixture, words: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if words in record.getMessage()]


async def test_a_blocked_subscription_is_one_line_in_the_log_and_a_state_everywhere(
    broker: RunningBroker,
    client: RawClient,
    producer: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await client.set_window(TOPIC, 3)
    stream = await blocked(client, producer)
    for _ in range(2):
        await client.send(TOPIC, producer, b"bad too")
    await broker._serving.registration.sweep()
    [line] = said(caplog, BLOCKED)
    assert line.levelno == logging.WARNING
    text = line.getMessage()
    for words in (
        f"topic={TOPIC}",
        "subscription=s",
        "offset=0",
        "attempts=1",
        "reason=not an Order",
        f"danube topics set-failure-policy {TOPIC} -s s --poison-policy dead_letter",
    ):
        assert words in text

    found = await standing(client)
    assert (found.state, found.blocked, found.offset, found.attempts) == ("blocked", 1, 0, 1)
    assert (found.reason, found.lag) == ("not an Order", 3)
    assert found.next_step.startswith("danube topics set-failure-policy")
    assert found.failure_policy.poison_policy == admin.SubscriptionPoisonPolicy.Block

    [note] = broker.server._broker.notes
    assert f"subscription s of {TOPIC} is blocked at offset 0" in note
    assert broker.server._broker.is_ready, "the broker still serves"

    request = own.UpdateFailurePolicyRequest(topic=TOPIC, subscription="s", poison_policy="Drop")
    await client.call(services.UPDATE_FAILURE_POLICY, request)
    assert len(await stream.take(2)) == 2
    assert said(caplog, "a subscription goes on")
    found = await standing(client)
    assert (found.state, found.HasField("offset")) == ("active", False)
    assert broker.server._broker.notes == []


async def test_key_shared_tells_of_the_first_key_at_once_and_of_more_at_the_next_look(
    broker: RunningBroker, client: RawClient, producer: int, caplog: pytest.LogCaptureFixture
) -> None:
    stream = await blocked(client, producer, kind=KEY_SHARED)
    assert said(caplog, "a key of a subscription is blocked")
    for key in ("a", "b"):
        await client.send(TOPIC, producer, b"bad", routing_key=key)
        await client.nack(await stream.next())
    assert not said(caplog, "more keys")
    for _ in range(2):
        await broker._serving.registration.sweep()
    [line] = said(caplog, "more keys of a subscription are blocked")
    assert "blocked=3" in line.getMessage()


async def test_a_subscription_that_settles_nothing_though_it_could_is_stalled(
    broker: RunningBroker, client: RawClient, producer: int, caplog: pytest.LogCaptureFixture
) -> None:
    await client.set_failure_policy(TOPIC, ack_timeout_ms=10_000, max_redelivery_delay_ms=1_000)
    stream = await client.consume(TOPIC)
    await client.send(TOPIC, producer, b"slow")
    message = await stream.next()
    for _ in range(3):
        await broker._serving.registration.sweep()
        assert (await standing(client)).state == "active"
        # Redelivered, but it stays unacked; the broker's clock is set, so that nobody waits.
        broker.clock.advance(29)
    broker.clock.advance(1)
    for _ in range(2):
        await broker._serving.registration.sweep()
    [line] = said(caplog, "a subscription is stalled")
    assert "nothing was settled" in line.getMessage()
    found = await standing(client)
    assert (found.state, found.HasField("offset")) == ("stalled", False)
    assert "ack or nack" in found.next_step
    await client.ack(message)
    await broker._serving.registration.sweep()
    assert (await standing(client)).state == "active"
    assert said(caplog, "what stalled it has passed")


async def test_nobody_there_is_idle_and_no_trouble(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    stream = await client.consume(TOPIC)
    await client.send(TOPIC, producer, b"later")
    await stream.next()
    await stream.close()
    await broker.until(lambda: not broker.topics.get(TOPIC).active_consumers)
    for _ in range(5):
        broker.clock.advance(100)
        await broker._serving.registration.sweep()
    assert (await standing(client)).state == "idle"
    assert broker.server._broker.notes == []


async def test_dead_letters_that_cannot_be_stored_are_told_once_and_stall(
    broker: RunningBroker,
    client: RawClient,
    producer: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = 0

    async def full(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise Unavailable("no room")

    sink = broker._serving.dead_letters
    monkeypatch.setattr(sink, "store", full)
    await client.set_failure_policy(
        TOPIC, max_redelivery_count=0, base_redelivery_delay_ms=0, poison_policy=0,
        dead_letter_topic="/default/dead",
    )  # fmt: skip
    stream = await client.consume(TOPIC)
    await client.send(TOPIC, producer, b"bad")
    await client.nack(await stream.next())
    await broker.until(lambda: tries >= 3)
    [line] = said(caplog, "a subscription is stalled")
    assert "dead letters cannot be stored in /default/dead: no room" in line.getMessage()
    assert (await standing(client)).state == "stalled"
    monkeypatch.undo()
    await broker.until(lambda: broker.topics.find("/default/dead") is not None)
    await broker.until(lambda: broker.topics.get(TOPIC).subscriptions["s"].trouble is None)
    assert (await standing(client)).state == "active"


async def test_a_stopped_subscription_is_a_metric(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    await blocked(client, producer)

    async def here(work: Any) -> Any:
        return work()

    text = (await broker.server._broker._metrics.render(here)).decode()
    values = {
        line.split("{")[0]: line.rsplit(" ", 1)[1]
        for line in text.splitlines()
        if f'topic="{TOPIC}"' in line and 'subscription="s"' in line
    }
    assert values["danube_subscription_terminal_blocked"] == "1"
    assert values["danube_subscription_stalled"] == "0"


async def test_partitions_are_listed_and_described_by_their_base(
    broker: RunningBroker, client: RawClient
) -> None:
    request = admin.PartitionedTopicRequest(base_name=TOPIC, partitions=2, dispatch_strategy=1)
    await client.call(services.CREATE_PARTITIONED_TOPIC, request)
    for part in (0, 1):
        await client.subscribe(f"{TOPIC}-part-{part}")
    listed = await client.call(services.LIST_SUBSCRIPTIONS, admin.TopicRequest(name=TOPIC))
    assert list(listed.subscriptions) == ["s"]
    assert [each.topic for each in listed.standings] == [f"{TOPIC}-part-0", f"{TOPIC}-part-1"]
    described = await client.call(services.DESCRIBE_TOPIC, admin.DescribeTopicRequest(name=TOPIC))
    assert list(described.standings) == list(listed.standings)
    assert json.dumps(list(described.subscriptions)) == '["s"]'


async def test_a_dead_letter_topic_that_may_not_be_made_is_named_by_readyz_until_it_is_there(
    tmp_path: Path,
) -> None:
    broker = RunningBroker(tmp_path / "data", {"auto_create_topics": False})
    await broker.start()
    try:
        client = broker.client()
        await client.create_topic(TOPIC)
        await client.set_failure_policy(
            TOPIC, max_redelivery_count=0, poison_policy=0, dead_letter_topic="/default/dead"
        )
        stream = await client.consume(TOPIC)
        await client.send(TOPIC, await client.create_producer(TOPIC), b"bad")
        await client.nack(await stream.next())
        subscription = broker.topics.get(TOPIC).subscriptions["s"]
        await broker.until(lambda: subscription.trouble is not None)
        port = broker.server.metrics_port
        assert port is not None
        status, text = await asyncio.to_thread(operator_page, port, "/readyz")
        assert status == 200
        [note] = json.loads(text)["notes"]
        assert "is stalled: dead letters cannot be stored in /default/dead" in note
        assert "danube topics create /default/dead --dispatch-strategy reliable" in note
        await client.create_topic("/default/dead")
        broker.clock.advance(2)
        await broker.until(lambda: subscription.trouble is None)
        _, text = await asyncio.to_thread(operator_page, port, "/readyz")
        assert "notes" not in json.loads(text)
    finally:
        await broker.close()
