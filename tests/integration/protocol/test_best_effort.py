"""Protocol 4.1: topics whose messages are handed over at once or never."""

import asyncio
import time

import grpc
import pytest

from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from tests.support.raw_client import (
    CONSUMER,
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    RawClient,
    Stream,
)
from tests.support.running_broker import RunningBroker

TOPIC = "/default/news"
ALL_KINDS = pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])


@pytest.fixture
async def producer(client: RawClient) -> int:
    return await client.create_producer(TOPIC, reliable=False)


async def consumers(client: RawClient, count: int, kind: int) -> list[Stream]:
    return [await client.consume(TOPIC, "s", f"c{number}", kind) for number in range(count)]


async def test_publishing_succeeds_without_anybody_to_hear_it(
    client: RawClient, producer: int
) -> None:
    await client.send(TOPIC, producer, b"no subscription")
    stream = await client.consume(TOPIC)
    await client.drop(stream)
    await client.send(TOPIC, producer, b"no living consumer")
    assert await client.open(stream.consumer_id).rest() == []


async def test_a_subscription_sees_only_what_is_published_after_subscribe(
    client: RawClient, producer: int
) -> None:
    await client.send(TOPIC, producer, b"before")
    stream = await client.consume(TOPIC)
    await client.send(TOPIC, producer, b"after")
    assert await stream.payloads(1) == [b"after"]


@ALL_KINDS
async def test_a_burst_of_60_arrives_complete_and_in_order(
    client: RawClient, producer: int, kind: int
) -> None:
    stream = await client.consume(TOPIC, kind=kind)
    sent = [b"%d" % number for number in range(60)]
    await asyncio.gather(*(client.send(TOPIC, producer, payload) for payload in sent))
    received = await stream.payloads(60)
    assert sorted(received, key=int) == sent
    for number in range(60):
        await client.send(TOPIC, producer, b"%d" % number)
    assert await stream.payloads(60) == sent


@ALL_KINDS
async def test_a_burst_waits_for_the_stream_of_a_consumer_that_has_just_subscribed(
    client: RawClient, producer: int, kind: int
) -> None:
    consumer = await client.subscribe(TOPIC, kind=kind)
    for number in range(500):
        await client.send(TOPIC, producer, b"%d" % number)
    assert await client.open(consumer).payloads(500) == [b"%d" % n for n in range(500)]


async def test_36_messages_over_3_shared_consumers_go_strictly_in_turn(
    client: RawClient, producer: int
) -> None:
    streams = await consumers(client, 3, SHARED)
    for number in range(36):
        await client.send(TOPIC, producer, b"%d" % number)
    for turn, stream in enumerate(streams):
        assert await stream.payloads(12) == [b"%d" % n for n in range(turn, 36, 3)]


async def test_a_shared_consumer_that_is_gone_is_passed_over(
    client: RawClient, producer: int
) -> None:
    streams = await consumers(client, 3, SHARED)
    await client.drop(streams[1])
    for number in range(20):
        await client.send(TOPIC, producer, b"%d" % number)
    received = [await streams[0].payloads(10), await streams[2].payloads(10)]
    assert sorted(received[0] + received[1], key=int) == [b"%d" % n for n in range(20)]


async def test_failover_promotes_the_next_connected_consumer(
    client: RawClient, producer: int
) -> None:
    streams = await consumers(client, 2, FAILOVER)
    await client.send(TOPIC, producer, b"0")
    assert await streams[0].payloads(1) == [b"0"]
    await client.drop(streams[0])
    await client.send(TOPIC, producer, b"1")
    assert await streams[1].payloads(1) == [b"1"]
    back = client.open(streams[0].consumer_id)
    await client.send(TOPIC, producer, b"2")
    assert await streams[1].payloads(1) == [b"2"], "who returns queues at the end"
    assert await back.rest() == []


async def test_a_key_goes_to_one_consumer_and_unwanted_keys_to_nobody(
    client: RawClient, producer: int
) -> None:
    streams = [
        await client.consume(TOPIC, "s", name, KEY_SHARED, key_filters=filters)
        for name, filters in (("a", ["eu-*"]), ("b", ["us-?"]))
    ]
    for key in ("eu-1", "us-1", "asia-1", "us-10", "eu-"):
        await client.send(TOPIC, producer, routing_key=key)
    assert [m.routing_key for m in await streams[0].rest()] == ["eu-1", "eu-"]
    assert [m.routing_key for m in await streams[1].rest()] == ["us-1"]


