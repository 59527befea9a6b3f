"""Protocol 3.5: who may consume, under which id, and from where."""

import pytest

from pydanube.wire.calls import StatusCode
from pydanube.wire.danube import services
from tests.integration.protocol.conftest import StartBroker
from tests.support.raw_client import (
    CONSUMER,
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    RawClient,
    consumer_request,
)
from tests.support.running_broker import RunningBroker

TOPIC = "/default/orders"
ALL_KINDS = pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
HOLDER_GRACE_SECONDS = 2.0
STREAM_GRACE_SECONDS = 10.0


async def test_the_answer_echoes_request_id_and_name(client: RawClient) -> None:
    await client.create_producer(TOPIC)
    reply = await client.call(services.SUBSCRIBE, consumer_request(TOPIC, "s", "mine"))
    assert (reply.request_id, reply.consumer_name) == (4, "mine")
    assert 1 <= reply.consumer_id < 2**53


async def test_ids_differ_by_topic_subscription_and_name(client: RawClient) -> None:
    await client.create_producer(TOPIC)
    await client.create_producer("/default/other")
    ids = {
        await client.subscribe(topic, subscription, name, SHARED)
        for topic in (TOPIC, "/default/other")
        for subscription in ("s1", "s2")
        for name in ("c1", "c2")
    }
    assert len(ids) == 8


@ALL_KINDS
async def test_the_same_name_takes_over_with_the_same_id_and_gets_the_unacked_again(
    broker: RunningBroker, client: RawClient, kind: int
) -> None:
    producer = await client.create_producer(TOPIC)
    consumer = await client.subscribe(TOPIC, kind=kind)
    first = client.open(consumer)
    for number in range(3):
        await client.send(TOPIC, producer, routing_key=f"k{number}")
    received = await first.take(3)
    await client.ack(received[1])
    other = broker.client()
    assert await other.subscribe(TOPIC, kind=kind) == consumer
    assert await first.ended() is StatusCode.OK, "a running stream ends cleanly"
    second = other.open(consumer)
    assert sorted(await second.offsets(2)) == [0, 2]
    assert await second.rest() == []


async def test_the_first_subscriber_fixes_the_type(client: RawClient) -> None:
    await client.create_producer(TOPIC)
    await client.subscribe(TOPIC, "s", "a", SHARED)
    await client.subscribe(TOPIC, "s", "b", EXCLUSIVE)
    assert await client.status(services.SUBSCRIBE, consumer_request(TOPIC, "s", "c")) is (
        StatusCode.OK
    ), "were it exclusive now, a third one would be refused"


