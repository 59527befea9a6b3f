"""Protocol 3.7 and 3.8: acknowledging, in time, late, twice and in vain."""

import pytest

from pydanube.wire.calls import StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from tests.support.raw_client import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    RawClient,
    Stream,
)
from tests.support.running_broker import RunningBroker

TOPIC = "/default/orders"
ALL_KINDS = pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
SETTLING = pytest.mark.parametrize(
    ("method", "request_type"),
    [(services.ACK, api.AckRequest), (services.NACK, api.NackRequest)],
    ids=["ack", "nack"],
)


def place(topic: str, offset: int) -> api.MsgID:
    return api.MsgID(producer_id=1, topic_name=topic, topic_offset=offset)


async def messages(client: RawClient, count: int, kind: int = EXCLUSIVE) -> Stream:
    """Publish under keys of their own and return the stream that brings them."""
    producer = await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC, kind=kind)
    for number in range(count):
        await client.send(TOPIC, producer, b"%d" % number, routing_key=f"k{number}")
    return stream


@ALL_KINDS
async def test_acks_may_come_in_any_order_and_hold_over_a_restart(
    broker: RunningBroker, client: RawClient, kind: int
) -> None:
    received = await (await messages(client, 6, kind)).take(6)
    for offset in (4, 0, 3):
        await client.ack(received[offset])
    await broker.restart()
    stream = await broker.client().consume(TOPIC, kind=kind)
    assert sorted(await stream.offsets(3)) == [1, 2, 5]
    assert await stream.rest() == []


@SETTLING
async def test_the_answer_echoes_the_request_id(
    client: RawClient, method: services.Method, request_type: type
) -> None:
    received = await (await messages(client, 1)).next()
    request = request_type(request_id=991, msg_id=received.msg_id, subscription_name="s")
    assert (await client.call(method, request)).request_id == 991


async def test_a_late_a_duplicate_and_an_unknown_ack_are_ok_and_change_nothing(
    client: RawClient,
) -> None:
    stream = await messages(client, 3)
    received = await stream.take(3)
    for _ in range(3):
        await client.ack(received[0])
    for offset in (3, 99, 2**40, 2**63, 2**64 - 1):
        request = api.AckRequest(msg_id=place(TOPIC, offset), subscription_name="s")
        assert await client.status(services.ACK, request) is StatusCode.OK, offset
    again = client.open(stream.consumer_id)
    assert await again.offsets(2) == [1, 2]


async def test_an_ack_of_what_was_not_delivered_yet_does_not_settle_it(client: RawClient) -> None:
    stream = await messages(client, 12)
    received = await stream.take(10)  # As many as the window holds.
    await client.call(services.ACK, api.AckRequest(msg_id=place(TOPIC, 11), subscription_name="s"))
    await client.ack_all(received)
    assert await stream.offsets(2) == [10, 11]


@SETTLING
async def test_a_nack_of_what_is_not_in_flight_is_ok_and_ignored(
    client: RawClient, method: services.Method, request_type: type
) -> None:
    stream = await messages(client, 1)
    await client.ack(await stream.next())
    for offset in (0, 1, 2**64 - 1):
        request = request_type(msg_id=place(TOPIC, offset), subscription_name="s")
        assert await client.status(method, request) is StatusCode.OK
    assert await stream.rest() == []


@ALL_KINDS
async def test_an_ack_is_honoured_while_the_message_waits_for_its_retry(
    client: RawClient, kind: int
) -> None:
    await client.create_producer(TOPIC)
    await client.set_failure_policy(TOPIC, base_redelivery_delay_ms=300)
    stream = await messages(client, 2, kind)
    received = await stream.take(2)
    await client.nack(received[0])
    await client.ack(received[0])
    assert await stream.rest(0.7) == []


async def test_an_ack_is_honoured_after_the_ack_timeout(client: RawClient) -> None:
    await client.create_producer(TOPIC)
    await client.set_failure_policy(TOPIC, ack_timeout_ms=100, base_redelivery_delay_ms=400)
    stream = await messages(client, 1)
    received = await stream.next()
    assert await stream.rest(0.25) == [], "it has timed out by now and waits for its retry"
    await client.ack(received)
    assert await stream.rest(0.6) == []


@SETTLING
async def test_an_unknown_topic_or_subscription_is_an_internal_error(
    broker: RunningBroker, client: RawClient, method: services.Method, request_type: type
) -> None:
    await messages(client, 1)
    for topic, subscription in (
        ("/default/nowhere", "s"),
        (TOPIC, "nobody"),
        (TOPIC, ""),
        ("", "s"),
        (f"{TOPIC}/", "s"),
    ):
        request = request_type(msg_id=place(topic, 0), subscription_name=subscription)
        refused = await broker.refusal(client, method, request)
        assert refused.code is StatusCode.INTERNAL
        assert "not on this broker" in refused.text


@SETTLING
async def test_a_missing_msg_id_is_an_invalid_argument(
    broker: RunningBroker, client: RawClient, method: services.Method, request_type: type
) -> None:
    await messages(client, 1)
    for request in (request_type(subscription_name="s"), request_type()):
        refused = await broker.refusal(client, method, request)
        assert refused.code is StatusCode.INVALID_ARGUMENT
        assert "msg_id" in refused.text


@ALL_KINDS
async def test_on_a_best_effort_topic_acks_and_nacks_are_ok_and_do_nothing(
    client: RawClient, kind: int
) -> None:
    producer = await client.create_producer(TOPIC, reliable=False)
    stream = await client.consume(TOPIC, kind=kind)
    await client.send(TOPIC, producer, b"once")
    received = await stream.next()
    await client.nack(received)
    await client.ack(received)
    assert await stream.rest() == []


async def test_anybody_may_ack_for_the_subscription(
    broker: RunningBroker, client: RawClient
) -> None:
    stream = await messages(client, 1)
    await broker.client().ack(await stream.next())
    assert await client.open(stream.consumer_id).rest() == []


async def test_a_delivered_message_names_the_partition_that_was_subscribed_to(
    client: RawClient,
) -> None:
    await client.create_partitioned(TOPIC, 2)
    for partition in (f"{TOPIC}-part-0", f"{TOPIC}-part-1"):
        producer = await client.create_producer(partition)
        stream = await client.consume(partition)
        # A client that names no topic, or leaves it to the broker, changes nothing.
        await client.send("", producer)
        assert (await stream.next()).msg_id.topic_name == partition


async def test_a_reason_without_end_does_not_make_a_dead_letter_without_end(
    client: RawClient,
) -> None:
    await client.create_producer(TOPIC)
    await client.set_failure_policy(
        TOPIC, max_redelivery_count=0, poison_policy=0, dead_letter_topic="/default/dead"
    )
    await client.create_producer("/default/dead")
    dead = await client.consume("/default/dead")
    stream = await messages(client, 1)
    await client.nack(await stream.next(), reason="because " * 1_000_000)
    letter = await dead.next()
    assert letter.attributes["x-failure-reason"].startswith("because ")
    assert letter.ByteSize() < 64 * 1024, "stock clients read less than 4 MiB"