async def test_without_a_routing_key_the_producers_name_decides(
    client: RawClient, producer: int
) -> None:
    streams = await consumers(client, 2, KEY_SHARED)
    for number in range(40):
        await client.send(TOPIC, producer, producer_name=f"p{number % 4}")
    received = [{m.producer_name for m in await stream.rest()} for stream in streams]
    assert received[0] | received[1] == {"p0", "p1", "p2", "p3"}
    assert not received[0] & received[1]


async def test_what_does_not_fit_is_dropped_for_that_consumer_alone(
    client: RawClient, producer: int
) -> None:
    full = await client.subscribe(TOPIC, "slow", "c")
    reader = await client.consume(TOPIC, "fast", "c")
    for number in range(0, 1200, 100):
        await asyncio.gather(*(client.send(TOPIC, producer) for _ in range(number, number + 100)))
        await reader.take(100)
    assert len(await client.open(full).rest()) == 1000


async def test_a_consumer_keeps_its_entry_and_id_when_its_stream_drops(
    client: RawClient, producer: int
) -> None:
    stream = await client.consume(TOPIC)
    await client.drop(stream)
    assert await client.subscribe(TOPIC) == stream.consumer_id


async def test_what_waits_for_a_consumer_survives_its_disconnect(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    consumer = await client.subscribe(TOPIC)
    for number in range(100):
        await client.send(TOPIC, producer, b"%d" % number + bytes(100_000))
    address = f"127.0.0.1:{broker.server.client_port}"
    fixed_window = [("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(address, options=fixed_window) as channel:
        request = api.ReceiveRequest(consumer_id=consumer).SerializeToString()
        unread = channel.unary_stream(services.RECEIVE_MESSAGES.path)(request)
        await unread.initial_metadata()
        await asyncio.sleep(0.2)  # It takes what the connection's window allows.
    async with asyncio.timeout(10):
        while await client.health(CONSUMER, consumer) != "CLOSE":
            await asyncio.sleep(0.01)
    received = [int(m.payload.rstrip(b"\0")) for m in await client.open(consumer).rest()]
    assert received == list(range(100 - len(received), 100)), "all that was not under way"
    assert len(received) >= 20, len(received)


# Idle subscriptions.


async def test_a_subscription_nobody_uses_for_a_minute_is_deleted(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    stream = await client.consume(TOPIC, "idle")
    await client.consume(TOPIC, "used")
    await client.drop(stream)
    broker.clock.advance(31)
    await asyncio.sleep(0.1)  # Time enough to look around, and to delete too early.
    assert await client.subscriptions(TOPIC) == ["idle", "used"]
    async with asyncio.timeout(10):
        while await client.subscriptions(TOPIC) != ["used"]:
            broker.clock.advance(31)  # The broker looks around every half minute.
            await asyncio.sleep(0.02)
    assert "idle" not in "".join(broker.metadata())


async def test_a_subscription_that_is_used_again_in_time_stays(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    stream = await client.consume(TOPIC, "idle")
    await client.drop(stream)
    broker.clock.advance(55)
    await client.consume(TOPIC, "idle")
    for _ in range(4):
        broker.clock.advance(31)
        await client.partitions(TOPIC)
    assert await client.subscriptions(TOPIC) == ["idle"]


async def test_an_idle_reliable_subscription_is_never_deleted(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer("/default/kept")
    stream = await client.consume("/default/kept")
    await client.drop(stream)
    for _ in range(10):
        broker.clock.advance(3600 * 24)
        await client.partitions(TOPIC)
    producer = await client.create_producer("/default/kept")
    await client.send("/default/kept", producer)
    assert await client.subscriptions("/default/kept") == ["s"]
    assert await (await client.consume("/default/kept")).offsets(1) == [0]


async def test_a_publish_never_waits_for_consumers(client: RawClient, producer: int) -> None:
    await client.subscribe(TOPIC)
    started = time.monotonic()
    for _ in range(100):
        await client.send(TOPIC, producer, bytes(1000))
    assert time.monotonic() - started < 5
