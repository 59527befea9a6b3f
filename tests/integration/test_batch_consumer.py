"""Batches through a subscription: delivered until acked, across restarts."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import pydanube
from pydanube.client.client import grpcio_channel
from pydanube.wire.http2.channel import Http2Channel

TOPIC = "/default/orders"


@pytest.fixture(params=[Http2Channel, grpcio_channel], ids=["http2", "grpcio"])
async def client(
    danube_broker: pydanube.Broker, request: pytest.FixtureRequest
) -> AsyncIterator[pydanube.Client]:
    async with pydanube.connect(danube_broker.url, open_channel=request.param) as client:
        yield client


async def publish(client: pydanube.Client, count: int, start: int = 0) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_batch([b"%d" % number for number in range(start, start + count)])


async def consume(client: pydanube.Client, last: int, *, ack: bool) -> list[int]:
    """Receive until the message with that number has come."""
    numbers: list[int] = []
    async with client.consumer(TOPIC, "s", name="c", start_position="earliest") as consumer:
        async with asyncio.timeout(15):
            async for batch in consumer.batches():
                numbers += [int(payload) for payload in batch.rows.column("payload").to_pylist()]
                if ack:
                    await consumer.ack_batch(batch)
                if last in numbers:
                    break
    return numbers


async def test_more_rows_than_the_first_credit_arrive_in_order(client: pydanube.Client) -> None:
    await publish(client, 25_000)
    assert await consume(client, 24_999, ack=True) == list(range(25_000))


async def test_what_was_acked_does_not_come_again_and_what_was_not_does(
    client: pydanube.Client,
) -> None:
    await publish(client, 10)
    assert await consume(client, 9, ack=False) == list(range(10))
    assert await consume(client, 9, ack=True) == list(range(10))
    await publish(client, 10, start=10)
    assert await consume(client, 19, ack=True) == list(range(10, 20))


async def test_consumption_goes_on_when_the_broker_comes_back(tmp_path: Path) -> None:
    with pydanube.Broker(str(tmp_path / "data")) as first:
        port = int(first.url.rpartition(":")[2])
    broker = pydanube.Broker(str(tmp_path / "data"), settings={"broker.ports.client": port})
    async with broker, pydanube.connect(broker.url, open_channel=Http2Channel) as client:
        await publish(client, 10)
        async with client.consumer(TOPIC, "s", start_position="earliest") as consumer:
            batches = consumer.batches()
            await consumer.ack_batch(await anext(batches))
            await asyncio.to_thread(broker.stop)
            await asyncio.to_thread(broker.start)
            await publish(client, 5, start=10)
            batch = await asyncio.wait_for(anext(batches), 15)
            assert (batch.offset, batch.rows.num_rows) == (10, 5)
            await consumer.ack_batch(batch)


async def test_a_topic_that_is_not_reliable_has_no_batches(client: pydanube.Client) -> None:
    async with (
        client.producer(TOPIC, reliable=False) as producer,
        client.consumer(TOPIC, "s") as consumer,
    ):
        batches = consumer.batches()
        waiting = asyncio.ensure_future(anext(batches))
        while not waiting.done():
            await producer.send(b"a")
        with pytest.raises(pydanube.InvalidRequest, match="not reliable"):
            await waiting


async def test_batches_that_were_never_sent_before_come_for_the_first_time(
    client: pydanube.Client,
) -> None:
    await publish(client, 1_000)
    # Opening it subscribes to single messages first, which are dealt out to it.
    async with client.consumer(TOPIC, "s", start_position="earliest") as consumer:
        async with asyncio.timeout(15):
            received, attempts = 0, set()
            async for batch in consumer.batches():
                received += batch.rows.num_rows
                attempts.add(batch.attempt)
                if received == 1_000:
                    break
    assert attempts == {1}
