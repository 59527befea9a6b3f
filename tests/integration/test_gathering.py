"""Single messages that travel as batches: in order, once, and each with its own fate."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

import pydanube
from pydanube.client.client import grpcio_channel
from pydanube.wire.calls import StatusCode
from pydanube.wire.http2.channel import Http2Channel
from tests.support.troubled_channel import TroubledChannel

TOPIC = "/default/orders"


@dataclass
class Order:
    number: int


@pytest.fixture(params=[Http2Channel, grpcio_channel], ids=["http2", "grpcio"])
async def client(
    danube_broker: pydanube.Broker, request: pytest.FixtureRequest
) -> AsyncIterator[pydanube.Client]:
    async with pydanube.connect(danube_broker.url, open_channel=request.param) as client:
        yield client


async def payloads_of(client: pydanube.Client) -> tuple[list[bytes], int]:
    """Return all payloads, and in how many batches they lie."""
    batches = [batch async for batch in client.reader(TOPIC).batches()]
    return [each for batch in batches for each in batch.rows["payload"].to_pylist()], len(batches)


async def test_messages_sent_together_lie_in_order_in_few_batches(client: pydanube.Client) -> None:
    async with client.producer(TOPIC) as producer:
        sent = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(2_000)))
    assert [each.offset for each in sent] == list(range(2_000))
    payloads, batches = await payloads_of(client)
    assert payloads == [b"%d" % number for number in range(2_000)]
    assert batches < 20


async def test_all_that_a_message_has_arrives(client: pydanube.Client) -> None:
    async with client.producer(TOPIC, name="till") as producer:
        await asyncio.gather(
            producer.send(b"a", attributes={"x": "y"}, routing_key="k"), producer.send(b"b")
        )
    async with client.consumer(TOPIC, "s", start_position="earliest") as consumer:
        first, second = [await consumer.receive() for _ in range(2)]
    assert (first.payload, first.attributes, first.routing_key) == (b"a", {"x": "y"}, "k")
    assert (second.attributes, second.routing_key, second.producer_name) == ({}, None, "till")


async def test_one_message_that_is_refused_takes_no_other_along(client: pydanube.Client) -> None:
    many = {f"key-{number}": "v" for number in range(65)}
    async with client.producer(TOPIC) as producer:
        outcomes = await asyncio.gather(
            producer.send(b"a"),
            producer.send(b"b", attributes=many),
            producer.send(b"c", routing_key="\ud800"),
            producer.send(b"d"),
            producer.send(b"e", attributes={"x": "\ud800"}),
            producer.send(b"f", attributes={"x": 1}),  # type: ignore[dict-item]
            producer.send(b"g"),
            return_exceptions=True,
        )
    refused = [isinstance(outcome, pydanube.InvalidRequest) for outcome in outcomes]
    assert refused == [False, True, True, False, True, True, False]
    payloads, _ = await payloads_of(client)
    assert payloads == [b"a", b"d", b"g"]


async def test_batches_whose_answer_was_lost_are_stored_once(
    danube_broker: pydanube.Broker,
) -> None:
    trouble = [StatusCode.UNAVAILABLE, StatusCode.UNAVAILABLE]
    async with (
        pydanube.connect(
            danube_broker.url, open_channel=lambda url: TroubledChannel(url, trouble)
        ) as client,
        client.producer(TOPIC) as producer,
    ):
        sent = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(100)))
        assert trouble == []
        assert [each.offset for each in sent] == list(range(100))
        assert (await payloads_of(client))[0] == [b"%d" % number for number in range(100)]


async def test_a_producer_that_is_closed_has_sent_everything(client: pydanube.Client) -> None:
    async with client.producer(TOPIC, linger_ms=10_000) as producer:
        sending = [asyncio.ensure_future(producer.send(b"%d" % number)) for number in range(10)]
        await asyncio.sleep(0)
    assert [(await each).offset for each in sending] == list(range(10))


async def test_messages_of_equal_keys_keep_their_order_across_partitions(
    client: pydanube.Client,
) -> None:
    async with client.producer(TOPIC, partitions=3) as producer:
        await asyncio.gather(
            *(producer.send(b"%d" % number, routing_key=f"k{number % 5}") for number in range(300))
        )
    table = await client.reader(TOPIC).to_arrow()
    by_key: dict[str, list[int]] = {}
    for key, payload in zip(
        table["routing_key"].to_pylist(), table["payload"].to_pylist(), strict=True
    ):
        by_key.setdefault(key, []).append(int(payload))
    assert by_key == {f"k{n}": list(range(n, 300, 5)) for n in range(5)}


async def test_typed_producers_and_consumers_speak_of_values(client: pydanube.Client) -> None:
    async with client.producer(TOPIC, type=Order) as producer:
        await producer.send(Order(1))
        await producer.send_batch([Order(2), Order(3)])
        with pytest.raises(pydanube.InvalidRequest, match="Order"):
            await producer.send(b"raw")  # type: ignore[arg-type]
    async with client.producer(TOPIC) as untyped:
        await untyped.send(b"{}")
        with pytest.raises(pydanube.InvalidRequest, match="type="):
            await untyped.send("text")  # type: ignore[arg-type]
    async with client.consumer(TOPIC, "s", type=Order, start_position="earliest") as consumer:
        messages = [await consumer.receive() for _ in range(4)]
        assert [message.value for message in messages[:3]] == [Order(1), Order(2), Order(3)]
        with pytest.raises(pydanube.UndecodablePayload, match="number"):
            _ = messages[3].value
        await consumer.ack(messages[3])


@pytest.mark.parametrize(
    "options",
    [
        {"linger_ms": -1},
        {"linger_ms": 20_000},
        {"batch_messages_max": 0},
        {"batch_bytes_max": 0},
        {"compression": "gzip"},
        {"send_seconds_max": 0},
    ],
    ids=str,
)
async def test_options_that_make_no_sense_are_refused(
    danube_broker: pydanube.Broker, options: dict[str, object]
) -> None:
    async with pydanube.connect(danube_broker.url) as client:
        with pytest.raises(pydanube.InvalidRequest, match=next(iter(options))):
            await client.producer(TOPIC, **options)  # type: ignore[arg-type]
        assert (await client.producer(TOPIC, batch_messages_max=1)).topics == [TOPIC], (
            "nothing was left over"
        )
