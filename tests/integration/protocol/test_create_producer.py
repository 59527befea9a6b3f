"""Protocol 3.3: who may produce, under which id."""

import asyncio

import pytest

from pydanube.wire.calls import CallRefused, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from tests.integration.protocol.conftest import StartBroker
from tests.support.raw_client import PRODUCER, RawClient, message, producer_request
from tests.support.running_broker import RunningBroker

TOPIC = "/default/orders"
LIVE_SECONDS = 15.0
"""A producer that neither sends nor asks for its health for this long is gone."""

SHARED_ACCESS = api.ProducerAccessMode.Shared
EXCLUSIVE_ACCESS = api.ProducerAccessMode.Exclusive


async def create(client: RawClient, name: str, access: int = SHARED_ACCESS) -> StatusCode:
    request = producer_request(TOPIC, name, producer_access_mode=access)
    return await client.status(services.CREATE_PRODUCER, request)


async def test_the_answer_echoes_request_id_and_name(client: RawClient) -> None:
    reply = await client.call(services.CREATE_PRODUCER, producer_request(TOPIC, "mine"))
    assert (reply.request_id, reply.producer_name) == (3, "mine")
    assert 1 <= reply.producer_id < 2**53


async def test_the_same_name_has_the_same_id_on_a_topic_and_another_on_another(
    broker: RunningBroker, client: RawClient
) -> None:
    first = await client.create_producer(TOPIC, "p")
    assert await broker.client().create_producer(TOPIC, "p") == first
    assert await client.create_producer(TOPIC, "q") != first
    assert await client.create_producer("/default/other", "p") != first


async def test_two_connections_of_one_name_both_publish(
    broker: RunningBroker, client: RawClient
) -> None:
    other = broker.client()
    producer = await client.create_producer(TOPIC)
    assert await other.create_producer(TOPIC) == producer
    assert [await each.send(TOPIC, producer) for each in (client, other, client)] == [0, 1, 2]


async def test_ids_survive_a_restart_and_publish_without_being_created_again(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC)
    assert await client.send(TOPIC, producer) == 0
    await broker.restart()
    client = broker.client()
    assert await client.health(PRODUCER, producer) == "OK"
    assert await client.send(TOPIC, producer) == 1
    assert await client.create_producer(TOPIC) == producer


@pytest.mark.parametrize("reliable", [True, False])
async def test_another_dispatch_strategy_than_the_topics_is_a_failed_precondition(
    broker: RunningBroker, client: RawClient, reliable: bool
) -> None:
    await client.create_producer(TOPIC, reliable=reliable)
    request = producer_request(TOPIC, "other", reliable=not reliable)
    refused = await broker.refusal(client, services.CREATE_PRODUCER, request)
    assert refused.code is StatusCode.FAILED_PRECONDITION


async def test_an_unknown_dispatch_strategy_fits_an_existing_topic_alone(
    broker: RunningBroker, client: RawClient
) -> None:
    request = producer_request(TOPIC, dispatch_strategy=9)
    refused = await broker.refusal(client, services.CREATE_PRODUCER, request)
    assert refused.code is StatusCode.INVALID_ARGUMENT
    await client.create_producer(TOPIC)
    assert await client.status(services.CREATE_PRODUCER, request) is StatusCode.OK


async def test_an_unknown_access_mode_is_an_invalid_argument(
    broker: RunningBroker, client: RawClient
) -> None:
    request = producer_request(TOPIC, producer_access_mode=9)
    refused = await broker.refusal(client, services.CREATE_PRODUCER, request)
    assert refused.code is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("name", ["", "x" * 257, "a\nb", "a\x00b"])
async def test_a_producer_name_that_cannot_be_shown_is_an_invalid_argument(
    broker: RunningBroker, client: RawClient, name: str
) -> None:
    refused = await broker.refusal(client, services.CREATE_PRODUCER, producer_request(TOPIC, name))
    assert refused.code is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("name", ["a/b", "..", "50%", "naïve ✓", "a:b*c?", "x" * 256])
async def test_every_other_producer_name_is_welcome_and_survives(
    broker: RunningBroker, client: RawClient, name: str
) -> None:
    producer = await client.create_producer(TOPIC, name)
    await broker.restart()
    assert await broker.client().send(TOPIC, producer) == 0


# The order of checks.


async def test_a_malformed_name_is_refused_before_everything_else(
    broker: RunningBroker, client: RawClient
) -> None:
    request = producer_request(
        "no-topic", dispatch_strategy=9, schema_ref=api.SchemaReference(subject="s")
    )
    refused = await broker.refusal(client, services.CREATE_PRODUCER, request)
    assert refused.code is StatusCode.INVALID_ARGUMENT
    assert "/namespace/topic" in refused.text