async def test_a_type_that_is_none_is_an_invalid_argument(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_producer(TOPIC)
    refused = await broker.refusal(client, services.SUBSCRIBE, consumer_request(TOPIC, kind=4))
    assert refused.code is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("name", ["", "x" * 257, "a\tb"])
async def test_names_that_cannot_be_shown_are_invalid_arguments(
    broker: RunningBroker, client: RawClient, name: str
) -> None:
    await client.create_producer(TOPIC)
    for request in (consumer_request(TOPIC, name, "c"), consumer_request(TOPIC, "s", name)):
        refused = await broker.refusal(client, services.SUBSCRIBE, request)
        assert refused.code is StatusCode.INVALID_ARGUMENT


async def test_too_many_or_too_long_key_filters_are_invalid_arguments(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_producer(TOPIC)
    for filters in (["x"] * 101, ["x" * 257]):
        request = consumer_request(TOPIC, kind=KEY_SHARED, key_filters=filters)
        refused = await broker.refusal(client, services.SUBSCRIBE, request)
        assert refused.code is StatusCode.INVALID_ARGUMENT


# Exclusive subscriptions.


@pytest.mark.parametrize("reliable", [True, False])
async def test_an_exclusive_subscription_refuses_another_name_while_its_holder_lives(
    broker: RunningBroker, client: RawClient, reliable: bool
) -> None:
    await client.create_producer(TOPIC, reliable=reliable)
    await client.consume(TOPIC, "s", "holder")
    request = consumer_request(TOPIC, "s", "other")
    refused = await broker.refusal(client, services.SUBSCRIBE, request)
    assert refused.code is StatusCode.PERMISSION_DENIED
    assert "holder" in refused.text


async def test_a_holder_that_just_left_has_a_short_grace_then_the_subscription_is_free(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC, "s", "holder")
    await client.send(TOPIC, producer, b"unacked")
    await stream.next()
    await client.drop(stream)
    request = consumer_request(TOPIC, "s", "other")
    refused = await broker.refusal(client, services.SUBSCRIBE, request)
    assert refused.code is StatusCode.PERMISSION_DENIED
    broker.clock.advance(HOLDER_GRACE_SECONDS + 0.1)
    other = await client.consume(TOPIC, "s", "other")
    assert (await other.next()).payload == b"unacked"
    refused = await broker.refusal(
        client, services.SUBSCRIBE, consumer_request(TOPIC, "s", "holder")
    )
    assert refused.code is StatusCode.PERMISSION_DENIED


async def test_a_subscriber_that_never_opens_a_stream_does_not_hold_the_subscription_for_ever(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_producer(TOPIC)
    holder = await client.subscribe(TOPIC, "s", "holder")
    broker.clock.advance(STREAM_GRACE_SECONDS + 0.1)
    assert await client.health(CONSUMER, holder) == "CLOSE"
    broker.clock.advance(HOLDER_GRACE_SECONDS + 0.1)
    assert await client.subscribe(TOPIC, "s", "other") != holder


async def test_the_time_to_open_a_stream_begins_anew_with_every_subscribe(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_producer(TOPIC)
    holder = await client.subscribe(TOPIC, "s", "holder")
    broker.clock.advance(STREAM_GRACE_SECONDS - 1)
    await client.subscribe(TOPIC, "s", "holder")
    broker.clock.advance(2)
    assert await client.health(CONSUMER, holder) == "OK"


# Limits.


async def test_the_limits_have_the_codes_that_clients_know(start_broker: StartBroker) -> None:
    broker = await start_broker(
        max_subscriptions_per_topic=2,
        max_consumers_per_topic=3,
        max_consumers_per_subscription=2,
    )
    client = broker.client()
    await client.create_producer(TOPIC)
    for number in range(2):
        await client.subscribe(TOPIC, "s1", f"c{number}", SHARED)
    await client.subscribe(TOPIC, "s2", "c2", SHARED)
    for request, code, setting in [
        (consumer_request(TOPIC, "s3", "c"), "PERMISSION_DENIED", "max_subscriptions_per_topic"),
        (consumer_request(TOPIC, "s2", "c"), "RESOURCE_EXHAUSTED", "max_consumers_per_topic"),
    ]:
        refused = await broker.refusal(client, services.SUBSCRIBE, request)
        assert refused.code is StatusCode[code]
        assert setting in refused.text
    assert await client.subscribe(TOPIC, "s1", "c0", SHARED), "a takeover needs no room"


async def test_a_full_subscription_is_a_permission_denied(start_broker: StartBroker) -> None:
    broker = await start_broker(max_consumers_per_subscription=2)
    client = broker.client()
    await client.create_producer(TOPIC)
    for number in range(2):
        await client.subscribe(TOPIC, "s", f"c{number}", SHARED)
    request = consumer_request(TOPIC, "s", "c2", SHARED)
    refused = await broker.refusal(client, services.SUBSCRIBE, request)
    assert refused.code is StatusCode.PERMISSION_DENIED
    assert "max_consumers_per_subscription" in refused.text


async def test_limits_count_only_the_living(start_broker: StartBroker) -> None:
    broker = await start_broker(max_consumers_per_topic=1)
    client = broker.client()
    await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC, "s1", "c1")
    request = consumer_request(TOPIC, "s2", "c2")
    refused = await broker.refusal(client, services.SUBSCRIBE, request)
    assert refused.code is StatusCode.RESOURCE_EXHAUSTED
    await client.drop(stream)
    assert await client.subscribe(TOPIC, "s2", "c2")


# Where a subscription begins.


async def test_a_new_subscription_starts_at_the_tail(client: RawClient) -> None:
    producer = await client.create_producer(TOPIC)
    await client.send_many(TOPIC, producer, [b"before"] * 3)
    stream = await client.consume(TOPIC)
    await client.send(TOPIC, producer, b"after")
    assert [(m.payload, m.msg_id.topic_offset) for m in await stream.take(1)] == [(b"after", 3)]


async def test_the_start_is_kept_although_nothing_was_ever_acked(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC)
    await client.send(TOPIC, producer, b"before")
    await client.subscribe(TOPIC)
    await client.send(TOPIC, producer, b"after")
    await broker.restart()
    stream = await broker.client().consume(TOPIC)
    assert await stream.payloads(1) == [b"after"]


async def test_an_existing_subscription_resumes_after_its_cursor(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC)
    await client.send_many(TOPIC, producer, [b"x"] * 5)
    await client.ack_all((await stream.take(5))[:2])
    await broker.restart()
    client = broker.client()
    await client.send(TOPIC, producer)
    assert await (await client.consume(TOPIC)).offsets(4) == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("start", "first"),
    [("earliest", 0), ("latest", 5), ("offset:3", 3), ("offset:99", 5), ("offset:0", 0)],
)
async def test_a_start_position_may_be_asked_for(client: RawClient, start: str, first: int) -> None:
    producer = await client.create_producer(TOPIC)
    await client.send_many(TOPIC, producer, [b"x"] * 5)
    stream = await client.consume(TOPIC, start_position=start)
    await client.send(TOPIC, producer)
    assert await stream.offsets(6 - first) == list(range(first, 6))


@pytest.mark.parametrize(
    "start",
    [
        pytest.param("offset:" + "9" * 5000, id="a number without end"),
        pytest.param("x" * 9999, id="a text without end"),
        "first",
        "offset:",
        "offset:-1",
        "offset:1.5",
    ],
)
async def test_a_start_position_that_is_none_is_an_invalid_argument(
    broker: RunningBroker, client: RawClient, start: str
) -> None:
    await client.create_producer(TOPIC)
    request = consumer_request(TOPIC, start_position=start)
    refused = await broker.refusal(client, services.SUBSCRIBE, request)
    assert refused.code is StatusCode.INVALID_ARGUMENT


# Between Subscribe and ReceiveMessages.


@pytest.mark.parametrize("reliable", [True, False])
@ALL_KINDS
async def test_what_is_published_before_the_stream_opens_is_kept_for_it(
    client: RawClient, kind: int, reliable: bool
) -> None:
    producer = await client.create_producer(TOPIC, reliable=reliable)
    consumer = await client.subscribe(TOPIC, kind=kind)
    assert await client.health(CONSUMER, consumer) == "OK"
    for number in range(10):
        await client.send(TOPIC, producer, b"%d" % number, routing_key=f"k{number}")
    stream = client.open(consumer)
    assert await stream.payloads(10) == [b"%d" % number for number in range(10)]


async def test_a_reliable_subscription_without_any_stream_gets_everything_later(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC)
    await client.subscribe(TOPIC)
    broker.clock.advance(STREAM_GRACE_SECONDS + 1)
    await client.send_many(TOPIC, producer, [b"x"] * 3)
    assert await (await client.consume(TOPIC)).offsets(3) == [0, 1, 2]


async def test_key_filters_are_fixed_by_the_first_subscribe_and_for_key_shared_alone(
    client: RawClient,
) -> None:
    producer = await client.create_producer(TOPIC)
    filtered = await client.subscribe(TOPIC, "keys", kind=KEY_SHARED, key_filters=["a*"])
    assert await client.subscribe(TOPIC, "keys", kind=KEY_SHARED, key_filters=["b*"]) == filtered
    plain = await client.subscribe(TOPIC, "plain", kind=SHARED, key_filters=["a*"])
    for key in ("a1", "b1"):
        await client.send(TOPIC, producer, routing_key=key)
    assert [m.routing_key for m in await client.open(filtered).rest()] == ["a1"]
    assert [m.routing_key for m in await client.open(plain).rest()] == ["a1", "b1"]


async def test_filters_survive_a_restart(broker: RunningBroker, client: RawClient) -> None:
    producer = await client.create_producer(TOPIC)
    consumer = await client.subscribe(TOPIC, kind=KEY_SHARED, key_filters=["a*"])
    await broker.restart()
    client = broker.client()
    for key in ("b1", "a1"):
        await client.send(TOPIC, producer, routing_key=key)
    assert [m.routing_key for m in await client.open(consumer).rest()] == ["a1"]
