"""Protocol 3.4, 3.10, 3.14 and 3.16: publishing, and how it may fail."""

import asyncio
import time
from pathlib import Path

import pytest

from pydanube.wire.calls import CallRefused, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from tests.integration.protocol.conftest import BOTH_ENGINES, StartBroker
from tests.support.raw_client import RawClient, Stream, message
from tests.support.running_broker import RunningBroker

pytestmark = BOTH_ENGINES

TOPIC = "/default/orders"
SIZE_MAX = 4 * 1024 * 1024 - 64 * 1024

REPEATED_FOR_EVER = {
    StatusCode.RESOURCE_EXHAUSTED,
    StatusCode.UNAVAILABLE,
    StatusCode.DEADLINE_EXCEEDED,
    StatusCode.PERMISSION_DENIED,
    StatusCode.FAILED_PRECONDITION,
    StatusCode.NOT_FOUND,
    StatusCode.ABORTED,
    StatusCode.UNAUTHENTICATED,
}
"""To these some stock client answers by sending the same message again, without end."""


async def test_the_answer_echoes_the_request_id_and_brings_the_offset(client: RawClient) -> None:
    producer = await client.create_producer(TOPIC)
    for number in range(3):
        request = message(TOPIC, producer, request_id=1000 + number)
        reply = await client.call(services.SEND_MESSAGE, request)
        assert (reply.request_id, reply.topic_offset) == (1000 + number, number)


async def test_a_best_effort_publish_has_no_offset(client: RawClient) -> None:
    producer = await client.create_producer(TOPIC, reliable=False)
    assert await client.send(TOPIC, producer) is None


async def test_sends_in_flight_together_get_offsets_without_gap(client: RawClient) -> None:
    producer = await client.create_producer(TOPIC)
    offsets = await asyncio.gather(*(client.send(TOPIC, producer) for _ in range(100)))
    assert sorted(offsets) == list(range(100))


async def test_a_message_arrives_as_it_was_sent_with_offset_and_subscription(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC)
    sent = message(
        TOPIC,
        producer,
        b"\x00\xff payload",
        request_id=77,
        publish_time=123_456,
        producer_name="somebody",
        attributes={"a": "1", "ü": "✓"},
        schema_id=9,
        schema_version=2,
        routing_key="k",
    )
    await client.call(services.SEND_MESSAGE, message(TOPIC, producer, b"first"))
    await client.call(services.SEND_MESSAGE, sent)
    first = await stream.next()
    await client.ack(first)
    expected = api.StreamMessage.FromString(sent.SerializeToString())
    expected.msg_id.topic_offset = 1
    expected.subscription_name = "s"
    # The broker's own address, and behind it what an ack has to bring back.
    assert first.msg_id.broker_addr.startswith(f"http://127.0.0.1:{broker.server.client_port}#")
    expected.msg_id.broker_addr = first.msg_id.broker_addr
    assert await stream.next() == expected
    # Read back from disk it is what any consumer may rely on; the request's own number is gone.
    await broker.restart()
    again = await broker.client().consume(TOPIC)
    expected.request_id = 0
    received = await again.next()
    port, mark = f"{broker.server.client_port}", first.msg_id.broker_addr.rpartition("#")[2]
    expected.msg_id.broker_addr = f"http://127.0.0.1:{port}#{mark}"
    expected.msg_id.producer_id = received.msg_id.producer_id
    received.attributes.pop("x-delivery-attempt", None)
    assert received == expected


# How a publish may fail.


async def test_no_permanent_failure_uses_a_status_that_some_client_repeats_for_ever(
    start_broker: StartBroker,
) -> None:
    broker = await start_broker(max_message_size=1000)
    client = broker.client()
    producer = await client.create_producer(TOPIC)
    other = await client.create_producer("/default/other")
    mine = await client.create_producer(
        "/default/mine", producer_access_mode=api.ProducerAccessMode.Exclusive
    )
    failures = {
        "no msg_id": api.StreamMessage(payload=b"x"),
        "nothing at all": api.StreamMessage(),
        "a payload beyond the policy": message(TOPIC, producer, b"x" * 1001),
        "another topic's producer": message(TOPIC, other),
        "a topic that does not exist": message("/default/nowhere", producer),
        "a topic that is no name": message("nowhere", mine),
        "too many attributes": message(
            TOPIC, producer, attributes={f"a{n}": "" for n in range(65)}
        ),
        "too much beside the payload": message(TOPIC, producer, attributes={"a": "x" * 40_000}),
        "a producer name beyond measure": message(TOPIC, producer, producer_name="x" * 40_000),
        "a routing key beyond measure": message(TOPIC, producer, routing_key="k" * 1025),
        "a time beyond measure": message(TOPIC, producer, publish_time=2**63),
    }
    for what, request in failures.items():
        refused = await broker.refusal(client, services.SEND_MESSAGE, request)
        assert refused.code is StatusCode.INVALID_ARGUMENT, what
        assert refused.code not in REPEATED_FOR_EVER
        assert refused.text, what
    assert await client.send(TOPIC, producer) == 0, "none of them took an offset"


