"""The client against a broker: going back, leaving, and messages with a time of their own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pydanube import connect
from pydanube.client.client import Client
from pydanube.client.consumer import Consumer
from pydanube.errors import Conflict, InvalidRequest
from tests.support.running_broker import RunningBroker

TOPIC = "/default/orders"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    broker = RunningBroker(tmp_path / "data")
    await broker.start()
    yield broker
    await broker.close()


@pytest.fixture
async def client(broker: RunningBroker) -> AsyncIterator[Client]:
    async with connect(
        f"http://127.0.0.1:{broker.server.client_port}", clock=broker.clock
    ) as client:
        yield client


async def taken(consumer: Consumer, count: int) -> list[bytes]:
    payloads = []
    for _ in range(count):
        message = await consumer.receive()
        payloads.append(message.payload)
        await consumer.ack(message)
    return payloads


async def test_a_consumer_goes_back_and_reads_again(client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        consumer = await client.consumer(TOPIC, "billing", subscription_type="Exclusive")
        for number in range(20):
            await producer.send(b"%d" % number)
        assert await taken(consumer, 5) == [b"%d" % number for number in range(5)]
        await consumer.seek("offset:2")
        assert await taken(consumer, 18) == [b"%d" % number for number in range(2, 20)]
        await consumer.seek("latest")
        await producer.send(b"new")
        assert await taken(consumer, 1) == [b"new"]
        with pytest.raises(InvalidRequest):
            await consumer.seek("yesterday")
        await producer.send(b"after the refusal")
        assert await taken(consumer, 1) == [b"after the refusal"]


async def test_partitions_are_moved_together(client: Client) -> None:
    async with client.producer(TOPIC, partitions=2) as producer:
        consumer = await client.consumer(TOPIC, "billing")
        for number in range(4):
            await producer.send(b"%d" % number)
        first = sorted(await taken(consumer, 4))
        await consumer.seek("earliest")
        assert sorted(await taken(consumer, 4)) == first
        with pytest.raises(InvalidRequest, match="partition"):
            await consumer.seek("offset:1")


async def test_a_message_is_sent_to_be_delivered_later_or_not_at_all(
    client: Client, broker: RunningBroker
) -> None:
    async with client.producer(TOPIC) as producer:
        consumer = await client.consumer(TOPIC, "billing")
        now = broker.clock.now_ms()
        await producer.send(b"last", deliver_at_ms=now + 60_000)
        await producer.send(b"second", deliver_after_ms=30_000, attributes={"colour": "red"})
        await producer.send(b"never", deliver_after_ms=30_000, ttl_ms=1_000)
        await producer.send(b"first")
        assert await taken(consumer, 1) == [b"first"]
        broker.clock.advance(31)
        second = await consumer.receive()
        assert second.payload == b"second"
        assert second.attributes["colour"] == "red"
        await consumer.ack(second)
        broker.clock.advance(30)
        assert await taken(consumer, 1) == [b"last"]


async def test_made_up_names_are_given_up_and_given_ones_are_kept(
    client: Client, broker: RunningBroker
) -> None:
    await (await client.producer(TOPIC)).close()
    await (await client.producer(TOPIC, name="till")).close()
    topic = broker.topics.get(TOPIC)
    assert list(topic.producers) == ["till"]
    await (await client.consumer(TOPIC, "billing")).close()
    await (await client.consumer(TOPIC, "billing", name="worker")).close()
    assert [each.name for each in topic.subscriptions["billing"].consumers] == ["worker"]


async def test_the_last_consumer_deletes_its_subscription(
    client: Client, broker: RunningBroker
) -> None:
    await client.producer(TOPIC)
    one = await client.consumer(TOPIC, "billing")
    two = await client.consumer(TOPIC, "billing")
    with pytest.raises(Conflict, match="active consumers"):
        await one.unsubscribe()
    await two.unsubscribe()
    assert broker.topics.get(TOPIC).subscriptions == {}
