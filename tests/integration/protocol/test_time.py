"""Protocol 7, item 30: start at a time, seek, delayed messages, time to live; item 29: leaving."""

import asyncio
import time

import pytest

from pydanube.wire.calls import CallRefused, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.generated import PyDanube_pb2 as own
from tests.integration.protocol.conftest import StartBroker
from tests.support.raw_client import (
    CONSUMER,
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    PRODUCER,
    SHARED,
    RawClient,
    Stream,
)
from tests.support.running_broker import RunningBroker

TOPIC = "/default/orders"
KINDS = (EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED)


async def seek(client: RawClient, position: str, topic: str = TOPIC) -> dict[str, int]:
    request = own.SeekRequest(topic=topic, subscription="s", position=position)
    reply = await client.call(services.SEEK, request)
    return {moved.topic: moved.offset for moved in reply.moved}


async def acked(client: RawClient, stream: Stream, count: int) -> list[int]:
    offsets = []
    for _ in range(count):
        message = await stream.next()
        offsets.append(message.msg_id.topic_offset)
        await client.ack(message)
    return offsets


# Start positions.


async def test_a_subscription_may_start_at_a_time(client: RawClient) -> None:
    producer = await client.create_producer(TOPIC)
    for published in (1_000, 2_000, 3_000):
        await client.send(TOPIC, producer, b"x", publish_time=published)
    for number, (position, first) in enumerate(
        [("time:0", 0), ("time:1001", 1), ("time:2000", 1), ("time:3000", 2)]
    ):
        stream = await client.consume(TOPIC, f"s{number}", start_position=position)
        assert (await stream.next()).msg_id.topic_offset == first
    stream = await client.consume(TOPIC, "late", start_position="time:3001")
    await client.send(TOPIC, producer, b"new", publish_time=1)
    assert (await stream.next()).payload == b"new"


@pytest.mark.parametrize("position", ["time:", "time:soon", "time:-1", "when", "offset:"])
async def test_a_position_that_is_none_is_refused(client: RawClient, position: str) -> None:
    await client.create_topic(TOPIC)
    with pytest.raises(CallRefused) as refused:
        await client.subscribe(TOPIC, start_position=position)
    assert refused.value.code is StatusCode.INVALID_ARGUMENT
    await client.subscribe(TOPIC)
    with pytest.raises(CallRefused) as refused:
        await seek(client, position)
    assert refused.value.code is StatusCode.INVALID_ARGUMENT


# Seek.


@pytest.mark.parametrize("kind", KINDS)
async def test_a_subscription_goes_back_and_forward_on_the_same_stream(
    broker: RunningBroker, client: RawClient, kind: int
) -> None:
    producer = await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC, kind=kind)
    for number in range(6):
        await client.send(TOPIC, producer, routing_key=f"{number}", publish_time=number)
    assert sorted(await acked(client, stream, 6)) == [0, 1, 2, 3, 4, 5]
    assert await seek(client, "offset:2") == {TOPIC: 2}
    assert sorted(await acked(client, stream, 4)) == [2, 3, 4, 5]
    assert await seek(client, "time:4") == {TOPIC: 4}
    assert sorted(await acked(client, stream, 2)) == [4, 5]
    assert await seek(client, "earliest") == {TOPIC: 0}
    assert await seek(client, "latest") == {TOPIC: 6}
    assert stream.is_open
    await stream.rest()
    await client.send(TOPIC, producer, b"new", routing_key="k")
    assert (await stream.next()).payload == b"new"


async def test_a_seek_survives_a_restart(broker: RunningBroker, client: RawClient) -> None:
    producer = await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC)
    for _ in range(5):
        await client.send(TOPIC, producer)
    await acked(client, stream, 5)
    await client.drop(stream)
    await seek(client, "offset:3")
    await broker.restart()
    again = await broker.client().consume(TOPIC)
    assert await again.offsets(2) == [3, 4]


async def test_all_partitions_are_moved_but_not_to_one_offset(client: RawClient) -> None:
    await client.create_partitioned(TOPIC, 2)
    for part in range(2):
        name = f"{TOPIC}-part-{part}"
        producer = await client.create_producer(name)
        stream = await client.consume(name)
        for _ in range(part + 1):
            await client.send(name, producer)
        await acked(client, stream, part + 1)
    assert await seek(client, "latest") == {f"{TOPIC}-part-0": 1, f"{TOPIC}-part-1": 2}
    assert await seek(client, "earliest") == {f"{TOPIC}-part-0": 0, f"{TOPIC}-part-1": 0}
    with pytest.raises(CallRefused, match="name one of them"):
        await seek(client, "offset:0")
    assert await seek(client, "offset:9", f"{TOPIC}-part-1") == {f"{TOPIC}-part-1": 2}