async def test_the_strategy_is_compared_before_the_schema(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_producer(TOPIC)
    request = producer_request(
        TOPIC, "q", reliable=False, schema_ref=api.SchemaReference(subject="s")
    )
    refused = await broker.refusal(client, services.CREATE_PRODUCER, request)
    assert refused.code is StatusCode.FAILED_PRECONDITION
    assert "Reliable" in refused.text


async def test_an_unregistered_subject_is_not_found_and_creates_no_topic(
    broker: RunningBroker, client: RawClient
) -> None:
    request = producer_request(TOPIC, schema_ref=api.SchemaReference(subject="orders-value"))
    refused = await broker.refusal(client, services.CREATE_PRODUCER, request)
    assert refused.code is StatusCode.FAILED_PRECONDITION
    assert "orders-value" in refused.text
    assert "not found" in refused.text


async def test_a_known_name_is_let_in_before_the_limit_is_looked_at(
    start_broker: StartBroker,
) -> None:
    client = (await start_broker(max_producers_per_topic=1)).client()
    first = await client.create_producer(TOPIC, "p")
    assert await create(client, "q") is StatusCode.RESOURCE_EXHAUSTED
    assert await client.create_producer(TOPIC, "p") == first


# Limits.


async def test_the_limit_counts_only_living_producers(start_broker: StartBroker) -> None:
    broker = await start_broker(max_producers_per_topic=2)
    client = broker.client()
    await client.create_producer(TOPIC, "a")
    b = await client.create_producer(TOPIC, "b")
    refused = await broker.refusal(client, services.CREATE_PRODUCER, producer_request(TOPIC, "c"))
    assert refused.code is StatusCode.RESOURCE_EXHAUSTED
    assert "max_producers_per_topic" in refused.text
    broker.clock.advance(LIVE_SECONDS - 5)
    assert await client.health(PRODUCER, b) == "OK"
    assert await create(client, "c") is StatusCode.RESOURCE_EXHAUSTED
    broker.clock.advance(6)
    assert await create(client, "c") is StatusCode.OK, "a has not been heard of"
    assert await create(client, "d") is StatusCode.RESOURCE_EXHAUSTED, "b asked for its health"


# Exclusive producers.


async def test_an_exclusive_producer_keeps_others_out(
    broker: RunningBroker, client: RawClient
) -> None:
    assert await create(client, "mine", EXCLUSIVE_ACCESS) is StatusCode.OK
    for access in (SHARED_ACCESS, EXCLUSIVE_ACCESS):
        request = producer_request(TOPIC, "other", producer_access_mode=access)
        refused = await broker.refusal(client, services.CREATE_PRODUCER, request)
        assert refused.code is StatusCode.ALREADY_EXISTS
    assert await create(client, "mine", EXCLUSIVE_ACCESS) is StatusCode.OK


async def test_exclusive_access_is_not_given_beside_others(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_producer(TOPIC, "other")
    request = producer_request(TOPIC, "mine", producer_access_mode=EXCLUSIVE_ACCESS)
    refused = await broker.refusal(client, services.CREATE_PRODUCER, request)
    assert refused.code is StatusCode.ALREADY_EXISTS
    broker.clock.advance(LIVE_SECONDS + 1)
    assert await create(client, "mine", EXCLUSIVE_ACCESS) is StatusCode.OK


async def test_a_producer_that_lost_the_topic_cannot_publish_and_does_not_loop(
    broker: RunningBroker, client: RawClient
) -> None:
    gone = await client.create_producer(TOPIC, "gone")
    broker.clock.advance(LIVE_SECONDS + 1)
    mine = await client.create_producer(TOPIC, "mine", producer_access_mode=EXCLUSIVE_ACCESS)
    with pytest.raises(CallRefused) as refused:
        await client.send(TOPIC, gone)
    assert refused.value.code is StatusCode.INVALID_ARGUMENT
    assert await client.send(TOPIC, mine) == 0


async def test_exclusive_access_survives_a_restart(
    broker: RunningBroker, client: RawClient
) -> None:
    mine = await client.create_producer(TOPIC, "mine", producer_access_mode=EXCLUSIVE_ACCESS)
    await broker.restart()
    client = broker.client()
    assert await create(client, "other") is StatusCode.ALREADY_EXISTS
    assert await client.send(TOPIC, mine) == 0


async def test_giving_exclusive_access_up_leaves_the_topic_to_all(client: RawClient) -> None:
    mine = await client.create_producer(TOPIC, "mine", producer_access_mode=EXCLUSIVE_ACCESS)
    assert await client.create_producer(TOPIC, "mine") == mine
    other = await client.create_producer(TOPIC, "other")
    assert [await client.send(TOPIC, each) for each in (mine, other)] == [0, 1]


async def test_an_exclusive_producer_that_was_gone_must_ask_again(
    broker: RunningBroker, client: RawClient
) -> None:
    gone = await client.create_producer(TOPIC, "gone", producer_access_mode=EXCLUSIVE_ACCESS)
    broker.clock.advance(LIVE_SECONDS + 1)
    other = await client.create_producer(TOPIC, "other")
    status = await client.status(services.SEND_MESSAGE, message(TOPIC, gone))
    assert status is StatusCode.UNAVAILABLE, "every client then creates its producer again"
    assert await create(client, "gone", EXCLUSIVE_ACCESS) is StatusCode.ALREADY_EXISTS
    assert await client.send(TOPIC, other) == 0


async def test_many_clients_may_create_one_topic_at_once(broker: RunningBroker) -> None:
    clients = [broker.client() for _ in range(4)]
    ids = await asyncio.gather(
        *(client.create_producer(TOPIC, f"p{n}") for client in clients for n in range(5))
    )
    assert len(set(ids)) == 5
    assert await clients[0].partitions(TOPIC) == [TOPIC]


async def test_a_topic_and_its_partition_created_at_once_leave_one_of_them(
    broker: RunningBroker,
) -> None:
    clients = [broker.client() for _ in range(2)]
    for number in range(10):
        topic = f"/default/race-{number}"
        names = [topic, f"{topic}-part-0"]
        outcomes = await asyncio.gather(
            *(
                client.status(services.CREATE_PRODUCER, producer_request(name))
                for client, name in zip(clients, names, strict=True)
            )
        )
        assert sorted(outcomes) == [StatusCode.OK, StatusCode.ALREADY_EXISTS]
