"""With `storage.mode: local` a reliable topic stays where its history is, whoever asks."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pydanube import connect
from pydanube.balance.decisions import Move
from pydanube.wire.calls import StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from tests.support.broker_cluster import BrokerCluster, ClusterBroker

TOPIC = "/default/orders"
BEST_EFFORT = "/default/prices"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    cluster = BrokerCluster(tmp_path, 2, {"storage.mode": "local", "storage.durable.root": None})
    try:
        await cluster.start()
        async with connect(cluster.brokers[0].url) as client:
            async with client.producer(TOPIC) as producer:
                await producer.send(b"kept")
            async with client.producer(BEST_EFFORT, reliable=False) as producer:
                await producer.send(b"gone")
        yield cluster
    finally:
        await cluster.close()


async def _is_readable(cluster: BrokerCluster, owner: ClusterBroker) -> bool:
    assert await cluster.owned(TOPIC) is owner
    async with connect(cluster.brokers[0].url) as client:
        table = await client.reader(TOPIC).to_arrow()
    return table["payload"].to_pylist() == [b"kept"]


async def test_a_topic_is_not_unloaded_from_its_history(cluster: BrokerCluster) -> None:
    owner = await cluster.owned(TOPIC)
    for broker in cluster.brokers:
        refused = await cluster.client(broker).status(
            services.UNLOAD_TOPIC, admin.TopicRequest(name=TOPIC)
        )
        assert refused == StatusCode.FAILED_PRECONDITION
    assert await _is_readable(cluster, owner)


async def test_a_topic_without_history_is_unloaded(cluster: BrokerCluster) -> None:
    owner = await cluster.owned(BEST_EFFORT)
    client = cluster.client(cluster.brokers[0])
    await client.call(services.UNLOAD_TOPIC, admin.TopicRequest(name=BEST_EFFORT))
    assert await cluster.owned(BEST_EFFORT) is not owner


async def test_balancing_moves_no_history(cluster: BrokerCluster) -> None:
    owner = await cluster.owned(TOPIC)
    other = next(each for each in cluster.brokers if each is not owner)
    leading = (await cluster.leading()).clustering
    assert leading.balancing is not None
    move = Move(topic=TOPIC, source=owner.id, target=other.id, reason="test", estimated_load=1.0)
    failure = await leading.balancing._move(move)
    assert failure is not None
    assert "storage.mode" in failure
    assert await _is_readable(cluster, owner)
