"""The Python client against a real broker process that is killed and started again."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import pydanube
from pydanube.client.brokers import OpenChannel
from pydanube.wire.grpcio.channel import GrpcioChannel
from pydanube.wire.http2.channel import Http2Channel
from tests.support.broker_process import BrokerProcess

TOPIC = "/default/orders"


@pytest.fixture(params=["grpcio", "http2"])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def open_channel(engine: str) -> OpenChannel:
    return GrpcioChannel if engine == "grpcio" else Http2Channel


@pytest.fixture
def broker(tmp_path: Path, engine: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", engine=engine) as broker:
        yield broker


async def test_nothing_acknowledged_is_lost_when_the_broker_is_killed_under_load(
    broker: BrokerProcess, open_channel: OpenChannel
) -> None:
    async with pydanube.connect(broker.url, open_channel=open_channel) as client:
        producer = await client.producer(TOPIC, name="till")
        consumer = await client.consumer(TOPIC, "billing", name="worker")
        acknowledged: set[int] = set()
        received: set[int] = set()

        async def publish(first: int) -> None:
            for number in range(first, 400, 10):
                await producer.send(b"%d" % number)
                acknowledged.add(number)

        async def receive() -> None:
            async for message in consumer:
                await consumer.ack(message)
                received.add(int(message.payload))
                if len(received) == 400:
                    return

        async with asyncio.timeout(90), asyncio.TaskGroup() as group:
            group.create_task(receive())
            for first in range(10):
                group.create_task(publish(first))
            for _ in range(2):
                reached = min(len(acknowledged) + 50, 300)
                while len(acknowledged) < reached:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
        assert acknowledged == received == set(range(400))


async def test_two_consumers_of_one_name_share_no_message_and_leave_the_broker_in_peace(
    broker: BrokerProcess, open_channel: OpenChannel
) -> None:
    async with (
        pydanube.connect(broker.url, open_channel=open_channel) as one,
        pydanube.connect(broker.url, open_channel=open_channel) as other,
    ):
        producer = await one.producer(TOPIC)
        older = await one.consumer(TOPIC, "billing", name="worker")
        newer = await other.consumer(TOPIC, "billing", name="worker")
        for number in range(20):
            await producer.send(b"%d" % number)
        received = []
        async with asyncio.timeout(30):
            for _ in range(20):
                message = await newer.receive()
                await newer.ack(message)
                received.append(message.offset)
        assert received == list(range(20))
        with pytest.raises(pydanube.Conflict, match="a unique name"):
            async with asyncio.timeout(10):
                await older.receive()


async def test_an_exclusive_subscription_is_free_once_its_holder_has_closed(
    broker: BrokerProcess, open_channel: OpenChannel
) -> None:
    async with pydanube.connect(broker.url, open_channel=open_channel) as client:
        producer = await client.producer(TOPIC)
        first = await client.consumer(TOPIC, "audit", name="a", subscription_type="Exclusive")
        await first.close()  # It has not even opened its stream.
        second = await client.consumer(TOPIC, "audit", name="b", subscription_type="Exclusive")
        await producer.send(b"one coffee")
        await second.receive()
        await second.close()
        third = await client.consumer(TOPIC, "audit", name="c", subscription_type="Exclusive")
        assert (await third.receive()).payload == b"one coffee"


async def test_who_has_lost_its_name_to_another_does_not_free_its_place_by_closing(
    broker: BrokerProcess, open_channel: OpenChannel
) -> None:
    async with (
        pydanube.connect(broker.url, open_channel=open_channel) as one,
        pydanube.connect(broker.url, open_channel=open_channel) as other,
    ):
        producer = await one.producer(TOPIC)
        displaced = await one.consumer(TOPIC, "audit", name="a", subscription_type="Exclusive")
        holder = await other.consumer(TOPIC, "audit", name="a", subscription_type="Exclusive")
        await displaced.close()
        with pytest.raises(pydanube.AccessDenied, match="held by consumer a"):
            await one.consumer(TOPIC, "audit", name="b", subscription_type="Exclusive")
        await producer.send(b"one coffee")
        assert (await holder.receive()).payload == b"one coffee"


async def test_a_subscription_held_by_another_consumer_is_refused_with_its_kind(
    broker: BrokerProcess, open_channel: OpenChannel
) -> None:
    async with pydanube.connect(broker.url, open_channel=open_channel) as client:
        await client.producer(TOPIC)
        await client.consumer(TOPIC, "audit", name="a", subscription_type="Exclusive")
        with pytest.raises(pydanube.AccessDenied):
            await client.consumer(TOPIC, "audit", name="b", subscription_type="Exclusive")
        with pytest.raises(pydanube.Conflict):
            await client.producer(TOPIC, reliable=False)
        with pytest.raises(pydanube.NotFound):
            await client.consumer("/default/nothing", "audit")
        with pytest.raises(pydanube.NotFound):
            await client.producer("/nowhere/orders")
