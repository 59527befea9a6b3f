"""Calls that cross each other or are given up halfway leave nothing half done."""

import asyncio

import pytest

from pydanube.wire.calls import CallRefused, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from tests.integration.protocol.conftest import BOTH_ENGINES
from tests.support.raw_client import (
    SHARED,
    RawClient,
    consumer_request,
    policy_request,
    producer_request,
)
from tests.support.running_broker import RunningBroker

pytestmark = BOTH_ENGINES

TOPIC = "/default/orders"


async def give_up(call: "asyncio.Task[object]", after_seconds: float) -> None:
    await asyncio.wait([call], timeout=after_seconds)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def test_a_topic_whose_creator_went_away_can_be_created_by_the_next(
    broker: RunningBroker,
) -> None:
    for number in range(24):
        topic = f"{TOPIC}-{number}"
        hasty, patient = broker.client(), broker.client()
        await patient.partitions(topic)
        call = asyncio.create_task(hasty.create_producer(topic))
        await give_up(call, number * 0.0005)
        producer = await patient.create_producer(topic)
        assert await patient.send(topic, producer) == 0
        await hasty.close()
        await patient.close()


async def test_a_deletion_whose_caller_went_away_is_finished(broker: RunningBroker) -> None:
    for number in range(24):
        topic = f"{TOPIC}-{number}"
        hasty, patient = broker.client(), broker.client()
        await patient.create_producer(topic)
        call = asyncio.create_task(hasty.delete_topic(topic))
        await give_up(call, number * 0.0005)
        deleted = await patient.status(services.DELETE_TOPIC, admin.TopicRequest(name=topic))
        assert deleted in (StatusCode.OK, StatusCode.NOT_FOUND)
        producer = await patient.create_producer(topic)
        assert await patient.send(topic, producer) == 0, "the new topic begins anew"
        await hasty.close()
        await patient.close()


async def test_what_crosses_with_a_deletion_leaves_nothing_behind(broker: RunningBroker) -> None:
    clients = [broker.client() for _ in range(5)]
    for client in clients:
        await client.partitions(TOPIC)
    empty = broker.metadata()
    for _ in range(20):
        await clients[0].create_topic(TOPIC)
        outcomes = await asyncio.gather(
            clients[0].status(services.DELETE_TOPIC, admin.TopicRequest(name=TOPIC)),
            clients[1].status(services.SUBSCRIBE, consumer_request(TOPIC)),
            clients[2].status(services.SUBSCRIBE, consumer_request(TOPIC, kind=SHARED)),
            clients[3].status(services.SET_SUBSCRIPTION_FAILURE_POLICY, policy_request(TOPIC)),
            clients[4].status(
                services.UNSUBSCRIBE, admin.SubscriptionRequest(topic=TOPIC, subscription="s")
            ),
        )
        assert outcomes[0] is StatusCode.OK
        assert set(outcomes) <= {
            StatusCode.OK,
            StatusCode.NOT_FOUND,
            StatusCode.FAILED_PRECONDITION,  # The subscription is in use.
        }
        assert broker.metadata() == empty


async def test_a_producer_that_crosses_with_a_deletion_is_let_in_or_told_to_try_again(
    broker: RunningBroker, client: RawClient
) -> None:
    other = broker.client()
    for _ in range(20):
        await client.create_topic(TOPIC)
        deleted, created = await asyncio.gather(
            client.status(services.DELETE_TOPIC, admin.TopicRequest(name=TOPIC)),
            other.status(services.CREATE_PRODUCER, producer_request(TOPIC)),
        )
        assert deleted is StatusCode.OK
        assert created in (StatusCode.OK, StatusCode.UNAVAILABLE)
        producer = await other.create_producer(TOPIC)
        assert await other.send(TOPIC, producer) == 0
        await client.delete_topic(TOPIC)


async def test_two_deletions_at_once_both_end(broker: RunningBroker, client: RawClient) -> None:
    other = broker.client()
    await other.partitions(TOPIC)
    for _ in range(10):
        await client.create_partitioned(TOPIC, 3)
        outcomes = await asyncio.gather(
            client.status(services.DELETE_TOPIC, admin.TopicRequest(name=TOPIC)),
            other.status(services.DELETE_TOPIC, admin.TopicRequest(name=TOPIC)),
        )
        assert StatusCode.OK in outcomes
        assert set(outcomes) <= {StatusCode.OK, StatusCode.NOT_FOUND}
        assert await client.partitions(TOPIC) == []


async def test_publishing_while_the_topic_goes_heals_by_creating_the_producer_again(
    broker: RunningBroker, client: RawClient
) -> None:
    other = broker.client()
    producer = await other.create_producer(TOPIC)

    async def publish() -> StatusCode:
        while True:
            try:
                await other.send(TOPIC, producer)
            except CallRefused as refused:
                return refused.code

    publishing = asyncio.create_task(publish())
    await asyncio.sleep(0.05)
    await client.delete_topic(TOPIC)
    assert await publishing is StatusCode.UNAVAILABLE
    assert await other.send(TOPIC, await other.create_producer(TOPIC)) == 0
    with pytest.raises(CallRefused, match="NOT_FOUND"):
        await client.subscriptions("/default/never")
