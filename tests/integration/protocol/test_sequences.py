"""Protocol 7, item 28: what is sent twice is stored once, over the wire and across restarts."""

import asyncio

import pytest

from pydanube.wire.calls import CallRefused, StatusCode
from tests.support.raw_client import RawClient
from tests.support.running_broker import RunningBroker

TOPIC = "/default/orders"


async def stored(broker: RunningBroker) -> list[bytes]:
    log = broker.topics.get(TOPIC).log
    assert log is not None
    pieces = await log.read(log.first_offset, log.durable_end)
    return [m.payload for p in pieces for m in p.batch.messages(p.first_row, p.end_row)]


async def test_a_repeated_number_is_answered_and_not_stored_again(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC)
    first = await client.send(TOPIC, producer, b"a", producer_name="p", producer_sequence=0)
    assert first == 0
    again = await client.send(TOPIC, producer, b"a", producer_name="p", producer_sequence=0)
    assert again == 0
    assert await client.send(TOPIC, producer, b"b", producer_name="p", producer_sequence=7) == 1
    # Its place is known only as long as it is in the producer's latest batch.
    late = await client.send(TOPIC, producer, b"a", producer_name="p", producer_sequence=0)
    assert late is None
    await broker.restart()
    client = broker.client()
    again = await client.send(TOPIC, producer, b"b", producer_name="p", producer_sequence=7)
    assert again == 1
    assert await stored(broker) == [b"a", b"b"]


async def test_repeats_in_flight_together_are_stored_once(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC)
    other = broker.client()
    await client.send(
        TOPIC, producer, b"0", producer_name="p", producer_sequence=0, producer_session=5
    )
    sends = [
        each.send(
            TOPIC,
            producer,
            b"%d" % number,
            producer_name="p",
            producer_sequence=number,
            previous_sequence=number - 1,
            producer_session=5,
        )
        for number in range(1, 50)
        for each in (client, other)
    ]
    await asyncio.gather(*sends)
    assert await stored(broker) == [b"%d" % number for number in range(50)]


async def test_sessions_count_apart_and_unknown_ones_are_refused(
    broker: RunningBroker, client: RawClient
) -> None:
    producer = await client.create_producer(TOPIC)
    for session in (1, 2):
        await client.send(
            TOPIC, producer, b"x", producer_name="p", producer_sequence=0, producer_session=session
        )
    with pytest.raises(CallRefused) as refused:
        await client.send(
            TOPIC,
            producer,
            b"y",
            producer_name="p",
            producer_sequence=1,
            previous_sequence=0,
            producer_session=3,
        )
    assert refused.value.code is StatusCode.OUT_OF_RANGE
    assert await stored(broker) == [b"x", b"x"]


async def test_a_consumer_gets_a_numbered_message_like_any_other(client: RawClient) -> None:
    producer = await client.create_producer(TOPIC)
    stream = await client.consume(TOPIC)
    await client.send(TOPIC, producer, b"x", producer_name="p", producer_sequence=4)
    assert (await stream.next()).payload == b"x"
