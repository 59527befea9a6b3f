"""Protocol 3.6 and 3.15: streams, stable ids, fencing by connection."""

import asyncio

import grpc
import pytest

from pydanube.wire.calls import CallRefused, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from tests.integration.protocol.conftest import BOTH_ENGINES
from tests.support.raw_client import CONSUMER, EXCLUSIVE, PRODUCER, SHARED, RawClient
from tests.support.running_broker import RunningBroker

pytestmark = BOTH_ENGINES

TOPIC = "/default/orders"
BOTH = pytest.mark.parametrize("reliable", [True, False], ids=["reliable", "best-effort"])


def active_consumers(broker: RunningBroker) -> int:
    return broker.topics.get(TOPIC).active_consumers


async def test_headers_come_at_once_on_an_idle_stream(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_producer(TOPIC)
    consumer = await client.subscribe(TOPIC)
    request = api.ReceiveRequest(consumer_id=consumer).SerializeToString()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{broker.server.client_port}") as channel:
        call = channel.unary_stream(services.RECEIVE_MESSAGES.path)(request)
        await asyncio.wait_for(call.initial_metadata(), 5)
        call.cancel()


async def test_an_unknown_id_is_not_found_without_headers_and_after_a_pause(
    broker: RunningBroker, client: RawClient
) -> None:
    refused = client.open(12345)
    # Whatever is asked meanwhile is answered first.
    for _ in range(20):
        assert await client.partitions(TOPIC) == []
    assert refused.is_open
    broker.clock.advance(1.0)
    assert await refused.ended() is StatusCode.NOT_FOUND
    async with grpc.aio.insecure_channel(f"127.0.0.1:{broker.server.client_port}") as channel:
        call = channel.unary_stream(services.RECEIVE_MESSAGES.path)(b"")
        headers = asyncio.create_task(call.initial_metadata())
        await client.partitions(TOPIC)
        await asyncio.sleep(0.1)
        assert not headers.done(), "an error after headers would be read as a broken stream"
        broker.clock.advance(1.0)
        assert await call.code() is grpc.StatusCode.NOT_FOUND
        await headers


@BOTH
async def test_a_second_stream_of_an_id_ends_the_first_cleanly_and_goes_on(
    client: RawClient, reliable: bool
) -> None:
    producer = await client.create_producer(TOPIC, reliable=reliable)
    first = await client.consume(TOPIC)
    await client.send(TOPIC, producer, b"0")
    received = await first.take(1)
    if reliable:
        await client.ack_all(received)
    second = client.open(first.consumer_id)
    assert await first.ended() is StatusCode.OK
    await client.send(TOPIC, producer, b"1")
    assert await second.payloads(1) == [b"1"]
    assert await second.rest() == []


async def test_a_stream_that_is_taken_over_again_and_again_loses_nothing(client: RawClient) -> None:
    producer = await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC)
    for number in range(20):
        await client.send(TOPIC, producer, b"%d" % number)
        stream = client.open(stream.consumer_id)
        message = await stream.next()
        assert message.msg_id.topic_offset == number
        await client.ack(message)


async def test_a_healthy_stream_stays_open(broker: RunningBroker, client: RawClient) -> None:
    producer = await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC)
    for _ in range(10):
        broker.clock.advance(3600)
        await asyncio.sleep(0)
        assert await client.health(CONSUMER, stream.consumer_id) == "OK"
    await client.send(TOPIC, producer, b"still here")
    assert await stream.payloads(1) == [b"still here"]


# Stable ids.


@BOTH
async def test_ids_are_accepted_after_a_restart_by_every_call(
    broker: RunningBroker, client: RawClient, reliable: bool
) -> None:
    producer = await client.create_producer(TOPIC, reliable=reliable)
    consumer = await client.subscribe(TOPIC)
    await broker.restart()
    client = broker.client()
    assert await client.health(PRODUCER, producer) == "OK"
    assert await client.health(CONSUMER, consumer) == "OK"
    stream = client.open(consumer)
    if not reliable:
        # Nothing is kept for a consumer that is not there yet.
        await broker.until(lambda: active_consumers(broker) == 1)
    await client.send(TOPIC, producer, b"after")
    assert await stream.payloads(1) == [b"after"]
    assert await client.subscribe(TOPIC) == consumer
    assert await client.create_producer(TOPIC, reliable=reliable) == producer


async def test_a_consumer_deleted_with_its_topic_has_its_id_again_on_the_next(
    client: RawClient,
) -> None:
    await client.create_producer(TOPIC)
    consumer = await client.subscribe(TOPIC)
    await client.delete_topic(TOPIC)
    await client.create_producer(TOPIC)
    assert await client.subscribe(TOPIC) == consumer


