"""An answer means that the next call works, at whatever broker it is made."""

from collections.abc import Awaitable, Callable

import pytest

from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.generated import SchemaRegistry_pb2 as schema
from tests.support.broker_cluster import BrokerCluster
from tests.support.raw_client import RawClient

TOPIC = "/default/orders"
ROUNDS = 6


async def set_failure_policy(client: RawClient, topic: str) -> None:
    await client.set_failure_policy(topic, max_redelivery_count=2)


async def list_subscriptions(client: RawClient, topic: str) -> None:
    assert await client.subscriptions(topic) == []


async def get_schema_config(client: RawClient, topic: str) -> None:
    request = schema.GetTopicSchemaConfigRequest(topic_name=topic)
    await client.call(services.GET_TOPIC_SCHEMA_CONFIG, request)


async def configure_schema(client: RawClient, topic: str) -> None:
    """The subject is registered here, and the topic's owner must know it at once."""
    subject = topic.rpartition("/")[2]
    new = schema.RegisterSchemaRequest(
        subject=subject, schema_type="string", schema_definition=b"", created_by="test"
    )
    await client.call(services.REGISTER_SCHEMA, new)
    request = schema.ConfigureTopicSchemaRequest(
        topic_name=topic, schema_subject=subject, validation_policy="warn"
    )
    await client.call(services.CONFIGURE_TOPIC_SCHEMA, request)


async def describe(client: RawClient, topic: str) -> None:
    described = await client.call(services.DESCRIBE_TOPIC, admin.DescribeTopicRequest(name=topic))
    assert described.delivery == "Reliable"
    assert described.broker_id


async def look_up(client: RawClient, topic: str) -> None:
    assert (await client.lookup(topic)).broker_url


async def name_partitions(client: RawClient, topic: str) -> None:
    assert await client.partitions(topic) == [topic]


async def delete(client: RawClient, topic: str) -> None:
    await client.delete_topic(topic)


CALLS: list[Callable[[RawClient, str], Awaitable[None]]] = [
    set_failure_policy,
    list_subscriptions,
    get_schema_config,
    configure_schema,
    describe,
    look_up,
    name_partitions,
    delete,
]


@pytest.mark.parametrize("call", CALLS)
async def test_a_topic_that_was_created_takes_the_next_call_at_any_broker(
    cluster: BrokerCluster, call: Callable[[RawClient, str], Awaitable[None]]
) -> None:
    clients = [cluster.client(each) for each in cluster.brokers]
    for number in range(ROUNDS):
        creating, asked = clients[number % 3], clients[(number // 3 + number) % 3]
        await creating.create_topic(f"{TOPIC}-{number}")
        await call(asked, f"{TOPIC}-{number}")


async def test_all_partitions_take_the_next_call_at_any_broker(cluster: BrokerCluster) -> None:
    clients = [cluster.client(each) for each in cluster.brokers]
    for number in range(ROUNDS):
        base = f"{TOPIC}-{number}"
        await clients[number % 3].create_partitioned(base, 4)
        asked = clients[(number // 3 + number) % 3]
        assert len(await asked.partitions(base)) == 4
        for index in range(4):
            await set_failure_policy(asked, f"{base}-part-{index}")


async def test_a_topic_that_moved_takes_the_next_call_at_any_broker(
    cluster: BrokerCluster,
) -> None:
    clients = [cluster.client(each) for each in cluster.brokers]
    await clients[0].create_topic(TOPIC)
    for number in range(ROUNDS):
        await clients[number % 3].call(services.UNLOAD_TOPIC, admin.TopicRequest(name=TOPIC))
        asked = clients[(number // 3 + number) % 3]
        await set_failure_policy(asked, TOPIC)
        # Producers and consumers are sent to the owner, who takes them.
        place = await asked.lookup(TOPIC)
        owner = next(each for each in cluster.brokers if each.url == place.broker_url)
        await cluster.client(owner).create_producer(TOPIC)
        await cluster.client(owner).subscribe(TOPIC, f"s{number}")


async def test_a_namespace_that_was_created_takes_topics_at_any_broker(
    cluster: BrokerCluster,
) -> None:
    clients = [cluster.client(each) for each in cluster.brokers]
    for number in range(ROUNDS):
        name = f"space{number}"
        request = admin.NamespaceRequest(name=name)
        await clients[number % 3].call(services.CREATE_NAMESPACE, request)
        asked = clients[(number + 1) % 3]
        await asked.call(services.GET_NAMESPACE_POLICIES, request)
        await asked.create_topic(f"/{name}/orders")