async def test_what_cannot_be_moved_is_refused(client: RawClient) -> None:
    for name, code in (("/default/none", "NOT_FOUND"), ("none", "INVALID_ARGUMENT")):
        with pytest.raises(CallRefused) as refused:
            await seek(client, "latest", name)
        assert refused.value.code.name == code
    await client.create_topic(TOPIC)
    with pytest.raises(CallRefused) as refused:
        await seek(client, "latest")
    assert refused.value.code is StatusCode.NOT_FOUND
    await client.create_topic("/default/flying", reliable=False)
    await client.subscribe("/default/flying")
    with pytest.raises(CallRefused) as refused:
        await seek(client, "latest", "/default/flying")
    assert refused.value.code is StatusCode.FAILED_PRECONDITION


# Delayed messages.


@pytest.mark.parametrize("kind", KINDS)
async def test_a_delayed_message_comes_when_it_is_due(
    broker: RunningBroker, client: RawClient, kind: int
) -> None:
    producer = await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC, kind=kind)
    now = broker.clock.now_ms()
    delayed = {"x-deliver-at": str(now + 3_600_000)}
    await client.send(TOPIC, producer, b"later", attributes=delayed, routing_key="a")
    await client.send(TOPIC, producer, b"now", routing_key="b")
    message = await stream.next()
    assert message.payload == b"now"
    await client.ack(message)
    assert await stream.rest() == []
    broker.clock.advance(3_601)
    message = await stream.next()
    assert message.payload == b"later"
    assert "x-delivery-attempt" not in message.attributes
    assert message.attributes["x-deliver-at"] == delayed["x-deliver-at"]


async def test_a_short_delay_is_kept_to_the_moment(client: RawClient) -> None:
    loop = asyncio.get_running_loop()
    producer = await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC)
    started = loop.time()
    await client.send(
        TOPIC,
        producer,
        attributes={"x-deliver-after": "250"},
        publish_time=int(time.time() * 1000),
    )
    await stream.next()
    assert 0.24 <= loop.time() - started < 5


async def test_a_delayed_message_survives_a_restart(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC)
    await client.subscribe(TOPIC)
    at = {"x-deliver-at": str(broker.clock.now_ms() + 600_000)}
    await client.send(TOPIC, producer, b"later", attributes=at)
    await client.send(TOPIC, producer, b"now")
    await broker.restart()
    client = broker.client()
    stream = await client.consume(TOPIC)
    await client.ack(await stream.next())
    assert await stream.rest() == []
    broker.clock.advance(601)
    assert (await stream.next()).payload == b"later"


async def test_a_time_that_means_nothing_is_refused(client: RawClient) -> None:
    producer = await client.create_producer(TOPIC)
    for name in ("x-deliver-at", "x-deliver-after", "x-ttl-ms"):
        with pytest.raises(CallRefused) as refused:
            await client.send(TOPIC, producer, attributes={name: "soon"})
        assert refused.value.code is StatusCode.INVALID_ARGUMENT
        assert name in refused.value.text


# Time to live.


async def set_ttl(client: RawClient, ttl_ms: int | None, **of: str) -> None:
    request = own.SetMessageTtlRequest(ttl_ms=ttl_ms, **of)
    await client.call(services.SET_MESSAGE_TTL, request)


async def test_what_outlived_its_time_is_not_delivered(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC)
    await client.subscribe(TOPIC)
    now = broker.clock.now_ms()
    own_time = {"x-ttl-ms": "1000"}
    await client.send(TOPIC, producer, b"short", publish_time=now, attributes=own_time)
    await client.send(TOPIC, producer, b"long", publish_time=now)
    broker.clock.advance(2)
    stream = await client.consume(TOPIC)
    message = await stream.next()
    assert message.payload == b"long"
    await client.ack(message)
    assert broker.topics.get(TOPIC).subscriptions["s"].cursor == 2


async def test_a_topic_and_a_namespace_have_a_time_to_live(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC)

    async def delivered() -> bool:
        """Tell whether a message that was published a minute ago is delivered."""
        published = broker.clock.now_ms() - 60_000
        stream = await client.consume(TOPIC, start_position="latest")
        await client.send(TOPIC, producer, b"old", publish_time=published)
        await client.send(TOPIC, producer, b"new", publish_time=broker.clock.now_ms())
        first = await stream.next()
        await client.ack(first)
        if first.payload == b"old":
            await client.ack(await stream.next())
        await stream.close()
        return first.payload == b"old"

    assert await delivered()
    await set_ttl(client, 30_000, namespace="default")
    assert not await delivered()
    await set_ttl(client, 90_000, topic=TOPIC)
    assert await delivered()
    await set_ttl(client, 0, topic=TOPIC)
    assert await delivered()
    await set_ttl(client, None, topic=TOPIC)
    assert not await delivered()
    await broker.restart()
    client = broker.client()
    producer = await client.create_producer(TOPIC)
    assert not await delivered()
    await set_ttl(client, None, namespace="default")
    assert await delivered()


