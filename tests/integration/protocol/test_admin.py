"""Protocol 5: the admin services of a broker that stands alone."""

import json

import pytest

from pydanube.wire.calls import CallRefused, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from tests.integration.protocol.conftest import StartBroker
from tests.support.raw_client import KEY_SHARED, SHARED, RawClient
from tests.support.running_broker import RunningBroker

TOPIC = "/default/orders"

POLICY_FIELDS = [
    "max_producers_per_topic",
    "max_subscriptions_per_topic",
    "max_consumers_per_topic",
    "max_consumers_per_subscription",
    "max_publish_rate",
    "max_subscription_dispatch_rate",
    "max_message_size",
]


def namespace(name: str) -> admin.NamespaceRequest:
    return admin.NamespaceRequest(name=name)


def subscription(name: str = "s", topic: str = TOPIC) -> admin.SubscriptionRequest:
    return admin.SubscriptionRequest(topic=topic, subscription=name)


# Namespaces.


async def test_a_namespace_is_created_listed_used_emptied_and_deleted(
    broker: RunningBroker, client: RawClient
) -> None:
    assert (await client.call(services.CREATE_NAMESPACE, namespace("shop"))).success
    names = (await client.call(services.LIST_NAMESPACES, admin.Empty())).namespaces
    assert list(names) == ["default", "shop", "system"]
    await client.create_producer("/shop/orders")
    refused = await broker.refusal(client, services.DELETE_NAMESPACE, namespace("shop"))
    assert refused.code is StatusCode.FAILED_PRECONDITION
    assert "topics" in refused.text
    await client.delete_topic("/shop/orders")
    assert (await client.call(services.DELETE_NAMESPACE, namespace("shop"))).success
    names = (await client.call(services.LIST_NAMESPACES, admin.Empty())).namespaces
    assert list(names) == ["default", "system"]


