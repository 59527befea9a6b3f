"""The broker inside a program: what it leaves behind, and what it keeps."""

import asyncio
import socket
import tempfile
import threading
from pathlib import Path

import pytest

import pydanube
from pydanube import Broker

TOPIC = "/default/orders"


async def publish(url: str, payload: bytes = b"one coffee") -> int | None:
    async with pydanube.connect(url) as client, client.producer(TOPIC) as producer:
        return (await producer.send(payload)).offset


async def first_payload(url: str) -> bytes:
    async with (
        pydanube.connect(url) as client,
        client.consumer(TOPIC, "audit", start_position="earliest") as consumer,
    ):
        return (await consumer.receive()).payload


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made during this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("engine", ["http2", "grpcio"])
def test_a_program_without_an_event_loop_has_a_broker_that_acknowledges(engine: str) -> None:
    with Broker(engine=engine) as broker:
        assert asyncio.run(publish(broker.url)) == 0
        assert asyncio.run(first_payload(broker.url)) == b"one coffee"


async def test_a_program_with_an_event_loop_has_one_too() -> None:
    async with Broker() as broker:
        assert await publish(broker.url) == 0
        assert await first_payload(broker.url) == b"one coffee"


def test_nothing_is_left_of_it(temporary: Path) -> None:
    with Broker() as broker:
        asyncio.run(publish(broker.url))
        ports = [port_of(broker.url), port_of(broker.admin_url)]
        assert len(list(temporary.iterdir())) == 1
    assert list(temporary.iterdir()) == []
    assert "danube-broker" not in [thread.name for thread in threading.enumerate()]
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=1)


def test_nothing_is_left_of_one_that_could_not_start(temporary: Path) -> None:
    data = temporary / "data"
    with Broker(str(data)):
        second = Broker(str(data))
        with pytest.raises(pydanube.DanubeError):
            second.start()
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("danube-broker") == 1
        second.stop()
    second.start()
    second.stop()


def test_a_directory_that_was_given_keeps_the_messages(tmp_path: Path) -> None:
    broker = Broker(str(tmp_path / "data"))
    with broker:
        asyncio.run(publish(broker.url))
    with broker:
        assert asyncio.run(first_payload(broker.url)) == b"one coffee"


def test_two_brokers_know_nothing_of_each_other() -> None:
    with Broker() as one, Broker() as other:
        assert asyncio.run(publish(one.url)) == 0
        assert asyncio.run(publish(other.url)) == 0
        assert one.admin_url != other.admin_url


def test_settings_are_those_of_the_configuration() -> None:
    with (
        Broker(settings={"auto_create_topics": False}) as broker,
        pytest.raises(pydanube.DanubeError),
    ):
        asyncio.run(publish(broker.url))


def test_a_broker_that_does_not_run_has_no_url() -> None:
    broker = Broker()
    with pytest.raises(pydanube.Conflict, match="not running"):
        _ = broker.url
    with broker, pytest.raises(pydanube.Conflict, match="running already"):
        broker.start()
    with pytest.raises(pydanube.Conflict, match="not running"):
        _ = broker.admin_url


@pytest.mark.parametrize("_turn", ["first", "second"])
async def test_the_fixture_is_an_empty_broker_for_each_test(
    danube_broker: Broker, _turn: str
) -> None:
    assert await publish(danube_broker.url) == 0
