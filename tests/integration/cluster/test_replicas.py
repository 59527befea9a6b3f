"""Copies of topics in several journals: how many there are, and what they are good for."""

import shutil

import pytest

from pydanube import connect
from pydanube.cluster.mirrors.calls import (
    APPEND,
    FENCE,
    AppendCall,
    Envelope,
    FenceCall,
)
from pydanube.metadata.raft_calls import encode
from pydanube.model.ids import BrokerId
from pydanube.wire.calls import CallRefused, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import PyDanube_pb2 as own
from pydanube.wire.http2.channel import Http2Channel
from tests.support.broker_cluster import BrokerCluster

TOPIC = "/default/orders"


def members(cluster: BrokerCluster) -> tuple[BrokerId, ...]:
    """Return who keeps copies, as recorded; a busy machine may change the owner at any time."""
    running = next(each for each in cluster.brokers if each.is_running)
    replicas = running.clustering.directory.view.replicas.get(TOPIC)
    return replicas.members if replicas is not None else ()


@pytest.mark.parametrize("etcd_url", ["raft"], indirect=True)
async def test_a_topic_gets_as_many_copies_as_it_is_told_to_have(cluster: BrokerCluster) -> None:
    async with connect(cluster.brokers[0].url) as client, client.producer(TOPIC) as producer:
        await producer.send(b"0")
        owner = await cluster.owned(TOPIC)
        await cluster.until(lambda: len(members(cluster)) == 2)
        await cluster.client(owner).call(
            services.SET_REPLICAS, own.SetReplicasRequest(topic=TOPIC, replicas=3)
        )
        await cluster.until(lambda: len(members(cluster)) == 3)
        await producer.send(b"1")
        await cluster.client(owner).call(
            services.SET_REPLICAS, own.SetReplicasRequest(topic=TOPIC, replicas=1)
        )
        await cluster.until(lambda: len(members(cluster)) == 1)
        assert (await producer.send(b"2")).offset == 2


@pytest.mark.parametrize("etcd_url", ["raft"], indirect=True)
async def test_a_topic_in_use_gets_its_first_copies_and_survives_its_owner(
    cluster: BrokerCluster,
) -> None:
    admin = cluster.client(cluster.brokers[0])
    await admin.call(services.SET_REPLICAS, own.SetReplicasRequest(namespace="default", replicas=1))
    urls = ",".join(broker.url for broker in cluster.brokers)
    async with connect(urls) as client, client.producer(TOPIC) as producer:
        await producer.send(b"0")
        owner = await cluster.owned(TOPIC)
        assert members(cluster) == (owner.id,)
        epoch = owner.clustering.directory.view.owners[TOPIC].epoch
        await admin.call(
            services.SET_REPLICAS, own.SetReplicasRequest(namespace="default", replicas=2)
        )
        for number in range(1, 20):
            assert (await producer.send(b"%d" % number)).offset == number
        await cluster.until(lambda: len(members(cluster)) == 2)
        assert owner.clustering.directory.view.owners[TOPIC].epoch == epoch
        await owner.vanish()
        shutil.rmtree(owner.directory)
        assert (await producer.send(b"20")).offset == 20
        table = await client.reader(TOPIC).to_arrow()
    assert table["payload"].to_pylist() == [b"%d" % number for number in range(21)]


async def test_an_owner_that_is_lost_with_its_disk_is_followed_by_a_mirror(
    cluster: BrokerCluster,
) -> None:
    async with connect(cluster.brokers[0].url) as client, client.producer(TOPIC) as producer:
        for number in range(20):
            await producer.send(b"%d" % number)
    owner = await cluster.owned(TOPIC)
    await owner.vanish()
    shutil.rmtree(owner.directory)
    heir = await cluster.owned(TOPIC)
    async with connect(heir.url) as client:
        table = await client.reader(TOPIC).to_arrow()
    assert table["payload"].to_pylist() == [b"%d" % number for number in range(20)]
    # There is one broker more, and it takes the place of the one that is gone.
    await cluster.until(lambda: len(members(cluster)) == 2)


async def test_a_mirror_that_vanishes_is_replaced_while_producers_go_on(
    cluster: BrokerCluster,
) -> None:
    async with connect(cluster.brokers[0].url) as client, client.producer(TOPIC) as producer:
        await producer.send(b"0")
    owner = await cluster.owned(TOPIC)
    async with connect(owner.url) as client, client.producer(TOPIC) as producer:
        await cluster.until(lambda: len(members(cluster)) == 2)
        (gone,) = [each for each in cluster.brokers if each.id == members(cluster)[1]]
        gone_id = gone.id
        await gone.vanish()
        assert (await producer.send(b"1")).offset == 1
        await cluster.until(lambda: len(members(cluster)) == 2 and gone_id not in members(cluster))


async def test_a_mirror_that_stops_in_order_is_relieved_first(cluster: BrokerCluster) -> None:
    async with connect(cluster.brokers[0].url) as client, client.producer(TOPIC) as producer:
        await producer.send(b"0")
    owner = await cluster.owned(TOPIC)
    async with connect(owner.url) as client, client.producer(TOPIC) as producer:
        await cluster.until(lambda: len(members(cluster)) == 2)
        (mirror,) = [each for each in cluster.brokers if each.id == members(cluster)[1]]
        mirror_id = mirror.id
        await mirror.stop()
        await cluster.until(
            lambda: len(members(cluster)) == 2 and mirror_id not in members(cluster)
        )
        assert (await producer.send(b"1")).offset == 1


@pytest.mark.parametrize(
    ("cluster_name", "meant_for_another", "said"),
    [("OTHER", False, "belongs to cluster TEST"), ("TEST", True, "not")],
)
async def test_brokers_of_other_clusters_and_wrong_addresses_are_refused(
    cluster: BrokerCluster, cluster_name: str, *, meant_for_another: bool, said: str
) -> None:
    broker = cluster.brokers[0]
    to = BrokerId(broker.id + 1) if meant_for_another else broker.id
    envelope = Envelope(cluster_name, 99, to)
    channel = Http2Channel(broker.peer_address)
    try:
        for path, call in (
            (APPEND, AppendCall(envelope, [])),
            (FENCE, FenceCall(envelope, 1, 5, [])),
        ):
            with pytest.raises(CallRefused, match=said) as refused:
                await channel.unary(path, encode(call), timeout_seconds=10.0)
            assert refused.value.code == StatusCode.FAILED_PRECONDITION
    finally:
        await channel.close()
