"""Acks that nobody waits for, against a real broker: what is flushed never comes again, and what is
lost with a process is delivered again.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import pydanube

TOPIC = "/default/orders"
COUNT = 2_000
QUIET_SECONDS = 0.5


async def publish(client: pydanube.Client, start: int, end: int) -> None:
    async with client.producer(TOPIC) as producer:
        for number in range(start, end):
            producer.send_nowait(b"%d" % number)


async def left_over(url: str) -> list[int]:
    """What another consumer of the subscription gets."""
    found = []
    async with pydanube.connect(url) as client, client.consumer(TOPIC, "s") as consumer:
        try:
            while True:
                found.append(int((await consumer.receive(seconds_max=QUIET_SECONDS)).payload))
        except TimeoutError:
            return sorted(found)


@pytest.mark.parametrize("partitions", [None, 3])
async def test_after_closing_nothing_acked_comes_again(
    danube_broker: pydanube.Broker, partitions: int | None
) -> None:
    async with pydanube.connect(danube_broker.url) as client:
        producer = await client.producer(TOPIC, partitions=partitions)
        async with client.consumer(TOPIC, "s") as consumer:
            for number in range(COUNT):
                producer.send_nowait(b"%d" % number)
            for _ in range(COUNT):
                await consumer.ack(await consumer.receive(seconds_max=15))
            producer.send_nowait(b"-1")
    assert await left_over(danube_broker.url) == [-1]


async def test_what_is_flushed_outlives_the_broker_and_nothing_is_lost(tmp_path: Path) -> None:
    with pydanube.Broker(str(tmp_path / "data")) as first:
        port = int(first.url.rpartition(":")[2])
    broker = pydanube.Broker(str(tmp_path / "data"), settings={"broker.ports.client": port})
    async with broker, pydanube.connect(broker.url) as client:
        await publish(client, 0, 100)
        async with client.consumer(TOPIC, "s", start_position="earliest") as consumer:
            for _ in range(50):
                await consumer.ack(await consumer.receive(seconds_max=15))
            await consumer.flush()
            last = [await consumer.receive(seconds_max=15) for _ in range(10)][-1]
            await asyncio.to_thread(broker.stop)
            await consumer.ack(last)  # Nobody answers; it is said again to whoever comes back.
            await asyncio.to_thread(broker.start)
            again: set[int] = set()
            while len(again) < 49:
                message = await consumer.receive(seconds_max=15)
                if message.offset != last.offset:
                    again.add(message.offset)
            assert again == set(range(50, 100)) - {last.offset}
            await consumer.flush()
        assert await left_over(broker.url) == sorted(again)


DIES = """
import asyncio, os, sys, pydanube

async def main():
    client = await pydanube.connect(sys.argv[1])
    consumer = await client.consumer("/default/orders", "s", start_position="earliest")
    for number in range(60):
        message = await consumer.receive()
        await consumer.ack(message)
        if number == 39:
            await consumer.flush()
    os._exit(0)

asyncio.run(main())
"""


async def test_a_consumer_that_dies_repeats_what_it_did_not_flush_and_loses_nothing(
    danube_broker: pydanube.Broker,
) -> None:
    async with pydanube.connect(danube_broker.url) as client:
        await publish(client, 0, 100)
    await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", DIES, danube_broker.url], check=True, timeout=60
    )
    left = await left_over(danube_broker.url)
    assert left[-40:] == list(range(60, 100))
    assert left == list(range(left[0], 100))
    assert left[0] >= 40


APP_DIES = """
import asyncio, os, sys, pydanube

app = pydanube.App(sys.argv[1])
handled = 0

@app.subscriber("/default/orders", subscription="s", start_position="earliest")
async def handle(order: bytes) -> None:
    global handled
    handled += 1
    if handled == 30:
        await asyncio.sleep(0.3)
        os._exit(0)

app.run()
"""


async def test_what_an_app_was_handling_when_it_died_comes_again(
    danube_broker: pydanube.Broker,
) -> None:
    async with pydanube.connect(danube_broker.url) as client:
        await publish(client, 0, 60)
    await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", APP_DIES, danube_broker.url], check=True, timeout=60
    )
    assert await left_over(danube_broker.url) == list(range(29, 60))


async def test_a_call_that_is_cancelled_from_within_is_handled_again(
    danube_broker: pydanube.Broker,
) -> None:
    app = pydanube.App(danube_broker.url)
    calls: list[bytes] = []
    again = asyncio.Event()

    @app.subscriber(TOPIC, subscription="s", start_position="earliest")
    async def handle(order: bytes) -> None:
        calls.append(order)
        if calls == [b"0"]:
            raise asyncio.CancelledError
        if calls.count(b"0") == 2:
            again.set()

    async with pydanube.connect(danube_broker.url) as client:
        await publish(client, 0, 3)
    async with asyncio.timeout(30), app:
        await again.wait()
    assert await left_over(danube_broker.url) == []


async def test_what_an_app_did_not_finish_in_time_comes_again(
    danube_broker: pydanube.Broker,
) -> None:
    app = pydanube.App(danube_broker.url, stop_seconds_max=0.2)
    begun = asyncio.Event()

    @app.subscriber(TOPIC, subscription="s", start_position="earliest")
    async def handle(order: bytes) -> None:
        if order == b"1":
            begun.set()
            await asyncio.Event().wait()

    async with pydanube.connect(danube_broker.url) as client:
        await publish(client, 0, 3)
    async with asyncio.timeout(30), app:
        await begun.wait()
    assert await left_over(danube_broker.url) == [1, 2]


async def test_a_key_waits_for_its_failed_message_and_other_keys_do_not(
    danube_broker: pydanube.Broker,
) -> None:
    app = pydanube.App(danube_broker.url)
    handled: dict[str, list[bytes]] = {"a": [], "b": []}
    failed: list[bytes] = []
    done = asyncio.Event()

    @app.subscriber(TOPIC, subscription="s", start_position="earliest")
    async def handle(message: pydanube.ReceivedMessage[bytes]) -> None:
        if message.payload == b"a3" and not failed:
            failed.append(message.payload)
            raise ValueError("sour")
        assert message.routing_key is not None
        if message.payload == b"a3":
            assert len(handled["b"]) == 20, "the other key went on"
        handled[message.routing_key].append(message.payload)
        if sum(map(len, handled.values())) == 40:
            done.set()

    async with pydanube.connect(danube_broker.url) as client, client.producer(TOPIC) as producer:
        for number in range(20):
            for key in "ab":
                producer.send_nowait(b"%s%d" % (key.encode(), number), routing_key=key)
    async with asyncio.timeout(30), app:
        await done.wait()
    assert handled == {key: [b"%s%d" % (key.encode(), n) for n in range(20)] for key in "ab"}


async def test_batches_that_wait_come_as_one(danube_broker: pydanube.Broker) -> None:
    async with pydanube.connect(danube_broker.url) as client, client.producer(TOPIC) as producer:
        await producer.send(b"0")
        async with client.consumer(TOPIC, "s", start_position="earliest") as consumer:
            batches = consumer.batches()
            rows = [await anext(batches)]
            for number in range(1, 20):
                await producer.send(b"%d" % number)
            await asyncio.sleep(0.3)  # For what is on its way.
            rows += [await anext(batches)]
            assert rows[1].payloads() == [b"%d" % number for number in range(1, 20)]
            await consumer.ack_until(rows[1])
    assert await left_over(danube_broker.url) == []
