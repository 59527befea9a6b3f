"""Two consumers of one name: the one that loses its place hears of it."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import pydanube
from pydanube.client.client import OpenChannel, grpcio_channel, http2_channel
from pydanube.client.standings import standings
from pydanube.wire.calls import StatusCode
from tests.support.running_broker import RunningBroker

ORDERS = "/default/orders"
CHANNELS = pytest.mark.parametrize("channel", [http2_channel, grpcio_channel])


@pytest.fixture
async def orders(danube_broker: pydanube.Broker) -> AsyncIterator[pydanube.Broker]:
    async with pydanube.connect(danube_broker.url) as client, client.producer(ORDERS) as producer:
        await producer.send(b"one")
        yield danube_broker


@CHANNELS
@pytest.mark.parametrize("waits", [True, False])
async def test_the_one_displaced_raises_and_the_newcomer_gets_the_messages(
    orders: pydanube.Broker, channel: OpenChannel, waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        asyncio.timeout(30),
        pydanube.connect(orders.url, open_channel=channel) as first,
        pydanube.connect(orders.url, open_channel=channel) as second,
        first.consumer(ORDERS, "s", name="till", start_position="earliest") as displaced,
    ):
        if waits:
            assert (await displaced.receive()).payload == b"one"
        async with second.consumer(ORDERS, "s", name="till") as newcomer:
            message = await newcomer.receive()
            assert message.payload == b"one", "it was not acked"
            if not waits:
                assert (await displaced.receive()).payload == b"one", "it had it already"
            with pytest.raises(pydanube.Conflict, match=r"named till .* a unique name"):
                await displaced.receive()
            await newcomer.ack(message)
    assert "a consumer was displaced by another one of the same name" in caplog.text
    assert "consumer=till" in caplog.text


async def test_the_one_displaced_hears_of_it_when_it_takes_batches(
    orders: pydanube.Broker,
) -> None:
    async with (
        asyncio.timeout(30),
        pydanube.connect(orders.url) as first,
        pydanube.connect(orders.url) as second,
        first.consumer(ORDERS, "s", name="till", start_position="earliest") as displaced,
    ):
        batches = displaced.batches()
        assert (await anext(batches)).payloads() == [b"one"]
        async with second.consumer(ORDERS, "s", name="till") as newcomer:
            taken = newcomer.batches()
            assert (await anext(taken)).payloads() == [b"one"]
            with pytest.raises(pydanube.Conflict, match="a unique name"):
                await anext(batches)


async def test_two_of_one_client_are_told_apart_too(orders: pydanube.Broker) -> None:
    async with (
        asyncio.timeout(30),
        pydanube.connect(orders.url) as client,
        client.consumer(ORDERS, "s", name="till", start_position="earliest") as displaced,
        client.consumer(ORDERS, "s", name="till") as newcomer,
    ):
        await newcomer.ack(await newcomer.receive())
        with pytest.raises(pydanube.Conflict, match="a unique name"):
            await displaced.receive()


async def test_whoever_comes_back_under_its_old_name_displaces_nobody(
    orders: pydanube.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        async with (
            pydanube.connect(orders.url) as client,
            client.consumer(ORDERS, "s", name="till", start_position="earliest") as consumer,
        ):
            assert (await consumer.receive()).payload == b"one"
    assert "displaced" not in caplog.text


async def test_a_stock_client_that_is_displaced_still_sees_its_stream_end_cleanly(
    tmp_path: Path,
) -> None:
    broker = RunningBroker(tmp_path / "data")
    await broker.start()
    try:
        first, second = broker.client(), broker.client()
        await first.create_producer(ORDERS)
        stream = await first.consume(ORDERS)
        await second.subscribe(ORDERS)
        assert await stream.ended() is StatusCode.OK
    finally:
        await broker.close()


async def there(client: pydanube.Client) -> int:
    """How many consumers the subscription has, seen by one that comes and goes."""
    async with client.consumer(ORDERS, "watch") as watcher:
        found = await standings(watcher._brokers, [ORDERS], "billing")
        return found[0].active_consumers if found else 0


async def test_the_command_line_makes_names_of_its_own(
    orders: pydanube.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    danube = str(Path(sys.executable).with_name("danube"))
    line = ("consume", "-s", orders.url, "-t", ORDERS, "-m", "billing", "--seconds", "8")
    both = [
        await asyncio.create_subprocess_exec(danube, *line, stdout=-1, stderr=-1) for _ in range(2)
    ]
    async with pydanube.connect(orders.url) as client:
        async with asyncio.timeout(8):
            while await there(client) < 2:
                await asyncio.sleep(0.1)
    outcomes = [await each.communicate() for each in both]
    assert [each.returncode for each in both] == [0, 0], outcomes
    assert not [each for each in caplog.records if "displaced" in each.getMessage()]
