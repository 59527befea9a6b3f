"""Brokers whose metadata are in a real etcd."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from pathlib import Path

import pytest

from pydanube.broker.config import standalone_config
from pydanube.broker.server import BrokerServer
from pydanube.client.client import connect
from pydanube.errors import Conflict, Corruption, InvalidRequest
from tests.support.broker_process import free_ports
from tests.support.etcd_server import EtcdServer, shared_etcd

PATIENCE = 30.0
TOPIC = "/default/orders"


class Brokers:
    """Starts brokers on one etcd, and stops all of them in the end."""

    def __init__(self, directory: Path, url: str) -> None:
        self._directory = directory
        self._url = url
        self._prefix = f"/test/{uuid.uuid4()}"
        self._ports: dict[str, list[int]] = {}
        self._running: dict[str, BrokerServer] = {}

    async def start(self, name: str, **settings: object) -> BrokerServer:
        client, admin, raft = self._ports.setdefault(name, free_ports(3))
        overrides = {
            "broker.ports.client": client,
            "broker.ports.admin": admin,
            "broker.ports.raft": raft,
            "meta_store.backend": "etcd",
            "meta_store.etcd.endpoints": [self._url],
            "meta_store.etcd.prefix": self._prefix,
            "storage.mode": "shared_fs",
            "storage.durable.root": str(self._directory / "shared"),
            "cluster.lease_ms": 2_000,
            **settings,
        }
        config = standalone_config(str(self._directory / name), overrides=overrides)
        async with asyncio.timeout(PATIENCE):
            server = await BrokerServer.start(config)
        self._running[name] = server
        return server

    async def stop(self, name: str) -> None:
        await self._running.pop(name).stop()

    async def stop_all(self) -> None:
        for name in list(self._running):
            await self.stop(name)


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    brokers = Brokers(tmp_path, shared_etcd().url)
    yield brokers
    await brokers.stop_all()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd that may be harmed."""
    server = EtcdServer(tmp_path / "etcd").start()
    yield server
    server.kill()


async def publish(broker: BrokerServer, first: int, count: int) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        connect(f"http://127.0.0.1:{broker.client_port}") as client,
        client.producer(TOPIC, reliable=True) as producer,
    ):
        for number in range(first, first + count):
            await producer.send(b"%d" % number)


async def consume(broker: BrokerServer, count: int) -> list[int]:
    async with (
        asyncio.timeout(PATIENCE),
        connect(f"http://127.0.0.1:{broker.client_port}") as client,
        client.consumer(TOPIC, "all", start_position="earliest") as consumer,
    ):
        found = []
        for _ in range(count):
            message = await consumer.receive()
            found.append(int(message.payload))
            await consumer.ack(message)
        return found


async def test_a_broker_on_etcd_serves_and_finds_everything_after_a_restart(
    brokers: Brokers,
) -> None:
    broker = await brokers.start("one")
    await publish(broker, 0, 20)
    assert await consume(broker, 10) == list(range(10))
    for _ in range(2):
        await brokers.stop("one")
        broker = await brokers.start("one")
    await publish(broker, 20, 10)
    assert await consume(broker, 20) == list(range(10, 30))


async def test_what_one_broker_had_another_serves_after_it_has_left(brokers: Brokers) -> None:
    one = await brokers.start("one")
    await publish(one, 0, 20)
    two = await brokers.start("two")
    await eventually(lambda: len(active_brokers(one)) == 2)
    await brokers.stop("one")
    await publish(two, 20, 10)
    assert await consume(two, 30) == list(range(30))


async def test_a_broker_serves_on_while_etcd_is_away_for_a_moment(
    server: EtcdServer, tmp_path: Path
) -> None:
    brokers = Brokers(tmp_path, server.url)
    broker = await brokers.start("one")
    try:
        await publish(broker, 0, 10)
        for round_ in range(1, 3):
            server.kill()
            await asyncio.to_thread(server.start)
            await eventually(lambda: not broker._broker.notes)
            await publish(broker, 10 * round_, 10)
        assert await consume(broker, 30) == list(range(30))
    finally:
        await brokers.stop_all()


def active_brokers(broker: BrokerServer) -> Collection[int]:
    serving = broker._broker._serving  # No user needs this door; a test does.
    assert serving is not None
    assert serving.clustering is not None
    return serving.clustering.directory.view.active()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_broker_does_not_take_an_emptied_etcd_for_the_deletion_of_its_topics(
    server: EtcdServer, tmp_path: Path
) -> None:
    brokers = Brokers(tmp_path, server.url)
    broker = await brokers.start("one")
    await publish(broker, 0, 10)
    await brokers.stop("one")
    server.kill()
    server.forget_everything()
    server.start()
    with pytest.raises(Corruption, match="was emptied"):
        await brokers.start("one")


async def test_a_broker_of_another_cluster_is_refused(brokers: Brokers, tmp_path: Path) -> None:
    await brokers.start("one")
    await brokers.stop("one")
    other = Brokers(tmp_path, shared_etcd().url)
    await other.start("two")
    with pytest.raises(Corruption, match="but this broker belongs to"):
        await other.start("one")
    await other.stop_all()


async def test_two_brokers_do_not_share_a_directory(brokers: Brokers, tmp_path: Path) -> None:
    await brokers.start("one")
    ports = free_ports(3)
    with pytest.raises(Conflict, match="in use by another process"):
        await brokers.start(
            "again",
            **{
                "meta_store.data_dir": str(tmp_path / "one" / "raft"),
                "broker.ports.raft": ports[0],
            },
        )


async def test_a_directory_with_metadata_of_its_own_is_not_taken_to_etcd(
    brokers: Brokers, tmp_path: Path
) -> None:
    ports = {f"broker.ports.{name}": 0 for name in ("client", "admin")}
    alone = await BrokerServer.start(standalone_config(str(tmp_path / "one"), overrides=ports))
    await alone.stop()
    with pytest.raises(InvalidRequest, match="was not on etcd"):
        await brokers.start("one")
