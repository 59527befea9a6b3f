"""A broker that stood alone, and the cluster it becomes the first of."""

from pathlib import Path

import pytest

from pydanube import connect
from pydanube.errors import InvalidRequest
from pydanube.metadata.local_store import LocalMetadataStore
from pydanube.metadata.raft_store import RaftStore
from tests.support.broker_cluster import ClusterBroker
from tests.support.broker_process import free_ports

TOPIC = "/default/orders"


def settings(tmp_path: Path, seeds: list[int]) -> dict[str, object]:
    return {
        "cluster_name": "TEST",
        **{f"broker.ports.{name}": 0 for name in ("client", "admin", "prometheus")},
        "broker.ports.raft": seeds[0] if seeds else 0,
        "meta_store.seed_nodes": [f"127.0.0.1:{port}" for port in seeds],
        "storage.mode": "shared_fs",
        "storage.durable.root": str(tmp_path / "shared"),
    }


async def test_topics_come_along_into_a_cluster_of_one_and_not_into_one_of_several(
    tmp_path: Path,
) -> None:
    ports = free_ports(2)
    broker = ClusterBroker(tmp_path / "broker", settings(tmp_path, []))
    await broker.start()
    async with connect(broker.url) as client, client.producer(TOPIC) as producer:
        await producer.send(b"alone")
    await broker.stop()

    broker.settings = settings(tmp_path, ports)
    with pytest.raises(InvalidRequest, match="stood alone"):
        await broker.start()

    broker.settings = settings(tmp_path, ports[:1])
    await broker.start()
    try:
        async with connect(broker.url) as client:
            async with client.producer(TOPIC) as producer:
                assert (await producer.send(b"first of a cluster")).offset == 1
            table = await client.reader(TOPIC).to_arrow()
    finally:
        await broker.stop()
    assert table["payload"].to_pylist() == [b"alone", b"first of a cluster"]


async def test_without_seeds_a_broker_founds_a_cluster_of_one_unless_it_stood_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of_one = {
        **settings(tmp_path, []),
        "broker.ports.raft": free_ports(1)[0],
        "meta_store.backend": "raft",
    }
    new = ClusterBroker(tmp_path / "new", of_one)
    await new.start()
    assert isinstance(new.store, RaftStore)
    await new.stop()

    old = ClusterBroker(tmp_path / "old", settings(tmp_path, []))
    await old.start()
    async with connect(old.url) as client, client.producer(TOPIC) as producer:
        await producer.send(b"alone")
    await old.stop()
    old.settings = of_one
    await old.start()
    assert isinstance(old.store, LocalMetadataStore)
    assert "this broker stood alone, and goes on so" in caplog.text
    async with connect(old.url) as client:
        table = await client.reader(TOPIC).to_arrow()
    await old.stop()
    assert table["payload"].to_pylist() == [b"alone"]

    old.settings = {**of_one, **settings(tmp_path, free_ports(1))}
    await old.start()
    assert isinstance(old.store, RaftStore)
    await old.stop()
    old.settings = of_one
    await old.start()
    assert isinstance(old.store, RaftStore), "it stays what it has become"
    await old.stop()
    old.settings = settings(tmp_path, [])
    with pytest.raises(InvalidRequest, match="holds the metadata of a broker of a cluster"):
        await old.start()
