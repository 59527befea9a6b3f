"""Protocol 3.9: health checks, and how clients are told to come again."""

import asyncio

import pytest

from pydanube.wire.calls import StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from tests.integration.protocol.conftest import BOTH_ENGINES
from tests.support.raw_client import CONSUMER, PRODUCER, RawClient
from tests.support.running_broker import RunningBroker

pytestmark = BOTH_ENGINES

TOPIC = "/default/orders"
CLOSE_WAIT_SECONDS = 6.0


@pytest.mark.parametrize("kind", [2, 3, -1, 2**31 - 1])
async def test_a_client_type_that_is_none_is_an_invalid_argument(
    broker: RunningBroker, client: RawClient, kind: int
) -> None:
    request = api.HealthCheckRequest(request_id=1, id=1)
    request.client = kind  # type: ignore[assignment]
    refused = await broker.refusal(client, services.HEALTH_CHECK, request)
    assert refused.code is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("kind", [PRODUCER, CONSUMER])
async def test_an_unknown_id_is_told_to_close_once(client: RawClient, kind: int) -> None:
    answers = [await client.health(kind, 4711) for _ in range(4)]
    assert answers == ["CLOSE", "OK", "OK", "OK"]
    assert await client.health(kind, 4712) == "CLOSE", "each id is told"


async def test_a_known_producer_is_ok(client: RawClient) -> None:
    producer = await client.create_producer(TOPIC)
    assert [await client.health(PRODUCER, producer) for _ in range(2)] == ["OK", "OK"]


async def test_a_consumer_is_ok_from_subscribe_on_closed_once_when_its_stream_drops_and_ok_again(
    client: RawClient,
) -> None:
    await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC)
    assert await client.health(CONSUMER, stream.consumer_id) == "OK"
    await client.drop(stream)  # Which waits for the CLOSE.
    assert [await client.health(CONSUMER, stream.consumer_id) for _ in range(2)] == ["OK", "OK"]
    again = client.open(stream.consumer_id)
    assert await client.health(CONSUMER, stream.consumer_id) == "OK"
    await client.drop(again)  # A new event, a new CLOSE.


async def test_a_consumer_that_came_back_before_it_asked_is_ok(client: RawClient) -> None:
    producer = await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC)
    await stream.close()
    again = client.open(stream.consumer_id)
    await client.send(TOPIC, producer, b"x")
    await again.next()
    assert await client.health(CONSUMER, stream.consumer_id) == "OK"


# Deleting a topic closes its clients.


async def test_a_deleted_topics_consumer_is_told_to_close_then_its_stream_ends_as_unavailable(
    client: RawClient,
) -> None:
    await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC)
    await client.delete_topic(TOPIC)
    assert stream.is_open, "ended before it was told, some clients would never come back"
    assert await client.health(CONSUMER, stream.consumer_id) == "CLOSE"
    assert await stream.ended() is StatusCode.UNAVAILABLE
    assert [await client.health(CONSUMER, stream.consumer_id) for _ in range(3)] == ["OK"] * 3


async def test_a_client_that_never_asks_has_its_stream_ended_all_the_same(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC)
    await client.delete_topic(TOPIC)
    broker.clock.advance(CLOSE_WAIT_SECONDS - 1)
    await client.partitions(TOPIC)
    assert stream.is_open
    broker.clock.advance(1.1)
    assert await stream.ended() is StatusCode.UNAVAILABLE


async def test_a_deleted_topics_producer_is_told_to_close_once_every_time(
    client: RawClient,
) -> None:
    for _ in range(3):
        producer = await client.create_producer(TOPIC)
        await client.delete_topic(TOPIC)
        answers = [await client.health(PRODUCER, producer) for _ in range(3)]
        assert answers == ["CLOSE", "OK", "OK"]


async def test_a_consumer_is_told_to_close_once_every_time_its_topic_is_deleted(
    client: RawClient,
) -> None:
    for _ in range(3):
        await client.create_producer(TOPIC)
        stream = await client.consume(TOPIC)
        await client.delete_topic(TOPIC)
        answers = [await client.health(CONSUMER, stream.consumer_id) for _ in range(3)]
        assert answers == ["CLOSE", "OK", "OK"]
        assert await stream.ended() is StatusCode.UNAVAILABLE


async def test_a_consumer_of_a_topic_that_was_deleted_and_created_again_is_not_closed_again(
    client: RawClient,
) -> None:
    await client.create_producer(TOPIC)
    old = await client.consume(TOPIC)
    await client.delete_topic(TOPIC)
    producer = await client.create_producer(TOPIC)
    new = await client.consume(TOPIC)
    assert new.consumer_id == old.consumer_id
    assert await old.ended() is StatusCode.UNAVAILABLE
    await client.send(TOPIC, producer, b"new life")
    assert await new.payloads(1) == [b"new life"]
    assert await client.health(CONSUMER, new.consumer_id) == "OK"
    await asyncio.sleep(0.2)
    assert new.is_open