async def test_stock_tools_hear_of_it_only_when_it_is_set(client: RawClient) -> None:
    async def policies() -> str:
        request = admin.NamespaceRequest(name="default")
        return (await client.call(services.GET_NAMESPACE_POLICIES, request)).policies

    assert "ttl" not in await policies()
    await set_ttl(client, 5, namespace="default")
    assert '"message_ttl_ms":5' in await policies()


async def test_a_time_to_live_needs_something_that_lives(client: RawClient) -> None:
    await client.create_topic("/default/flying", reliable=False)
    for request, code in (
        (own.SetMessageTtlRequest(ttl_ms=5), "INVALID_ARGUMENT"),
        (own.SetMessageTtlRequest(ttl_ms=5, topic="/default/none"), "NOT_FOUND"),
        (own.SetMessageTtlRequest(ttl_ms=5, namespace="none"), "NOT_FOUND"),
        (own.SetMessageTtlRequest(ttl_ms=5, topic="/default/flying"), "FAILED_PRECONDITION"),
        (own.SetMessageTtlRequest(ttl_ms=2**60, namespace="default"), "INVALID_ARGUMENT"),
    ):
        with pytest.raises(CallRefused) as refused:
            await client.call(services.SET_MESSAGE_TTL, request)
        assert refused.value.code.name == code, request


# Leaving.


async def test_a_producer_that_leaves_gives_its_place_up(start_broker: StartBroker) -> None:
    broker = await start_broker(max_producers_per_topic=1)
    client = broker.client()
    first = await client.create_producer(TOPIC, "one")
    with pytest.raises(CallRefused):
        await client.create_producer(TOPIC, "two")
    close = own.CloseProducerRequest(producer_id=first)
    await client.call(services.CLOSE_PRODUCER, close)
    await client.call(services.CLOSE_PRODUCER, close)
    await client.create_producer(TOPIC, "two")
    with pytest.raises(CallRefused) as refused:
        await client.send(TOPIC, first)
    assert refused.value.code is StatusCode.UNAVAILABLE
    assert await client.health(PRODUCER, first) == "CLOSE"


async def test_a_consumer_that_leaves_gives_back_what_it_had(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC)
    one = await client.consume(TOPIC, name="one", kind=FAILOVER)
    two = await client.consume(TOPIC, name="two", kind=FAILOVER)
    await client.send(TOPIC, producer, b"x")
    await one.next()
    await client.call(
        services.CLOSE_CONSUMER, own.CloseConsumerRequest(consumer_id=one.consumer_id)
    )
    assert (await two.next()).payload == b"x"
    assert await one.ended() is StatusCode.UNAVAILABLE
    names = [each.name for each in broker.topics.get(TOPIC).subscriptions["s"].consumers]
    assert names == ["two"]


async def test_an_exclusive_subscription_is_free_at_once(client: RawClient) -> None:
    await client.create_topic(TOPIC)
    one = await client.consume(TOPIC, name="one")
    with pytest.raises(CallRefused):
        await client.subscribe(TOPIC, name="two")
    await client.call(
        services.CLOSE_CONSUMER, own.CloseConsumerRequest(consumer_id=one.consumer_id)
    )
    await client.subscribe(TOPIC, name="two")


async def test_whoever_lost_its_name_cannot_send_its_successor_away(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC)
    old = await client.consume(TOPIC, name="one")
    other = broker.client()
    new = await other.consume(TOPIC, name="one")
    assert new.consumer_id == old.consumer_id
    close = own.CloseConsumerRequest(consumer_id=old.consumer_id)
    await client.call(services.CLOSE_CONSUMER, close)
    await client.send(TOPIC, producer, b"x")
    assert (await new.next()).payload == b"x"
    assert await other.health(CONSUMER, new.consumer_id) == "OK"


async def test_the_last_consumer_takes_its_subscription_with_it(client: RawClient) -> None:
    await client.create_topic(TOPIC)
    one = await client.consume(TOPIC, name="one", kind=SHARED)
    two = await client.consume(TOPIC, name="two", kind=SHARED)

    async def leave(consumer_id: int) -> None:
        request = own.UnsubscribeRequest(topic=TOPIC, subscription="s", consumer_id=consumer_id)
        await client.call(services.LEAVE_SUBSCRIPTION, request)

    with pytest.raises(CallRefused) as refused:
        await leave(one.consumer_id)
    assert refused.value.code is StatusCode.FAILED_PRECONDITION
    await client.drop(two)
    await leave(one.consumer_id)
    assert await client.subscriptions(TOPIC) == []
    assert await one.ended() is StatusCode.UNAVAILABLE
