"""Who holds an exclusive subscription while its topic changes hands."""

import asyncio

import pytest

from pydanube.wire.calls import StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from tests.support.broker_cluster import BrokerCluster, ClusterBroker
from tests.support.raw_client import EXCLUSIVE, RawClient

TOPIC = "/default/orders"
BOTH = pytest.mark.parametrize("reliable", [True, False], ids=["reliable", "best-effort"])


def other_than(cluster: BrokerCluster, *brokers: ClusterBroker) -> ClusterBroker:
    return next(each for each in cluster.brokers if each not in brokers)


async def attempt(client: RawClient, name: str) -> StatusCode:
    request = api.ConsumerRequest(
        topic_name=TOPIC, consumer_name=name, subscription="s", subscription_type=EXCLUSIVE
    )
    return await client.status(services.SUBSCRIBE, request)


async def moved_after_its_holder_had_gone(cluster: BrokerCluster, *, reliable: bool) -> None:
    """Let a holder come and go, and move the topic; return once it is open elsewhere."""
    await cluster.client(cluster.brokers[0]).create_topic(TOPIC, reliable=reliable)
    owner = await cluster.owned(TOPIC)
    client = cluster.client(owner)
    await client.drop(await client.consume(TOPIC, name="holder"))
    subscription = owner.topics.get(TOPIC).subscriptions["s"]
    await cluster.until(lambda: subscription.rival_of("next") is None)
    await cluster.move(TOPIC, other_than(cluster, owner))


@BOTH
async def test_a_holder_that_had_gone_before_a_move_holds_nothing_after_it(
    cluster: BrokerCluster, reliable: bool
) -> None:
    await moved_after_its_holder_had_gone(cluster, reliable=reliable)
    assert await attempt(cluster.client(await cluster.owned(TOPIC)), "next") is StatusCode.OK


async def test_a_holder_that_is_there_during_a_move_is_waited_for(cluster: BrokerCluster) -> None:
    await cluster.client(cluster.brokers[0]).create_topic(TOPIC)
    owner = await cluster.owned(TOPIC)
    await cluster.client(owner).consume(TOPIC, name="holder")
    await cluster.move(TOPIC, other_than(cluster, owner))
    client = cluster.client(await cluster.owned(TOPIC))
    assert await attempt(client, "next") is StatusCode.PERMISSION_DENIED
    assert await attempt(client, "holder") is StatusCode.OK


@BOTH
async def test_what_was_handed_over_long_ago_says_nothing_of_who_holds_now(
    cluster: BrokerCluster, reliable: bool
) -> None:
    await moved_after_its_holder_had_gone(cluster, reliable=reliable)
    owner = await cluster.owned(TOPIC)
    await cluster.client(owner).consume(TOPIC, name="holder")
    # It takes its time to end its streams; the holder is waited for from the takeover on.
    vanishing = asyncio.create_task(owner.vanish())
    await cluster.until(lambda: cluster.owner(TOPIC) not in (None, owner))
    client = cluster.client(await cluster.owned(TOPIC))
    assert await attempt(client, "next") is StatusCode.PERMISSION_DENIED
    assert await attempt(client, "holder") is StatusCode.OK
    await vanishing
