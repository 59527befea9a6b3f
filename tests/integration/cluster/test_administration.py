"""What operators can ask of any broker of a cluster."""

import pytest

from pydanube import connect
from pydanube.wire.calls import StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.generated import PyDanube_pb2 as own
from tests.support.broker_cluster import BrokerCluster, ClusterBroker

TOPIC = "/default/orders"


def other_than(cluster: BrokerCluster, broker: ClusterBroker) -> ClusterBroker:
    return next(each for each in cluster.brokers if each is not broker)


async def test_every_broker_lists_all_of_them_and_one_leads(cluster: BrokerCluster) -> None:
    await cluster.until(
        lambda: all(each.clustering.directory.view.leader for each in cluster.brokers)
    )
    for broker in cluster.brokers:
        client = cluster.client(broker)
        listed = (await client.call(services.LIST_BROKERS, admin.Empty())).brokers
        assert {info.broker_id for info in listed} == {str(each.id) for each in cluster.brokers}
        assert {info.broker_addr for info in listed} == {each.url for each in cluster.brokers}
        leading = [info.broker_id for info in listed if info.broker_role == "Cluster_Leader"]
        named = (await client.call(services.GET_LEADER_BROKER, admin.Empty())).leader
        assert leading == [named]


async def test_topics_are_created_on_all_brokers_and_listed_by_each(
    cluster: BrokerCluster,
) -> None:
    client = cluster.client(cluster.brokers[0])
    await client.create_partitioned(TOPIC, 6)
    names = [f"{TOPIC}-part-{number}" for number in range(6)]
    owners = {(await cluster.owned(name)).id for name in names}
    assert owners == {each.id for each in cluster.brokers}
    for broker in cluster.brokers:
        client = cluster.client(broker)
        assert await client.partitions(TOPIC) == names
        request = admin.NamespaceRequest(name="default")
        listed = await client.call(services.LIST_NAMESPACE_TOPICS, request)
        assert [info.name for info in listed.topics] == names
        of_one = await client.call(
            services.LIST_BROKER_TOPICS, admin.BrokerRequest(broker_id=str(broker.id))
        )
        assert {info.name for info in of_one.topics} < set(names)


async def test_a_topic_is_unloaded_and_deleted_through_any_broker(cluster: BrokerCluster) -> None:
    async with connect(cluster.brokers[0].url) as client, client.producer(TOPIC) as producer:
        await producer.send(b"x")
    owner = await cluster.owned(TOPIC)
    elsewhere = cluster.client(other_than(cluster, owner))
    await elsewhere.call(services.UNLOAD_TOPIC, admin.TopicRequest(name=TOPIC))
    await cluster.until(lambda: cluster.owner(TOPIC) not in (None, owner))
    now = await cluster.owned(TOPIC)
    await cluster.client(other_than(cluster, now)).delete_topic(TOPIC)
    assert cluster.owner(TOPIC) is None
    gone = await elsewhere.status(services.UNLOAD_TOPIC, admin.TopicRequest(name=TOPIC))
    assert gone == StatusCode.NOT_FOUND


async def test_a_broker_is_drained_and_activated(cluster: BrokerCluster) -> None:
    first = cluster.brokers[0]
    client = cluster.client(cluster.brokers[1])
    for number in range(9):
        await client.create_topic(f"{TOPIC}-{number}")
    await cluster.until(lambda: sum(len(each.topics) for each in cluster.brokers) == 9)
    count = len(first.topics)
    assert count == 3
    request = admin.UnloadBrokerRequest(broker_id=str(first.id), max_parallel=2)
    dry = admin.UnloadBrokerRequest(broker_id=str(first.id), dry_run=True)
    assert (await client.call(services.UNLOAD_BROKER, dry)).total == count
    assert len(first.topics) == count
    done = await client.call(services.UNLOAD_BROKER, request)
    assert (done.started, done.total, done.succeeded, done.pending) == (True, count, count, 0)
    assert len(first.topics) == 0
    view = cluster.brokers[1].clustering.directory.view
    await cluster.until(lambda: view.state(first.id).mode == "drained")
    await client.create_topic(f"{TOPIC}-later")
    await cluster.until(lambda: cluster.owner(f"{TOPIC}-later") is not None)
    assert cluster.owner(f"{TOPIC}-later") is not first
    await client.call(
        services.ACTIVATE_BROKER, admin.ActivateBrokerRequest(broker_id=str(first.id))
    )
    await cluster.until(lambda: view.state(first.id).mode == "active")
    await client.create_topic(f"{TOPIC}-last")
    await cluster.until(lambda: cluster.owner(f"{TOPIC}-last") is first)


async def test_a_broker_that_the_leader_sees_leaving_takes_topics_when_it_is_back(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has nothing to hand over: for a moment it is there, draining and empty."""
    leading = await cluster.leading()
    leaving = other_than(cluster, leading)
    broker, directory, leader = leaving.id, leading.clustering.directory, leading.clustering.leader
    assert leader is not None
    look = leader._look

    async def until_seen(_: float) -> None:
        await cluster.until(lambda: directory.view.state(broker).mode != "active")
        await look()

    monkeypatch.setattr(leaving.clustering, "_wait_until_relieved", until_seen)
    await leaving.stop()
    await leaving.start()
    await cluster.until(lambda: broker in directory.view.active())


async def test_a_broker_that_was_drained_stays_so_when_it_is_stopped_and_started(
    cluster: BrokerCluster,
) -> None:
    first, second = cluster.brokers[:2]
    request = admin.UnloadBrokerRequest(broker_id=str(first.id), max_parallel=2)
    await cluster.client(second).call(services.UNLOAD_BROKER, request)
    await first.stop()
    await first.start()
    view = second.clustering.directory
    await cluster.until(lambda: first.id in view.view.brokers)
    assert view.view.state(first.id).mode == "drained"


async def test_what_concerns_a_topic_is_asked_of_its_owner(cluster: BrokerCluster) -> None:
    await cluster.client(cluster.brokers[0]).create_partitioned(TOPIC, 3)
    for broker in cluster.brokers:
        client = cluster.client(broker)
        for number in range(3):
            name = f"{TOPIC}-part-{number}"
            owner = await cluster.owned(name)
            described = await client.call(
                services.DESCRIBE_TOPIC, admin.DescribeTopicRequest(name=name)
            )
            assert described.broker_id == str(owner.id)
    client = cluster.client(cluster.brokers[0])
    await client.call(services.SET_MESSAGE_TTL, own.SetMessageTtlRequest(topic=TOPIC, ttl_ms=5000))
    for number in range(3):
        owner = await cluster.owned(f"{TOPIC}-part-{number}")
        assert owner.topics.get(f"{TOPIC}-part-{number}").message_ttl_ms() == 5000


@pytest.mark.parametrize("etcd_url", ["raft"], indirect=True)
async def test_nodes_are_shown_as_raft_knows_them(cluster: BrokerCluster) -> None:
    client = cluster.client(cluster.brokers[0])
    status = await client.call(services.CLUSTER_STATUS, admin.Empty())
    assert sorted(status.voters) == sorted(each.id for each in cluster.brokers)
    assert status.self_node_id == cluster.brokers[0].id
    assert status.leader_id in status.voters
    refused = await client.status(services.REMOVE_NODE, admin.RemoveNodeRequest(node_id=77))
    assert refused == StatusCode.NOT_FOUND
