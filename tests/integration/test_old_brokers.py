"""The client against a broker without Arrow Flight, as the original Danube is."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import pydanube
from pydanube.client.client import grpcio_channel
from pydanube.wire.http2.channel import Http2Channel
from tests.support.flightless_broker import flightless_broker

TOPIC = "/default/orders"
QUIET_SECONDS = 0.3


@pytest.fixture(params=["http2", "grpcio"])
async def client(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[pydanube.Client]:
    open_channel = Http2Channel if request.param == "http2" else grpcio_channel
    async with (
        flightless_broker(tmp_path / "data", request.param) as url,
        pydanube.connect(url, open_channel=open_channel) as client,
    ):
        yield client


async def publish(client: pydanube.Client, *payloads: bytes) -> None:
    async with client.producer(TOPIC, name="till") as producer:
        for payload in payloads:
            await producer.send(payload)


@asynccontextmanager
async def batches_of(
    client: pydanube.Client,
) -> AsyncIterator[tuple["pydanube.Consumer[bytes]", AsyncIterator[pydanube.DeliveredBatch]]]:
    async with client.consumer(TOPIC, "s", start_position="earliest") as consumer:
        yield consumer, consumer.batches()


async def take(
    batches: AsyncIterator[pydanube.DeliveredBatch], rows: int
) -> list[pydanube.DeliveredBatch]:
    """Receive until so many rows have come."""
    taken: list[pydanube.DeliveredBatch] = []
    async with asyncio.timeout(20):
        while sum(batch.rows.num_rows for batch in taken) < rows:
            taken.append(await anext(batches))
    return taken


def payloads_of(batches: list[pydanube.DeliveredBatch]) -> list[bytes]:
    return [payload for batch in batches for payload in batch.payloads()]


async def left_over(client: pydanube.Client) -> list[bytes]:
    """What the subscription still has for another consumer."""
    found = []
    async with client.consumer(TOPIC, "s") as consumer:
        try:
            while True:
                message = await consumer.receive(seconds_max=QUIET_SECONDS)
                await consumer.ack(message)
                found.append(message.payload)
        except TimeoutError:
            return found


async def test_messages_and_batches_are_sent_one_by_one_with_one_warning(
    client: pydanube.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pydanube.client")
    async with client.producer(TOPIC) as producer:
        assert (await producer.send(b"0")).offset == 0
        assert [each.offset for each in await producer.send_batch([b"1", b"2"])] == [1, 2]
        together = await asyncio.gather(*(producer.send(b"%d" % n) for n in range(3, 30)))
        assert [each.offset for each in together] == list(range(3, 30))
    assert len([r for r in caplog.records if "sending message by message" in r.message]) == 1
    async with batches_of(client) as (_, batches):
        assert (await take(batches, 1))[0].payloads()[0] == b"0"
    assert len([r for r in caplog.records if "grouping single messages" in r.message]) == 1


async def test_single_deliveries_are_gathered_and_acked(client: pydanube.Client) -> None:
    numbers = [b"%d" % number for number in range(50)]
    await publish(client, *numbers)
    async with batches_of(client) as (consumer, batches):
        received: list[bytes] = []
        sizes = []
        while len(received) < 50:
            (batch,) = await take(batches, 1)
            assert batch.offset == len(received)
            assert batch.rows.column("producer_name").to_pylist() == ["till"] * len(
                batch.payloads()
            )
            received += batch.payloads()
            sizes.append(batch.rows.num_rows)
            await consumer.ack_batch(batch)
        assert received == numbers
        assert max(sizes) > 1, "nothing was gathered"
    assert await left_over(client) == []


async def test_what_was_not_acked_comes_again(client: pydanube.Client) -> None:
    await publish(client, b"a", b"b", b"c")
    async with batches_of(client) as (consumer, batches):
        taken = await take(batches, 3)
        await consumer.ack_batch(taken[0].slice(0, 1))
    assert await left_over(client) == [b"b", b"c"]


async def test_acking_until_a_batch_acks_what_came_before_it(client: pydanube.Client) -> None:
    await publish(client, b"a", b"b")
    async with batches_of(client) as (consumer, batches):
        await take(batches, 2)
        await publish(client, b"c", b"d")
        later = await take(batches, 2)
        await consumer.ack_until(later[0].slice(0, 1))
    assert await left_over(client) == [b"d"]


async def test_nacked_rows_come_again_and_no_others(client: pydanube.Client) -> None:
    await publish(client, b"a", b"b", b"c", b"d")
    async with batches_of(client) as (consumer, batches):
        taken = await take(batches, 4)
        assert payloads_of(taken) == [b"a", b"b", b"c", b"d"]
        whole = taken[0]
        if whole.rows.num_rows == 4:
            await consumer.nack_batch(whole.slice(1, 3), reason="not now")
        else:
            for batch in taken:
                if batch.payloads()[0] in (b"b", b"c"):
                    await consumer.nack_batch(batch, reason="not now")
        again = await take(batches, 2)
        assert sorted(payloads_of(again)) == [b"b", b"c"]


async def test_messages_are_acked_up_to_one(client: pydanube.Client) -> None:
    await publish(client, b"a", b"b", b"c")
    async with client.consumer(TOPIC, "s", start_position="earliest") as consumer:
        messages = [await consumer.receive() for _ in range(3)]
        await consumer.ack_until(messages[1])
    assert await left_over(client) == [b"c"]


async def test_a_reader_says_why_it_cannot_read_and_what_to_do(client: pydanube.Client) -> None:
    await publish(client, b"a")
    for start in ("earliest", "time:0"):
        with pytest.raises(pydanube.NotSupported, match=r"no Arrow Flight.*client\.consumer"):
            await client.reader(TOPIC, start=start).to_arrow()


async def test_a_topic_with_partitions_gives_batches_of_each(client: pydanube.Client) -> None:
    async with client.producer(TOPIC, partitions=3) as producer:
        await asyncio.gather(*(producer.send(b"%d" % n) for n in range(30)))
    async with batches_of(client) as (consumer, batches):
        numbers: list[int] = []
        while len(numbers) < 30:
            (batch,) = await take(batches, 1)
            numbers += map(int, batch.payloads())
            await consumer.ack_batch(batch)
        assert sorted(numbers) == list(range(30))
    assert await left_over(client) == []


async def test_an_app_is_served_without_a_policy_and_told_so_unless_it_asks_for_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with flightless_broker(tmp_path / "data", "http2") as url:
        async with pydanube.connect(url) as client:
            await publish(client, b"one")
        handled = asyncio.Event()

        async def handle(payload: bytes) -> None:
            handled.set()

        app = pydanube.App(url)
        app.subscriber(TOPIC, subscription="s", start_position="earliest")(handle)
        async with asyncio.timeout(30), app:
            await handled.wait()
        assert "does not let clients set a failure policy" in caplog.text

        app = pydanube.App(url)
        app.subscriber(TOPIC, subscription="s", retries=3)(handle)
        async with asyncio.timeout(30), app:
            assert app._running is not None
            with pytest.raises(pydanube.NotSupported, match="set-failure-policy"):
                await app._running.until(asyncio.Event().wait())
