"""An ack or nack settles only what this topic and this subscription delivered.

Names come again: a topic is deleted and made anew, or a subscription is. Whoever holds messages of
before still acks them, by names and offsets that mean other messages by now.
"""

from collections.abc import Awaitable, Callable

import pytest

from pydanube.wire.calls import StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.danube.generated import PyDanube_pb2 as own
from tests.integration.protocol.conftest import BOTH_ENGINES
from tests.support.raw_client import SHARED, RawClient, Stream
from tests.support.running_broker import RunningBroker

pytestmark = BOTH_ENGINES

TOPIC = "/default/orders"
OLD, NEW = [b"old0", b"old1", b"old2"], [b"new0", b"new1", b"new2"]

Again = Callable[[RawClient], Awaitable[list[bytes]]]


async def publish(client: RawClient, payloads: list[bytes]) -> None:
    producer = await client.create_producer(TOPIC)
    await client.send_many(TOPIC, producer, payloads)


async def hold_old(client: RawClient) -> list[api.StreamMessage]:
    """Receive messages, and leave without having acked them."""
    await client.create_topic(TOPIC)
    stream = await client.consume(TOPIC, kind=SHARED, start_position="earliest")
    await publish(client, OLD)
    held = await stream.take(3)
    await client.drop(stream)
    return held


async def make_topic_anew(client: RawClient) -> list[bytes]:
    await client.delete_topic(TOPIC)
    await client.create_topic(TOPIC)
    await client.subscribe(TOPIC, name="new", kind=SHARED, start_position="earliest")
    await publish(client, NEW)
    return NEW


async def make_subscription_anew(client: RawClient) -> list[bytes]:
    request = admin.SubscriptionRequest(topic=TOPIC, subscription="s")
    await client.call(services.UNSUBSCRIBE, request)
    await client.subscribe(TOPIC, name="new", kind=SHARED, start_position="earliest")
    return OLD


ANEW = pytest.mark.parametrize(
    "anew", [make_topic_anew, make_subscription_anew], ids=["topic", "subscription"]
)


async def receive_and_leave(client: RawClient, count: int) -> None:
    stream = await client.consume(TOPIC, name="new", kind=SHARED)
    await stream.take(count)
    await client.drop(stream)


async def payloads_of(stream: Stream, count: int) -> list[bytes]:
    return sorted(await stream.payloads(count))


@ANEW
@pytest.mark.parametrize("connection", ["same", "new"])
async def test_late_acks_settle_nothing_of_a_topic_or_subscription_made_anew(
    broker: RunningBroker, client: RawClient, anew: Again, connection: str
) -> None:
    held = await hold_old(client)
    expected = await anew(client)
    stream = await client.consume(TOPIC, name="new", kind=SHARED)
    assert await payloads_of(stream, 3) == expected
    late = client if connection == "same" else broker.client()
    await late.ack_all(held)
    await client.drop(stream)
    again = await client.consume(TOPIC, name="new", kind=SHARED)
    assert await payloads_of(again, 3) == expected


@ANEW
@pytest.mark.parametrize("delivered", [True, False], ids=["delivered", "undelivered"])
async def test_late_acks_settle_nothing_after_a_restart(
    broker: RunningBroker, client: RawClient, anew: Again, delivered: bool
) -> None:
    """Then everything that is durable may have been delivered, so far as the broker knows."""
    held = await hold_old(client)
    expected = await anew(client)
    if delivered:
        await receive_and_leave(client, 3)
    await broker.restart()
    late = broker.client()
    await late.ack_all(held)
    stream = await late.consume(TOPIC, name="new", kind=SHARED)
    assert await payloads_of(stream, 3) == expected


@ANEW
async def test_late_nacks_count_for_nothing(
    broker: RunningBroker, client: RawClient, anew: Again
) -> None:
    held = await hold_old(client)
    await anew(client)
    stream = await client.consume(TOPIC, name="new", kind=SHARED)
    current = await stream.take(3)
    for message in held:
        await client.nack(message, delay_ms=0)
    assert await stream.rest(1.3) == [], "the policy's delay is 1 s"
    await client.ack_all(current)
    await broker.restart()
    again = await broker.client().consume(TOPIC, name="new", kind=SHARED)
    assert await again.rest() == []


@pytest.mark.parametrize("restarts", [False, True])
async def test_acks_over_a_new_connection_count_also_after_a_restart(
    broker: RunningBroker, client: RawClient, restarts: bool
) -> None:
    held = await hold_old(client)
    if restarts:
        await broker.restart()
    late = broker.client()
    await late.ack_all(held[:2])
    stream = await late.consume(TOPIC, kind=SHARED)
    assert await stream.payloads(1) == [b"old2"]
    assert await stream.rest() == []


async def test_acks_of_before_a_move_count_no_more(client: RawClient) -> None:
    await client.create_topic(TOPIC)
    stream = await client.consume(TOPIC, kind=SHARED, start_position="earliest")
    await publish(client, OLD)
    before = await stream.take(3)
    request = own.SeekRequest(topic=TOPIC, subscription="s", position="earliest")
    await client.call(services.SEEK, request)
    assert await payloads_of(stream, 3) == OLD
    await client.ack_all(before)
    await client.drop(stream)
    again = await client.consume(TOPIC, kind=SHARED)
    after = await again.take(3)
    assert sorted(value.payload for value in after) == OLD
    await client.ack_all(after)
    await client.drop(again)
    assert await (await client.consume(TOPIC, kind=SHARED)).rest() == []


async def test_without_a_mark_only_the_connection_counts_that_has_the_message(
    broker: RunningBroker, client: RawClient
) -> None:
    """Some clients may not give back all of msg_id, and all of ours did not, before there were any.

    What they were given they settle where they were given it; elsewhere it comes again.
    """

    def unmarked(message: api.StreamMessage) -> api.AckRequest:
        place = api.MsgID(topic_name=TOPIC, topic_offset=message.msg_id.topic_offset)
        return api.AckRequest(msg_id=place, subscription_name="s")

    await client.create_topic(TOPIC)
    stream = await client.consume(TOPIC, kind=SHARED)
    await publish(client, OLD)
    first, second, third = await stream.take(3)
    assert await client.status(services.ACK, unmarked(first)) is StatusCode.OK
    assert await broker.client().status(services.ACK, unmarked(second)) is StatusCode.OK
    await client.drop(stream)
    assert await client.status(services.ACK, unmarked(third)) is StatusCode.OK
    again = await client.consume(TOPIC, kind=SHARED)
    assert await payloads_of(again, 2) == OLD[1:]


async def test_a_subscription_of_another_data_directory_has_other_marks(
    broker: RunningBroker, client: RawClient, start_broker: Callable[..., Awaitable[RunningBroker]]
) -> None:
    """A broker whose data directory was emptied begins with the same ids."""
    held = await hold_old(client)
    emptied = await start_broker()
    other = emptied.client()
    await other.create_topic(TOPIC)
    stream = await other.consume(TOPIC, kind=SHARED)
    await publish(other, NEW)
    await stream.take(3)
    await other.ack_all(held)
    await other.drop(stream)
    assert await payloads_of(await other.consume(TOPIC, kind=SHARED), 3) == NEW
