"""Protocol 4.2 to 4.5: windows, cursors, and who gets what on reliable topics."""

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from tests.integration.protocol.conftest import StartBroker
from tests.support.raw_client import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, RawClient, Stream
from tests.support.running_broker import RunningBroker

TOPIC = "/default/orders"
WINDOW_DEFAULT = 10
ABSENCE_SECONDS = 3.0
ALL_KINDS = pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])


@pytest.fixture
async def producer(client: RawClient) -> int:
    return await client.create_producer(TOPIC)


async def publish(client: RawClient, producer: int, keys: list[str]) -> None:
    for key in keys:
        await client.send(TOPIC, producer, key.encode(), routing_key=key)


def numbers(count: int) -> list[str]:
    return [f"{number}" for number in range(count)]


def offsets(messages: list[api.StreamMessage]) -> list[int]:
    return [message.msg_id.topic_offset for message in messages]


def attempt(message: api.StreamMessage) -> int:
    return int(message.attributes.get("x-delivery-attempt", "1"))


# The window.


@ALL_KINDS
async def test_no_more_than_the_window_is_in_flight_and_an_ack_lets_the_next_follow(
    client: RawClient, producer: int, kind: int
) -> None:
    stream = await client.consume(TOPIC, kind=kind)
    await publish(client, producer, numbers(15))
    first = await stream.take(WINDOW_DEFAULT)
    assert await stream.rest() == []
    await client.ack(first[7])
    assert await stream.offsets(1) == [10]
    await client.ack(first[0])
    assert await stream.offsets(1) == [11]
    assert await stream.rest() == []


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_the_window_belongs_to_the_subscription_not_to_the_consumer(
    client: RawClient, producer: int, kind: int
) -> None:
    streams = [await client.consume(TOPIC, "s", name, kind) for name in ("a", "b", "c")]
    await publish(client, producer, numbers(40))
    received = [await stream.rest() for stream in streams]
    assert sum(map(len, received)) == WINDOW_DEFAULT


@ALL_KINDS
async def test_the_window_can_be_set_before_the_subscription_exists_and_changed_while_it_lives(
    client: RawClient, producer: int, kind: int
) -> None:
    await client.set_window(TOPIC, 2)
    stream = await client.consume(TOPIC, kind=kind)
    await publish(client, producer, numbers(20))
    received = await stream.rest()
    assert len(received) == 2
    await client.set_window(TOPIC, 5)
    received += await stream.rest()
    assert len(received) == 5
    await client.set_window(TOPIC, 1)
    for message in received[:4]:
        await client.ack(message)
    assert await stream.rest() == [], "one is still in flight"
    await client.ack(received[4])
    assert len(await stream.rest()) == 1