async def test_an_unknown_producer_id_heals_every_client_by_unavailable(client: RawClient) -> None:
    await client.create_producer(TOPIC)
    for unknown in (0, 1, 2**63, 2**64 - 1):
        status = await client.status(services.SEND_MESSAGE, message(TOPIC, unknown))
        assert status is StatusCode.UNAVAILABLE


async def test_a_topic_name_may_be_left_out_since_the_producer_tells_it(client: RawClient) -> None:
    producer = await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC)
    await client.call(services.SEND_MESSAGE, message("", producer))
    assert (await stream.next()).msg_id.topic_name == TOPIC


# Size.


async def test_the_largest_message_of_the_default_policy_reaches_a_consumer(
    client: RawClient,
) -> None:
    producer = await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC)
    attributes = {"a": "x" * 30_000}
    assert await client.send(TOPIC, producer, b"y" * SIZE_MAX, attributes=attributes) == 0
    received = await stream.next()
    assert len(received.payload) == SIZE_MAX
    assert received.ByteSize() < 4 * 1024 * 1024, "stock clients read no more"


@pytest.mark.parametrize("size", [SIZE_MAX + 1, 5 * 1024 * 1024, 40 * 1024 * 1024])
async def test_a_larger_message_is_an_invalid_argument_and_names_the_policy(
    broker: RunningBroker, client: RawClient, size: int
) -> None:
    producer = await client.create_producer(TOPIC)
    request = message(TOPIC, producer, bytes(size))
    refused = await broker.refusal(client, services.SEND_MESSAGE, request)
    assert refused.code is StatusCode.INVALID_ARGUMENT
    assert "max_message_size" in refused.text or size > 16 * 1024 * 1024, "beyond every policy"


async def test_an_empty_payload_is_a_message(client: RawClient) -> None:
    producer = await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC)
    assert await client.send(TOPIC, producer, b"") == 0
    assert (await stream.next()).payload == b""


# Rates and back-pressure.


async def test_publishes_above_the_rate_wait_their_turn_and_none_fails(
    start_broker: StartBroker,
) -> None:
    client = (await start_broker(max_publish_rate=50)).client()
    producer = await client.create_producer(TOPIC)
    started = time.monotonic()
    offsets = await asyncio.gather(*(client.send(TOPIC, producer) for _ in range(80)))
    assert sorted(offsets) == list(range(80))
    assert time.monotonic() - started >= 0.5, "30 of them had to wait a fiftieth second each"


async def test_a_consumer_that_does_not_read_delays_nobody_else(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC, reliable=False)
    stuck = await broker.client().subscribe(TOPIC, "stuck", "c")
    reader = await client.consume(TOPIC, "reading")
    assert stuck
    for number in range(300):
        await client.send(TOPIC, producer, b"%d" % number * 1000)
    assert len(await reader.take(300)) == 300


# Durability.


async def test_offsets_go_on_where_they_stopped(broker: RunningBroker, client: RawClient) -> None:
    producer = await client.create_producer(TOPIC)
    await client.send_many(TOPIC, producer, [b"x"] * 5)
    for expected in (5, 6, 7):
        await broker.restart()
        assert await broker.client().send(TOPIC, producer) == expected


async def test_during_an_orderly_stop_a_publish_is_unavailable_and_never_lost(
    tmp_path: Path, engine: str
) -> None:
    broker = RunningBroker(tmp_path / "data", engine=engine)
    await broker.start()
    try:
        client = broker.client()
        producer = await client.create_producer(TOPIC)
        await client.subscribe(TOPIC)
        acknowledged: list[int] = []

        async def publish() -> StatusCode:
            while True:
                try:
                    offset = await client.send(TOPIC, producer)
                except CallRefused as refused:
                    return refused.code
                assert offset is not None
                acknowledged.append(offset)

        publishing = [asyncio.create_task(publish()) for _ in range(8)]
        await asyncio.sleep(0.2)
        await broker.stop()
        assert set(await asyncio.gather(*publishing)) == {StatusCode.UNAVAILABLE}
        await broker.start()
        client = broker.client()
        await client.set_window(TOPIC, 10_000)
        stream: Stream = await client.consume(TOPIC)
        received = {each.msg_id.topic_offset for each in await stream.rest()}
        assert acknowledged
        assert set(acknowledged) <= received
    finally:
        await broker.close()