# Fencing by connection.


@BOTH
async def test_the_connection_that_lost_its_name_is_held_while_the_other_lives(
    broker: RunningBroker, client: RawClient, reliable: bool
) -> None:
    producer = await client.create_producer(TOPIC, reliable=reliable)
    first = await client.consume(TOPIC)
    newer = broker.client()
    second = await newer.consume(TOPIC)
    assert await first.ended() is StatusCode.OK
    # As a stock client would, the loser opens its stream again at once.
    held = client.open(first.consumer_id)
    for number in range(3):
        await client.send(TOPIC, producer, b"%d" % number)
    assert await second.payloads(3) == [b"0", b"1", b"2"]
    broker.clock.advance(5)
    assert await held.rest() == []
    assert held.is_open
    assert second.is_open
    await newer.ack_all(await second.rest())
    # When the winner goes, the loser may have the name again.
    await newer.close()
    await broker.until(lambda: active_consumers(broker) == 0)
    broker.clock.advance(1)
    await broker.until(lambda: active_consumers(broker) == 1)
    await client.send(TOPIC, producer, b"3")
    assert (await held.rest())[-1].payload == b"3"


async def test_a_connection_that_takes_the_stream_alone_holds_the_older_one_too(
    broker: RunningBroker, client: RawClient
) -> None:
    """After a restart both of two clients of one name come back with ReceiveMessages alone."""
    await client.create_producer(TOPIC)
    first = await client.consume(TOPIC)
    newer = broker.client()
    second = newer.open(first.consumer_id)
    assert await first.ended() is StatusCode.OK
    held = client.open(first.consumer_id)
    broker.clock.advance(5)
    await asyncio.sleep(0.1)
    assert held.is_open
    assert second.is_open, "the two would take the stream from each other for ever"


async def test_the_older_connection_may_subscribe_and_have_its_name_again(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC)
    await client.consume(TOPIC)
    newer = broker.client()
    second = await newer.consume(TOPIC)
    await client.send(TOPIC, producer, b"x")
    await newer.ack_all(await second.take(1))
    third = await client.consume(TOPIC)
    assert await second.ended() is StatusCode.OK
    await client.send(TOPIC, producer, b"y")
    assert await third.payloads(1) == [b"y"]


async def test_a_stopping_broker_ends_held_streams_too(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_producer(TOPIC)
    first = await client.consume(TOPIC)
    await broker.client().consume(TOPIC)
    await first.ended()
    held = client.open(first.consumer_id)
    await client.partitions(TOPIC)
    stopping = asyncio.create_task(broker.stop())
    async with asyncio.timeout(4):
        while held.is_open:
            broker.clock.advance(1)
            await asyncio.sleep(0.02)
    assert await held.ended() is StatusCode.UNAVAILABLE
    await stopping


async def test_a_stopping_broker_ends_streams_as_unavailable(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_producer(TOPIC)
    streams = [await client.consume(TOPIC, f"s{kind}", kind=kind) for kind in (EXCLUSIVE, SHARED)]
    await broker.stop()
    for stream in streams:
        assert await stream.ended() is StatusCode.UNAVAILABLE


async def test_a_request_without_an_id_is_an_unknown_id(
    broker: RunningBroker, client: RawClient
) -> None:
    stream = client.channel.stream(services.RECEIVE_MESSAGES.path, b"")
    asking = asyncio.create_task(anext(stream))
    await client.partitions(TOPIC)
    await asyncio.sleep(0.05)
    broker.clock.advance(1)
    with pytest.raises(CallRefused, match="NOT_FOUND"):
        await asking


async def test_a_client_that_pings_all_the_time_is_not_cut_off(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC)
    consumer = await client.subscribe(TOPIC)
    options = [
        ("grpc.keepalive_time_ms", 50),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    target = f"127.0.0.1:{broker.server.client_port}"
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        request = api.ReceiveRequest(consumer_id=consumer).SerializeToString()
        call = channel.unary_stream(services.RECEIVE_MESSAGES.path)(request)
        await call.initial_metadata()
        await asyncio.sleep(1)  # Twenty pings on an idle connection.
        await client.send(TOPIC, producer, b"still here")
        reply = await asyncio.wait_for(call.read(), 5)
        assert api.StreamMessage.FromString(reply).payload == b"still here"
        call.cancel()


async def test_headers_of_proxies_and_tokens_are_ignored(client: RawClient) -> None:
    await client.create_producer(TOPIC)
    headers = {"x-danube-broker-url": "http://elsewhere:1/", "authorization": "Bearer nobody"}
    request = api.TopicLookupRequest(topic=TOPIC).SerializeToString()
    await client.channel.unary(services.TOPIC_LOOKUP.path, request, metadata=headers)