async def test_the_window_survives_a_restart(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    await client.set_window(TOPIC, 3)
    await client.subscribe(TOPIC)
    await publish(client, producer, numbers(8))
    await broker.restart()
    assert len(await (await broker.client().consume(TOPIC)).rest()) == 3


@ALL_KINDS
async def test_a_backlog_drains_completely_and_each_message_comes_once(
    client: RawClient, producer: int, kind: int
) -> None:
    consumer = await client.subscribe(TOPIC, kind=kind)
    count = 300
    await asyncio.gather(
        *(client.send(TOPIC, producer, b"%d" % n, routing_key=f"k{n % 7}") for n in range(count))
    )
    stream = client.open(consumer)
    seen: list[int] = []
    while len(seen) < count:
        message = await stream.next()
        seen.append(message.msg_id.topic_offset)
        await client.ack(message)
    assert sorted(seen) == list(range(count))
    if kind != KEY_SHARED:
        assert seen == sorted(seen)
    assert await stream.rest() == []


async def test_a_subscription_that_fell_behind_the_cache_is_served_from_the_journal(
    tmp_path: Path,
) -> None:
    broker = RunningBroker(tmp_path / "data", {"storage.tail_cache_bytes_max": 20_000})
    await broker.start()
    try:
        client = broker.client()
        producer = await client.create_producer(TOPIC)
        consumers = [
            await client.subscribe(TOPIC, f"s{kind}", kind=kind) for kind in (EXCLUSIVE, KEY_SHARED)
        ]
        for number in range(100):
            await client.send(TOPIC, producer, b"%d" % number + bytes(1000))
        for consumer, subscription in zip(consumers, ("s0", "s3"), strict=True):
            stream = client.open(consumer)
            for number in range(100):
                message = await stream.next()
                assert message.payload.rstrip(b"\0") == b"%d" % number
                await client.ack(message, subscription)
    finally:
        await broker.close()


# Exclusive and Failover.


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
async def test_after_every_reconnect_the_oldest_unacked_comes_first_and_nothing_acked_again(
    client: RawClient, producer: int, kind: int
) -> None:
    stream = await client.consume(TOPIC, kind=kind)
    await publish(client, producer, numbers(30))
    acked: set[int] = set()
    for round_number in range(5):
        received = await stream.take(WINDOW_DEFAULT)
        got = offsets(received)
        assert got == sorted(set(got)), "strictly increasing"
        assert not acked & set(got)
        assert got[0] == min(set(range(30)) - acked)
        for message in received[1::4]:
            await client.ack(message)
            acked.add(message.msg_id.topic_offset)
        await client.drop(stream)
        if round_number % 2:
            stream = client.open(await client.subscribe(TOPIC, kind=kind))
        else:
            stream = client.open(stream.consumer_id)


@ALL_KINDS
async def test_attempts_count_up_over_reconnects_and_restarts(
    broker: RunningBroker, client: RawClient, producer: int, kind: int
) -> None:
    stream = await client.consume(TOPIC, kind=kind)
    await publish(client, producer, ["only"])
    for expected in (1, 2, 3):
        assert attempt(await stream.next()) == expected
        await client.drop(stream)
        stream = client.open(stream.consumer_id)
    assert attempt(await stream.next()) == 4
    await broker.restart()
    client = broker.client()
    stream = client.open(stream.consumer_id)
    message = await stream.next()
    assert attempt(message) == 5
    await client.ack(message)


async def test_nothing_is_sent_while_the_exclusive_consumer_is_away(
    client: RawClient, producer: int
) -> None:
    stream = await client.consume(TOPIC)
    await publish(client, producer, numbers(2))
    await client.ack((await stream.take(2))[0])
    await client.drop(stream)
    await publish(client, producer, numbers(2))
    assert await client.open(stream.consumer_id).offsets(3) == [1, 2, 3]


async def test_failover_promotes_in_join_order_and_resends_the_unacked_window(
    client: RawClient, producer: int
) -> None:
    streams = [await client.consume(TOPIC, "s", name, FAILOVER) for name in ("a", "b", "c")]
    await publish(client, producer, numbers(15))
    received = await streams[0].take(WINDOW_DEFAULT)
    await client.ack(received[0])
    await client.ack(received[2])
    assert await streams[0].offsets(2) == [10, 11]
    assert [await each.rest() for each in streams[1:]] == [[], []], "stand-bys get nothing"
    await client.drop(streams[0])
    assert await streams[1].offsets(10) == [1, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    back = client.open(streams[0].consumer_id)
    await back.opened()
    await client.drop(streams[1])
    assert await streams[2].offsets(10) == [1, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    await client.drop(streams[2])
    assert await back.offsets(10) == [1, 3, 4, 5, 6, 7, 8, 9, 10, 11], "it queued at the end"


# Shared.


async def test_shared_consumers_take_turns(client: RawClient, producer: int) -> None:
    await client.set_window(TOPIC, 100)
    streams = [await client.consume(TOPIC, "s", name, SHARED) for name in ("a", "b", "c")]
    await publish(client, producer, numbers(36))
    received = [await stream.offsets(12) for stream in streams]
    assert sorted(offset for each in received for offset in each) == list(range(36))
    assert all(each == sorted(each) for each in received)


async def test_only_the_dead_consumers_messages_are_delivered_again(
    client: RawClient, producer: int
) -> None:
    streams = [await client.consume(TOPIC, "s", name, SHARED) for name in ("a", "b")]
    await publish(client, producer, numbers(10))
    mine, others = await streams[0].take(5), await streams[1].take(5)
    await client.ack(others[0])
    await client.drop(streams[1])
    again = await streams[0].take(4)
    assert offsets(again) == offsets(others[1:])
    assert [attempt(message) for message in again] == [2] * 4
    assert await streams[0].rest() == [], "it keeps its own and sees each exactly once"
    await client.ack_all([*mine, *again])
    await publish(client, producer, numbers(1))
    assert await streams[0].offsets(1) == [10]


async def test_without_a_living_consumer_messages_wait(client: RawClient, producer: int) -> None:
    stream = await client.consume(TOPIC, kind=SHARED)
    await publish(client, producer, numbers(3))
    await stream.take(3)
    await client.drop(stream)
    await publish(client, producer, numbers(2))
    assert await (await client.consume(TOPIC, "s", "new", SHARED)).offsets(5) == [0, 1, 2, 3, 4]


async def test_a_consumer_that_does_not_read_holds_up_nobody(
    client: RawClient, producer: int
) -> None:
    await client.set_window(TOPIC, 10_000)
    await client.subscribe(TOPIC, "s", "silent", SHARED)
    reader = await client.consume(TOPIC, "s", "reading", SHARED)
    for _ in range(0, 2600, 100):
        await asyncio.gather(*(client.send(TOPIC, producer) for _ in range(100)))
    received = await reader.take(1600)
    assert len(set(offsets(received))) == 1600, "the silent one has room for a thousand, not more"


# Key-Shared.


async def keyed(client: RawClient, names: tuple[str, ...] = ("a", "b")) -> list[Stream]:
    return [await client.consume(TOPIC, "s", name, KEY_SHARED) for name in names]


async def test_one_message_of_a_key_is_in_flight_and_its_ack_releases_the_next(
    client: RawClient, producer: int
) -> None:
    stream = (await keyed(client, ("a",)))[0]
    await publish(client, producer, ["x", "x", "y", "x", "y"])
    received = await stream.rest()
    assert offsets(received) == [0, 2]
    await client.ack(received[0])
    following = await stream.rest()
    assert offsets(following) == [1]
    await client.ack(following[0])
    await client.ack(received[1])
    assert sorted(offsets(await stream.rest())) == [3, 4]


@pytest.mark.parametrize("key_count", [4, 7, 10])
async def test_each_key_has_one_consumer_and_both_consumers_are_used(
    broker: RunningBroker, client: RawClient, producer: int, key_count: int
) -> None:
    streams = await keyed(client)
    keys = [f"key-{number % key_count}" for number in range(key_count * 5)]
    await publish(client, producer, keys)
    owners: dict[str, set[int]] = {}
    order: dict[str, list[int]] = {}

    async def drain(number: int) -> None:
        while True:
            message = await streams[number].next()
            owners.setdefault(message.routing_key, set()).add(number)
            order.setdefault(message.routing_key, []).append(message.msg_id.topic_offset)
            await client.ack(message)

    draining = [asyncio.create_task(drain(number)) for number in range(2)]
    subscription = broker.topics.get(TOPIC).subscriptions["s"]
    await broker.until(lambda: subscription.cursor == len(keys))
    for task in draining:
        task.cancel()
    assert all(len(owner) == 1 for owner in owners.values())
    assert set().union(*owners.values()) == {0, 1}
    assert all(seen == sorted(seen) and len(seen) == 5 for seen in order.values())


async def test_without_a_routing_key_the_producers_name_is_the_key(
    client: RawClient, producer: int
) -> None:
    stream = (await keyed(client, ("a",)))[0]
    for name in ("p1", "p1", "p2"):
        await client.send(TOPIC, producer, producer_name=name)
    assert offsets(await stream.rest()) == [0, 2]


async def test_a_message_that_no_filter_matches_is_skipped_and_the_cursor_moves_on(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    stream = await client.consume(TOPIC, kind=KEY_SHARED, key_filters=["eu-?", "*-vip"])
    keys = ["us-1", "eu-1", "eu-10", "x-vip", "-vip", "eu-"]
    await publish(client, producer, keys)
    received = await stream.take(3)
    assert [message.routing_key for message in received] == ["eu-1", "x-vip", "-vip"]
    await client.ack_all(received)
    await broker.until(lambda: broker.topics.get(TOPIC).subscriptions["s"].cursor == 6)


async def test_a_dead_consumers_keys_go_to_others_after_a_pause_with_all_that_was_in_flight(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    streams = await keyed(client)
    keys = [f"key-{number}" for number in range(8)]
    await publish(client, producer, keys)
    received = [await stream.rest() for stream in streams]
    assert all(received)
    await client.drop(streams[1])
    assert await streams[0].rest() == [], "it may be back in a moment"
    broker.clock.advance(ABSENCE_SECONDS + 0.1)
    again = await streams[0].take(len(received[1]))
    assert sorted(offsets(again)) == sorted(offsets(received[1]))
    await client.ack_all([*received[0], *again])
    await client.consume(TOPIC, "s", "b", KEY_SHARED)
    await broker.until(lambda: broker.topics.get(TOPIC).subscriptions["s"].cursor == 8)


async def test_a_consumer_that_reconnects_gets_its_in_flight_messages_at_once(
    client: RawClient, producer: int
) -> None:
    streams = await keyed(client)
    await publish(client, producer, [f"key-{number}" for number in range(8)])
    received = [await stream.rest() for stream in streams]
    await client.drop(streams[0])
    back = client.open(streams[0].consumer_id)
    assert await back.offsets(len(received[0])) == offsets(received[0])
    assert await streams[1].rest() == []


async def test_a_consumer_that_subscribes_again_is_back_on_the_ring(
    broker: RunningBroker, client: RawClient, producer: int
) -> None:
    streams = await keyed(client)
    await client.drop(streams[1])
    broker.clock.advance(ABSENCE_SECONDS + 0.1)
    await client.partitions(TOPIC)
    back = await client.consume(TOPIC, "s", "b", KEY_SHARED)
    assert back.consumer_id == streams[1].consumer_id
    await publish(client, producer, [f"new-{number}" for number in range(10)])
    shares = Counter({0: len(await streams[0].rest()), 1: len(await back.rest())})
    assert shares[0] + shares[1] == 10
    assert min(shares.values()) >= 3


async def test_a_blocked_key_stalls_only_itself(client: RawClient, producer: int) -> None:
    await client.set_failure_policy(TOPIC, max_redelivery_count=0)
    stream = (await keyed(client, ("a",)))[0]
    await publish(client, producer, ["bad", "bad", "good", "good"])
    received = await stream.take(2)
    await client.nack(received[0])
    await client.ack(received[1])
    following = await stream.next()
    assert following.msg_id.topic_offset == 3
    await client.ack(following)
    assert await stream.rest() == []


# The dispatch rate.


@pytest.mark.parametrize("kind", [EXCLUSIVE, KEY_SHARED])
async def test_the_dispatch_rate_delays_messages_and_drops_none(
    start_broker: StartBroker, kind: int
) -> None:
    client = (await start_broker(max_subscription_dispatch_rate=50)).client()
    producer = await client.create_producer(TOPIC)
    await client.set_window(TOPIC, 1000)
    consumer = await client.subscribe(TOPIC, kind=kind)
    started = time.monotonic()
    await publish(client, producer, numbers(80))
    assert await client.open(consumer).offsets(80) == list(range(80))
    assert time.monotonic() - started >= 0.4
