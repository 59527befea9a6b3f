"""Protocol 3.6, restart budget: a broker listens at once and holds calls while it recovers."""

import asyncio
from pathlib import Path

import pytest

from pydanube.broker.broker import Broker, Urls
from pydanube.wire.calls import CallRefused, StatusCode
from tests.support.broker_process import free_ports
from tests.support.raw_client import CONSUMER, RawClient
from tests.support.running_broker import RunningBroker

TOPIC = "/default/orders"


async def until_open(*ports: int) -> None:
    """Wait until somebody listens."""
    async with asyncio.timeout(10):
        for port in ports:
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except ConnectionRefusedError:
                    await asyncio.sleep(0.01)
                    continue
                writer.close()
                break


@pytest.fixture
def recovering(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let brokers recover only once this is set."""
    may_recover = asyncio.Event()
    recover = Broker.recover

    async def recover_later(broker: Broker, urls: Urls) -> None:
        await may_recover.wait()
        await recover(broker, urls)

    monkeypatch.setattr(Broker, "recover", recover_later)
    return may_recover


async def test_calls_that_come_during_recovery_are_held_and_then_answered(
    tmp_path: Path, recovering: asyncio.Event
) -> None:
    client_port, admin_port = free_ports(2)
    ports = {"broker.ports.client": client_port, "broker.ports.admin": admin_port}
    broker = RunningBroker(tmp_path / "data", ports)
    recovering.set()
    await broker.start()
    client = broker.client()
    producer = await client.create_producer(TOPIC)
    consumer = await client.subscribe(TOPIC)
    await client.close()
    await broker.stop()

    recovering.clear()
    starting = asyncio.create_task(broker.start())
    await until_open(client_port, admin_port)
    client = RawClient(f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{admin_port}")
    try:
        stream = client.open(consumer)
        calls = [
            asyncio.create_task(client.lookup(TOPIC)),
            asyncio.create_task(client.send(TOPIC, producer, b"early")),
            asyncio.create_task(client.health(CONSUMER, consumer)),
            asyncio.create_task(client.subscriptions(TOPIC)),
        ]
        done, held = await asyncio.wait(calls, timeout=0.5)
        assert not done, "nobody is refused, and nobody is answered before the broker knows"
        assert len(held) == 4
        recovering.set()
        lookup, offset, health, subscriptions = await asyncio.gather(*calls)
        assert lookup.connect_url == f"http://127.0.0.1:{client_port}"
        assert offset == 0
        assert health == "OK"
        assert subscriptions == ["s"]
        assert await stream.payloads(1) == [b"early"]
    finally:
        recovering.set()
        await client.close()
        await starting
        await broker.close()


async def test_calls_held_by_a_broker_that_cannot_recover_are_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_fail = asyncio.Event()

    async def fail(broker: Broker, urls: Urls) -> None:
        await may_fail.wait()
        raise CallRefused(StatusCode.INTERNAL, "cannot recover")

    monkeypatch.setattr(Broker, "recover", fail)
    client_port, admin_port = free_ports(2)
    ports = {"broker.ports.client": client_port, "broker.ports.admin": admin_port}
    broker = RunningBroker(tmp_path / "data", ports)
    starting = asyncio.create_task(broker.start())
    await until_open(client_port)
    client = RawClient(f"http://127.0.0.1:{client_port}")
    try:
        lookup = asyncio.create_task(client.lookup(TOPIC))
        await asyncio.wait([lookup], timeout=0.3)
        assert not lookup.done()
        may_fail.set()
        with pytest.raises(CallRefused) as refused:
            await lookup
        assert refused.value.code is StatusCode.UNAVAILABLE
        with pytest.raises(CallRefused, match="cannot recover"):
            await starting
    finally:
        await client.close()