@pytest.mark.parametrize(
    ("method", "name", "code"),
    [
        (services.CREATE_NAMESPACE, "default", StatusCode.ALREADY_EXISTS),
        (services.CREATE_NAMESPACE, "", StatusCode.INVALID_ARGUMENT),
        (services.CREATE_NAMESPACE, "a/b", StatusCode.INVALID_ARGUMENT),
        (services.CREATE_NAMESPACE, "x" * 257, StatusCode.INVALID_ARGUMENT),
        (services.DELETE_NAMESPACE, "nowhere", StatusCode.NOT_FOUND),
        (services.DELETE_NAMESPACE, "a/b", StatusCode.INVALID_ARGUMENT),
        (services.DELETE_NAMESPACE, "default", StatusCode.FAILED_PRECONDITION),
        (services.DELETE_NAMESPACE, "system", StatusCode.FAILED_PRECONDITION),
        (services.GET_NAMESPACE_POLICIES, "nowhere", StatusCode.NOT_FOUND),
        (services.GET_NAMESPACE_TOPICS, "nowhere", StatusCode.NOT_FOUND),
        (services.LIST_NAMESPACE_TOPICS, "nowhere", StatusCode.NOT_FOUND),
        # A part of a key that exists for another reason is no namespace.
        (services.GET_NAMESPACE_POLICIES, "default/topics/default", StatusCode.INVALID_ARGUMENT),
        (services.GET_NAMESPACE_TOPICS, "default/topics/default", StatusCode.INVALID_ARGUMENT),
        (services.LIST_NAMESPACE_TOPICS, "default/topics/default", StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_what_is_wrong_with_a_namespace_has_its_own_code(
    broker: RunningBroker,
    client: RawClient,
    method: services.Method,
    name: str,
    code: StatusCode,
) -> None:
    await client.create_producer("/default/policy")
    refused = await broker.refusal(client, method, namespace(name))
    assert refused.code is code
    assert refused.text


async def test_policies_are_json_with_all_seven_fields_and_0_for_unlimited(
    start_broker: StartBroker,
) -> None:
    client = (await start_broker(max_publish_rate=70)).client()
    await client.call(services.CREATE_NAMESPACE, namespace("shop"))
    for name in ("default", "shop"):
        answer = await client.call(services.GET_NAMESPACE_POLICIES, namespace(name))
        policies = json.loads(answer.policies)
        assert sorted(policies) == sorted(POLICY_FIELDS)
        assert policies["max_publish_rate"] == 70
        assert policies["max_producers_per_topic"] == 0
        assert policies["max_message_size"] == 4_128_768


async def test_topics_are_listed_with_and_without_the_leading_slash(client: RawClient) -> None:
    await client.create_producer("/default/b")
    await client.create_producer("/default/a", reliable=False)
    await client.call(services.CREATE_NAMESPACE, namespace("shop"))
    await client.create_producer("/shop/other")
    broker_id = (await client.call(services.GET_LEADER_BROKER, admin.Empty())).leader
    plain = await client.call(services.GET_NAMESPACE_TOPICS, namespace("default"))
    assert list(plain.topics) == ["default/a", "default/b"]
    infos = await client.call(services.LIST_NAMESPACE_TOPICS, namespace("default"))
    assert [(each.name, each.broker_id, each.delivery) for each in infos.topics] == [
        ("/default/a", broker_id, "NonReliable"),
        ("/default/b", broker_id, "Reliable"),
    ]
    every = await client.call(services.LIST_BROKER_TOPICS, admin.BrokerRequest(broker_id=broker_id))
    assert [each.name for each in every.topics] == ["/default/a", "/default/b", "/shop/other"]


# Topics.


async def test_creating_a_topic_twice_is_already_exists(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_topic(TOPIC)
    request = admin.NewTopicRequest(name=TOPIC)
    refused = await broker.refusal(client, services.CREATE_TOPIC, request)
    assert refused.code is StatusCode.ALREADY_EXISTS


@pytest.mark.parametrize(
    "request_",
    [
        admin.PartitionedTopicRequest(base_name=TOPIC, partitions=0),
        admin.PartitionedTopicRequest(base_name=TOPIC, partitions=1001),
        admin.PartitionedTopicRequest(base_name=TOPIC, partitions=2**32 - 1),
        admin.PartitionedTopicRequest(base_name=f"{TOPIC}-part-1", partitions=2),
    ],
)
async def test_a_number_of_partitions_that_makes_no_sense_is_an_invalid_argument(
    broker: RunningBroker, client: RawClient, request_: admin.PartitionedTopicRequest
) -> None:
    refused = await broker.refusal(client, services.CREATE_PARTITIONED_TOPIC, request_)
    assert refused.code is StatusCode.INVALID_ARGUMENT


async def test_partitions_are_all_created_or_none(broker: RunningBroker, client: RawClient) -> None:
    await client.create_producer(f"{TOPIC}-part-2")
    request = admin.PartitionedTopicRequest(base_name=TOPIC, partitions=4)
    refused = await broker.refusal(client, services.CREATE_PARTITIONED_TOPIC, request)
    assert refused.code is StatusCode.ALREADY_EXISTS


@pytest.mark.parametrize("field", ["dispatch_strategy", "durability"])
async def test_unknown_values_create_no_topic(
    broker: RunningBroker, client: RawClient, field: str
) -> None:
    value = 7 if field == "dispatch_strategy" else "wishful"
    for request, method in [
        (admin.NewTopicRequest(name=TOPIC, **{field: value}), services.CREATE_TOPIC),
        (
            admin.PartitionedTopicRequest(base_name=TOPIC, partitions=2, **{field: value}),
            services.CREATE_PARTITIONED_TOPIC,
        ),
    ]:
        refused = await broker.refusal(client, method, request)
        assert refused.code is StatusCode.INVALID_ARGUMENT


async def test_deleting_deletes_the_topic_and_nothing_whose_name_begins_alike(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_producer(TOPIC)
    await client.subscribe(TOPIC)
    await client.set_failure_policy(TOPIC)
    others = [f"{TOPIC}2", f"{TOPIC}-2", f"{TOPIC}x-part-0"]
    for other in others:
        await client.create_producer(other)
        await client.subscribe(other)
    await client.delete_topic(TOPIC)
    for other in others:
        assert await client.subscriptions(other) == ["s"]
    left = [key for key in broker.metadata() if TOPIC in key]
    assert all(any(other in key for other in others) for key in left)


async def test_deleting_a_partitioned_topic_deletes_all_its_partitions(client: RawClient) -> None:
    await client.create_partitioned(TOPIC, 3)
    await client.create_partitioned(f"{TOPIC}2", 2)
    await client.delete_topic(TOPIC)
    assert await client.partitions(TOPIC) == []
    assert len(await client.partitions(f"{TOPIC}2")) == 2
    await client.create_producer(TOPIC)


async def test_a_single_partition_cannot_be_deleted(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_partitioned(TOPIC, 2)
    request = admin.TopicRequest(name=f"{TOPIC}-part-1")
    refused = await broker.refusal(client, services.DELETE_TOPIC, request)
    assert refused.code is StatusCode.NOT_FOUND
    assert "Cannot delete individual partition" in refused.text


@pytest.mark.parametrize("name", ["/default/nowhere", "/nowhere/orders", "/default/x-part-3"])
async def test_deleting_what_is_not_there_is_not_found(
    broker: RunningBroker, client: RawClient, name: str
) -> None:
    refused = await broker.refusal(client, services.DELETE_TOPIC, admin.TopicRequest(name=name))
    assert refused.code is StatusCode.NOT_FOUND


async def test_a_topic_created_again_begins_at_0_and_knows_nobody(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC)
    await client.consume(TOPIC)
    await client.send_many(TOPIC, producer, [b"old"] * 3)
    await client.delete_topic(TOPIC)
    producer = await client.create_producer(TOPIC)
    assert await client.subscriptions(TOPIC) == []
    assert await client.send(TOPIC, producer, b"new") == 0
    stream = await client.consume(TOPIC, start_position="earliest")
    assert [message.payload for message in await stream.rest()] == [b"new"]
    await broker.restart()
    client = broker.client()
    assert await client.subscriptions(TOPIC) == ["s"]
    assert await client.send(TOPIC, producer) == 1


async def test_describing_a_topic_tells_its_subscriptions_once_and_its_delivery(
    client: RawClient,
) -> None:
    await client.create_producer(TOPIC)
    for name in ("s2", "s1", "s2"):
        await client.subscribe(TOPIC, name, f"c-{name}", SHARED)
    answer = await client.call(services.DESCRIBE_TOPIC, admin.DescribeTopicRequest(name=TOPIC))
    assert answer.name == TOPIC
    assert list(answer.subscriptions) == ["s1", "s2"]
    assert answer.delivery == "Reliable"
    assert answer.broker_id == (await client.call(services.GET_LEADER_BROKER, admin.Empty())).leader
    for field in ("schema_subject", "schema_id", "schema_version", "schema_type"):
        assert not answer.HasField(field)


@pytest.mark.parametrize(
    "name",
    ["/default/nowhere", "/nowhere/x", "", "no name", pytest.param("x" * 5000, id="without end")],
)
async def test_describing_never_fails(client: RawClient, name: str) -> None:
    answer = await client.call(services.DESCRIBE_TOPIC, admin.DescribeTopicRequest(name=name))
    assert (answer.name, list(answer.subscriptions), answer.delivery) == (name, [], "NonReliable")


# Subscriptions.


async def test_unsubscribing_is_refused_while_a_consumer_lives_and_final_afterwards(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC)
    refused = await broker.refusal(client, services.UNSUBSCRIBE, subscription())
    assert refused.code is StatusCode.FAILED_PRECONDITION
    assert "consumers" in refused.text
    await client.send(TOPIC, producer, b"unacked")
    await stream.next()
    await client.drop(stream)
    await client.call(services.UNSUBSCRIBE, subscription())
    assert await client.subscriptions(TOPIC) == []
    assert await (await client.consume(TOPIC)).rest() == [], "the new one starts at the tail"


@pytest.mark.parametrize(
    ("topic", "name"), [(TOPIC, "never"), ("/default/nowhere", "s"), (TOPIC, "")]
)
async def test_unsubscribing_what_is_not_there_is_not_found(
    broker: RunningBroker, client: RawClient, topic: str, name: str
) -> None:
    await client.create_producer(TOPIC)
    refused = await broker.refusal(client, services.UNSUBSCRIBE, subscription(name, topic))
    assert refused.code is StatusCode.NOT_FOUND


async def test_subscriptions_of_an_unknown_topic_are_not_found(
    broker: RunningBroker, client: RawClient
) -> None:
    request = admin.TopicRequest(name="/default/nowhere")
    refused = await broker.refusal(client, services.LIST_SUBSCRIPTIONS, request)
    assert refused.code is StatusCode.NOT_FOUND


@pytest.mark.parametrize("window", [0, 10_001, 2**32 - 1])
async def test_a_window_outside_1_to_10000_is_an_invalid_argument(
    broker: RunningBroker, client: RawClient, window: int
) -> None:
    await client.create_producer(TOPIC)
    request = admin.SetSubscriptionDispatchConfigRequest(
        topic=TOPIC,
        subscription="s",
        dispatch_config=admin.SubscriptionDispatchConfig(max_unacked_messages=window),
    )
    refused = await broker.refusal(client, services.SET_SUBSCRIPTION_DISPATCH_CONFIG, request)
    assert refused.code is StatusCode.INVALID_ARGUMENT
    request.ClearField("dispatch_config")
    refused = await broker.refusal(client, services.SET_SUBSCRIPTION_DISPATCH_CONFIG, request)
    assert refused.code is StatusCode.INVALID_ARGUMENT


async def test_a_window_is_returned_as_it_is_in_force_set_or_not(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_producer(TOPIC)
    request = admin.GetSubscriptionDispatchConfigRequest(topic=TOPIC, subscription="s")
    answer = await client.call(services.GET_SUBSCRIPTION_DISPATCH_CONFIG, request)
    assert answer.dispatch_config.max_unacked_messages == 10, "the broker's"
    for window in (1, 10_000):
        await client.set_window(TOPIC, window)
    await client.subscribe(TOPIC, kind=KEY_SHARED)
    await broker.restart()
    answer = await broker.client().call(services.GET_SUBSCRIPTION_DISPATCH_CONFIG, request)
    assert answer.dispatch_config.max_unacked_messages == 10_000


# Brokers.


async def test_the_broker_lists_itself_as_leader_with_addresses_that_work(
    broker: RunningBroker, client: RawClient
) -> None:
    (info,) = (await client.call(services.LIST_BROKERS, admin.Empty())).brokers
    server = broker.server
    assert info.broker_addr == f"http://127.0.0.1:{server.client_port}"
    assert info.admin_addr == f"http://127.0.0.1:{server.admin_port}"
    assert info.metrics_addr == f"127.0.0.1:{server.metrics_port}"
    assert (info.broker_role, info.broker_status) == ("Cluster_Leader", "active")
    assert info.broker_id == (await client.call(services.GET_LEADER_BROKER, admin.Empty())).leader
    await broker.restart()
    (again,) = (await broker.client().call(services.LIST_BROKERS, admin.Empty())).brokers
    assert again.broker_id == info.broker_id, "its number is its own for ever"


async def test_moving_topics_needs_a_second_broker(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_producer(TOPIC)
    for method, request in [
        (services.UNLOAD_TOPIC, admin.TopicRequest(name=TOPIC)),
        (services.UNLOAD_BROKER, admin.UnloadBrokerRequest()),
    ]:
        refused = await broker.refusal(client, method, request)
        assert refused.code is StatusCode.UNIMPLEMENTED
        assert "second broker" in refused.text


async def test_an_unknown_broker_is_not_found(broker: RunningBroker, client: RawClient) -> None:
    for method, request in [
        (services.LIST_BROKER_TOPICS, admin.BrokerRequest(broker_id="7")),
        (services.ACTIVATE_BROKER, admin.ActivateBrokerRequest(broker_id="7")),
    ]:
        refused = await broker.refusal(client, method, request)
        assert refused.code is StatusCode.NOT_FOUND


async def test_activating_this_broker_and_asking_for_its_balance_agree_with_one_broker(
    client: RawClient,
) -> None:
    leader = (await client.call(services.GET_LEADER_BROKER, admin.Empty())).leader
    activated = await client.call(
        services.ACTIVATE_BROKER, admin.ActivateBrokerRequest(broker_id=leader)
    )
    assert activated.success
    await client.create_producer(TOPIC)
    balance = await client.call(services.GET_CLUSTER_BALANCE, admin.ClusterBalanceRequest())
    assert (balance.broker_count, balance.coefficient_of_variation) == (1, 0.0)
    assert [each.topic_count for each in balance.brokers] == [1]
    rebalance = await client.call(services.TRIGGER_REBALANCE, admin.RebalanceRequest())
    assert not rebalance.success
    assert "second broker" in rebalance.error_message
    tried = await client.call(services.TRIGGER_REBALANCE, admin.RebalanceRequest(dry_run=True))
    assert (tried.success, list(tried.proposed_moves), tried.error_message) == (True, [], "")
    assert "second broker" in tried.note


# What this version does not offer.

UNSERVED = [
    method
    for method in services.METHODS.values()
    if method.service
    in (
        services.CLUSTER_ADMIN,
        services.SECURITY_ADMIN,
        services.EDGE_REPLICATOR_SERVICE,
    )
]


async def test_every_method_that_is_not_offered_is_unimplemented_and_says_so(
    client: RawClient,
) -> None:
    for method in UNSERVED:
        on_admin = method.service.startswith("danube_admin.")
        with pytest.raises(CallRefused) as refused:
            await client.raw(method.path, b"", on_admin=on_admin)
        assert refused.value.code is StatusCode.UNIMPLEMENTED, method.path
        assert method.path in refused.value.text or method.request_stream


async def test_the_legacy_key_exchange_hands_the_key_back(client: RawClient) -> None:
    request = services.AUTHENTICATE.request(api_key="a.jwt.token")
    assert (await client.call(services.AUTHENTICATE, request)).token == "a.jwt.token"
