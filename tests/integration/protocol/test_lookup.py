"""Protocol 3.1 and 3.2: lookup, names, automatic creation, partitions."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pydanube.wire.calls import CallRefused, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from tests.support.raw_client import RawClient, consumer_request, producer_request
from tests.support.running_broker import RunningBroker

TOPIC = "/default/orders"
BAD_NAMES = [
    "",
    "/",
    "orders",
    "default/orders",
    "x/default/orders",
    "//orders",
    "/default/",
    "/default/orders/more",
    "/default/or.ders",
    "/default/or:ders",
    "/default/or ders",
    "/default/or\x00ders",
    "/def*ault/orders",
    "/default/" + "x" * 300,
]


def lookup_request(topic: str) -> api.TopicLookupRequest:
    return api.TopicLookupRequest(request_id=5, topic=topic)


async def test_a_topic_of_this_broker_is_answered_with_connect(client: RawClient) -> None:
    await client.create_producer(TOPIC)
    answer = await client.lookup(TOPIC)
    assert answer.response_type == api.TopicLookupResponse.Connect
    assert answer.request_id == 5
    assert answer.broker_url == answer.connect_url
    assert answer.proxy is False


async def test_advertised_urls_have_a_scheme_a_real_host_and_the_port_in_use(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_producer(TOPIC)
    url = urlsplit((await client.lookup(TOPIC)).connect_url)
    assert (url.scheme, url.hostname) == ("http", "127.0.0.1")
    assert url.port == broker.server.client_port


async def test_a_proxy_before_the_broker_is_told_apart(tmp_path: Path) -> None:
    listeners = "broker.advertised_listeners"
    urls = {
        f"{listeners}.broker_url": "http://broker-1:6650",
        f"{listeners}.connect_url": "http://proxy:7000",
    }
    broker = RunningBroker(tmp_path, urls)
    await broker.start()
    try:
        client = broker.client()
        await client.create_producer(TOPIC)
        answer = await client.lookup(TOPIC)
        assert (answer.broker_url, answer.connect_url) == (
            "http://broker-1:6650",
            "http://proxy:7000",
        )
        assert answer.proxy is True
    finally:
        await broker.close()


async def test_an_unknown_topic_is_not_found(broker: RunningBroker, client: RawClient) -> None:
    refused = await broker.refusal(client, services.TOPIC_LOOKUP, lookup_request(TOPIC))
    assert refused.code is StatusCode.NOT_FOUND
    assert "not exist" in refused.text


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_a_malformed_name_is_an_invalid_argument_everywhere(
    broker: RunningBroker, client: RawClient, name: str
) -> None:
    requests = [
        (services.TOPIC_LOOKUP, lookup_request(name)),
        (services.TOPIC_PARTITIONS, lookup_request(name)),
        (services.CREATE_PRODUCER, producer_request(name)),
        (services.SUBSCRIBE, consumer_request(name)),
        (services.CREATE_TOPIC, admin.NewTopicRequest(name=name)),
        (services.CREATE_PARTITIONED_TOPIC, admin.PartitionedTopicRequest(base_name=name)),
        (services.DELETE_TOPIC, admin.TopicRequest(name=name)),
        (services.LIST_SUBSCRIPTIONS, admin.TopicRequest(name=name)),
        (services.UNSUBSCRIBE, admin.SubscriptionRequest(topic=name, subscription="s")),
    ]
    for method, request in requests:
        refused = await broker.refusal(client, method, request)
        assert refused.code is StatusCode.INVALID_ARGUMENT, method.name


@pytest.mark.parametrize(
    "name", ["/default/größe", "/default/注文", "/default/A-b_9", "/default/7"]
)
async def test_letters_of_every_script_digits_underscore_and_dash_make_a_name(
    client: RawClient, name: str
) -> None:
    await client.create_producer(name)
    assert await client.partitions(name) == [name]


# Automatic creation.


async def test_create_producer_creates_and_serves_the_topic_in_the_same_call(
    client: RawClient,
) -> None:
    producer = await client.create_producer(TOPIC)
    assert await client.send(TOPIC, producer) == 0


async def test_subscribing_never_creates_a_topic(broker: RunningBroker, client: RawClient) -> None:
    refused = await broker.refusal(client, services.SUBSCRIBE, consumer_request(TOPIC))
    assert refused.code is StatusCode.NOT_FOUND


async def test_a_missing_namespace_is_not_found_and_not_retried(
    broker: RunningBroker, client: RawClient
) -> None:
    for method, request in [
        (services.CREATE_PRODUCER, producer_request("/nowhere/orders")),
        (services.CREATE_TOPIC, admin.NewTopicRequest(name="/nowhere/orders")),
        (
            services.CREATE_PARTITIONED_TOPIC,
            admin.PartitionedTopicRequest(base_name="/nowhere/orders", partitions=2),
        ),
    ]:
        refused = await broker.refusal(client, method, request)
        assert refused.code is StatusCode.NOT_FOUND, method.name
        assert "namespace nowhere" in refused.text


async def test_without_auto_create_a_producer_creates_nothing(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path, {"auto_create_topics": False})
    await broker.start()
    try:
        client = broker.client()
        refused = await broker.refusal(client, services.CREATE_PRODUCER, producer_request(TOPIC))
        assert refused.code is StatusCode.NOT_FOUND
        assert "auto_create_topics" in refused.text
        await client.create_topic(TOPIC)
        await client.create_producer(TOPIC)
    finally:
        await broker.close()


async def test_default_and_system_always_exist(client: RawClient) -> None:
    namespaces = (await client.call(services.LIST_NAMESPACES, admin.Empty())).namespaces
    assert list(namespaces) == ["default", "system"]


async def test_namespaces_of_the_configuration_exist_from_the_start(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path, {"bootstrap_namespaces": ["shop", "default"]})
    await broker.start()
    try:
        client = broker.client()
        await client.create_producer("/shop/orders")
        namespaces = (await client.call(services.LIST_NAMESPACES, admin.Empty())).namespaces
        assert list(namespaces) == ["default", "shop", "system"]
    finally:
        await broker.close()


# Partitions.


async def test_a_topic_excludes_partitions_of_its_name(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_producer(TOPIC)
    for method, request in [
        (services.CREATE_PRODUCER, producer_request(f"{TOPIC}-part-0")),
        (services.CREATE_TOPIC, admin.NewTopicRequest(name=f"{TOPIC}-part-11")),
        (
            services.CREATE_PARTITIONED_TOPIC,
            admin.PartitionedTopicRequest(base_name=TOPIC, partitions=3),
        ),
    ]:
        refused = await broker.refusal(client, method, request)
        assert refused.code is StatusCode.ALREADY_EXISTS, method.name


async def test_a_partition_excludes_a_topic_of_its_base_name(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_producer(f"{TOPIC}-part-7")
    for method, request in [
        (services.CREATE_PRODUCER, producer_request(TOPIC)),
        (services.CREATE_TOPIC, admin.NewTopicRequest(name=TOPIC)),
    ]:
        refused = await broker.refusal(client, method, request)
        assert refused.code is StatusCode.ALREADY_EXISTS, method.name


@pytest.mark.parametrize(
    "other", ["_other", "s", "-part", "-part-", "-part-x", "-part-1x", "-part-01", "-partition-1"]
)
async def test_only_the_exact_suffix_counts_as_a_partition(client: RawClient, other: str) -> None:
    await client.create_producer(TOPIC + other)
    assert await client.partitions(TOPIC) == []
    await client.create_producer(TOPIC)
    assert await client.partitions(TOPIC) == [TOPIC]


async def test_partitions_are_listed_exactly_and_in_numeric_order(client: RawClient) -> None:
    for index in (10, 2, 0, 1):
        await client.create_producer(f"{TOPIC}-part-{index}")
    await client.create_producer(f"{TOPIC}_other")
    await client.create_producer(f"{TOPIC}2-part-5")
    assert await client.partitions(TOPIC) == [f"{TOPIC}-part-{index}" for index in (0, 1, 2, 10)]


async def test_no_partitions_is_an_empty_list_and_no_error(client: RawClient) -> None:
    assert await client.partitions("/default/nothing") == []


async def test_a_topic_and_its_longer_namesake_are_two(client: RawClient) -> None:
    await client.create_producer("/default/ab")
    with pytest.raises(CallRefused, match="NOT_FOUND"):
        await client.lookup("/default/a")
    await client.create_producer("/default/a")
    await client.delete_topic("/default/a")
    assert (await client.lookup("/default/ab")).response_type == api.TopicLookupResponse.Connect


async def test_topics_and_partitions_are_served_at_once_after_a_restart(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_partitioned(TOPIC, 3)
    await broker.restart()
    client = broker.client()
    names = [f"{TOPIC}-part-{index}" for index in range(3)]
    assert await client.partitions(TOPIC) == names
    refused = await broker.refusal(client, services.CREATE_PRODUCER, producer_request(TOPIC))
    assert refused.code is StatusCode.ALREADY_EXISTS
    for name in names:
        assert (await client.lookup(name)).response_type == api.TopicLookupResponse.Connect
