"""Acks up to a message, and nacks of batches: exactly what was meant is settled, and durably."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import pydanube
from pydanube import sync
from pydanube.client.client import Opening, grpcio_channel
from pydanube.wire.http2.channel import Http2Channel

TOPIC = "/default/orders"
QUIET_SECONDS = 0.3


@pytest.fixture(params=[Http2Channel, grpcio_channel], ids=["http2", "grpcio"])
async def client(
    danube_broker: pydanube.Broker, request: pytest.FixtureRequest
) -> AsyncIterator[pydanube.Client]:
    async with pydanube.connect(danube_broker.url, open_channel=request.param) as client:
        yield client


async def publish(client: pydanube.Client, start: int, end: int) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_batch([b"%d" % number for number in range(start, end)])


async def left_over(client: pydanube.Client, subscription: str = "s") -> list[int]:
    """What the subscription still has for another consumer."""
    found = []
    async with client.consumer(TOPIC, subscription) as consumer:
        try:
            while True:
                message = await consumer.receive(seconds_max=QUIET_SECONDS)
                await consumer.ack(message)
                found.append(message.offset)
        except TimeoutError:
            return sorted(found)


def open_batches(client: pydanube.Client) -> Opening[pydanube.Consumer[bytes]]:
    return client.consumer(TOPIC, "s", start_position="earliest")


async def next_of(batches: AsyncIterator[pydanube.DeliveredBatch]) -> pydanube.DeliveredBatch:
    return await asyncio.wait_for(anext(batches), 15)


# Single messages.


async def test_messages_up_to_one_and_itself_are_acked(client: pydanube.Client) -> None:
    await publish(client, 0, 10)
    async with client.consumer(TOPIC, "s", start_position="earliest") as consumer:
        messages = [await consumer.receive() for _ in range(10)]
        await consumer.ack_until(messages[6])
        await consumer.ack_until(messages[6])
    assert await left_over(client) == [7, 8, 9]


async def test_a_nacked_message_is_not_acked_by_a_later_one(client: pydanube.Client) -> None:
    await publish(client, 0, 5)
    async with client.consumer(TOPIC, "s", start_position="earliest") as consumer:
        messages = [await consumer.receive() for _ in range(5)]
        await consumer.nack(messages[1], delay_ms=60_000)
        await consumer.ack_until(messages[4])
        await publish(client, 5, 6)
        assert (await consumer.receive(seconds_max=15)).offset == 5
    async with pydanube.connect(client._brokers.service.address.connect_url) as other:
        cursor = await other.consumer(TOPIC, "s", name="late")
        await cursor.seek("offset:1")
        assert (await cursor.receive(seconds_max=15)).offset == 1


async def deal_out(
    count: int, *consumers: "pydanube.Consumer[bytes]"
) -> list[list[pydanube.ReceivedMessage[bytes]]]:
    """Receive so many messages through consumers of one subscription; return what each has."""
    hands: list[list[pydanube.ReceivedMessage[bytes]]] = [[] for _ in consumers]
    async with asyncio.timeout(15):
        while sum(map(len, hands)) < count:
            for consumer, hand in zip(consumers, hands, strict=True):
                while (message := consumer.receive_nowait()) is not None:
                    hand.append(message)
            await asyncio.sleep(0.01)
    return hands


async def test_what_other_consumers_have_is_not_acked(client: pydanube.Client) -> None:
    async with (
        client.producer(TOPIC) as producer,
        client.consumer(TOPIC, "s", start_position="earliest") as one,
        client.consumer(TOPIC, "s") as two,
    ):
        for number in range(10):
            await producer.send(b"%d" % number)
        own, others = await deal_out(10, one, two)
        assert own
        assert others
        last = max(own, key=lambda message: message.offset)
        await one.ack_until(last)
        kept = sorted(message.offset for message in others)
    assert await left_over(client) == kept


async def test_a_seek_forgets_what_was_received_before_it(client: pydanube.Client) -> None:
    await publish(client, 0, 10)
    async with client.consumer(TOPIC, "s", start_position="earliest") as one:
        for _ in range(10):
            await one.receive(seconds_max=15)
        async with client.consumer(TOPIC, "s") as two:
            await one.seek("earliest")
            own, others = await deal_out(10, one, two)
            assert others, "the other one has some of what this one had before"
            async with client.producer(TOPIC) as producer:
                for message in (own + others)[-5:]:
                    await two.ack(message)
                    await producer.send(b"more")
            settled = {message.offset for message in (own + others)[-5:]}
            more = await deal_out(5, one, two)
            own, others = own + more[0], others + more[1]
            assert more[0], "what is new is dealt out to both"
            await one.ack_until(max(own, key=lambda message: message.offset))
            kept = {message.offset for message in others} - settled
    assert await left_over(client) == sorted(kept)


# Batches.


async def test_batches_up_to_one_and_itself_are_acked(client: pydanube.Client) -> None:
    await publish(client, 0, 10)
    async with open_batches(client) as consumer:
        batches = consumer.batches()
        await next_of(batches)
        await publish(client, 10, 20)
        second = await next_of(batches)
        assert (second.offset, second.end) == (10, 20)
        await consumer.ack_until(second.slice(0, 5))
    assert await left_over(client) == list(range(15, 20))


async def test_exactly_the_nacked_rows_come_again_with_another_attempt(
    client: pydanube.Client,
) -> None:
    await publish(client, 0, 10)
    async with open_batches(client) as consumer:
        batches = consumer.batches()
        batch = await next_of(batches)
        await consumer.nack_batch(batch.slice(2, 5), reason="not now")
        again = await next_of(batches)
        assert (again.offset, again.rows.num_rows) == (2, 3)
        assert again.attempt == batch.attempt + 1
        assert again.payloads() == [b"2", b"3", b"4"]
        await consumer.ack_until(batch)
    assert await left_over(client) == []


async def test_nacked_rows_are_not_acked_by_a_later_batch(client: pydanube.Client) -> None:
    await publish(client, 0, 4)
    async with open_batches(client) as consumer:
        batches = consumer.batches()
        first = await next_of(batches)
        await consumer.nack_batch(first.slice(1, 2), delay_ms=300)
        await publish(client, 4, 6)
        second = await next_of(batches)
        assert second.offset == 4
        await consumer.ack_until(second)
        again = await next_of(batches)
        assert (again.offset, again.rows.num_rows) == (1, 1)


async def test_rows_redelivered_and_not_taken_yet_are_not_acked(client: pydanube.Client) -> None:
    await publish(client, 0, 4)
    async with open_batches(client) as consumer:
        batches = consumer.batches()
        first = await next_of(batches)
        await consumer.nack_batch(first.slice(0, 1))
        async with asyncio.timeout(15):
            while not consumer._sources[TOPIC]._untaken_rows:  # type: ignore[attr-defined]
                await asyncio.sleep(0.005)
        await consumer.ack_until(first.slice(3, 4))
    assert await left_over(client) == [0]


async def test_acks_until_reach_behind_a_restart_of_the_broker(tmp_path: Path) -> None:
    with pydanube.Broker(str(tmp_path / "data")) as first:
        port = int(first.url.rpartition(":")[2])
    broker = pydanube.Broker(str(tmp_path / "data"), settings={"broker.ports.client": port})
    async with broker, pydanube.connect(broker.url) as client:
        await publish(client, 0, 4)
        async with open_batches(client) as consumer:
            batches = consumer.batches()
            batch = await next_of(batches)
            await asyncio.to_thread(broker.stop)
            await asyncio.to_thread(broker.start)
            await consumer.ack_until(batch.slice(2, 3))
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start)
        assert await left_over(client) == [3]


def test_the_blocking_client_settles_alike(danube_broker: pydanube.Broker) -> None:
    with sync.connect(danube_broker.url) as client:
        with client.producer(TOPIC) as producer:
            producer.send_batch([b"%d" % number for number in range(6)])
        with client.consumer(TOPIC, "s", start_position="earliest") as consumer:
            messages = [consumer.receive() for _ in range(4)]
            consumer.ack_until(messages[3])
        with client.consumer(TOPIC, "s") as consumer:
            batches = consumer.batches()
            batch = next(batches)
            assert batch.offset == 4
            consumer.nack_batch(batch)
            again = next(batches)
            assert (again.offset, again.attempt) == (4, batch.attempt + 1)
            consumer.ack_until(again)


async def test_only_rows_of_the_batch_can_be_cut_out(client: pydanube.Client) -> None:
    await publish(client, 0, 3)
    async with open_batches(client) as consumer:
        batch = await next_of(consumer.batches())
        for start, end in ((-1, 1), (2, 2), (0, 4)):
            with pytest.raises(pydanube.InvalidRequest, match="rows 0 to before 3"):
                batch.slice(start, end)


async def test_a_consumer_of_batches_gives_no_single_messages(client: pydanube.Client) -> None:
    await publish(client, 0, 1)
    async with open_batches(client) as consumer:
        await next_of(consumer.batches())
        with pytest.raises(pydanube.Conflict, match="yields batches"):
            await consumer.receive()
