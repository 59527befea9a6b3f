"""Batches through the client: what is sent is what is read, and nothing twice."""

import asyncio
import logging
import sys
import types
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest

import pydanube
from pydanube.client.client import grpcio_channel
from pydanube.wire.calls import StatusCode
from pydanube.wire.http2.channel import Http2Channel
from tests.support.troubled_channel import TroubledChannel

TOPIC = "/default/orders"


class Frame:
    """What pandas, polars and others have in common: they can be taken in as Arrow."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.fixture(params=[Http2Channel, grpcio_channel], ids=["http2", "grpcio"])
async def client(
    danube_broker: pydanube.Broker, request: pytest.FixtureRequest
) -> AsyncIterator[pydanube.Client]:
    async with pydanube.connect(danube_broker.url, open_channel=request.param) as client:
        yield client


async def rows_of(client: pydanube.Client, **bounds: Any) -> list[dict[str, Any]]:
    table = await client.reader(TOPIC, **bounds).to_arrow()
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
    return rows


@pytest.mark.parametrize(
    "data",
    [
        [b"a", b"b"],
        ["a", "b"],
        [{"payload": b"a"}, {"payload": b"b"}],
        pa.table({"payload": [b"a", b"b"]}),
        pa.table({"payload": pa.array(["a", "b"], pa.string_view())}),
        Frame(pa.table({"payload": ["a", "b"]})),
        pa.record_batch({"payload": pa.array(["a", "b"]).dictionary_encode()}),
    ],
    ids=["bytes", "texts", "dicts", "table", "views", "frame", "dictionary"],
)
async def test_a_batch_of_any_kind_is_stored_in_order(client: pydanube.Client, data: Any) -> None:
    async with client.producer(TOPIC, name="till") as producer:
        assert await producer.send_batch(data) == [pydanube.SentBatch(TOPIC, 0, 2)]
        assert await producer.send_batch(data) == [pydanube.SentBatch(TOPIC, 2, 2)]
    rows = await rows_of(client)
    assert [row["payload"] for row in rows] == [b"a", b"b", b"a", b"b"]
    assert [row["offset"] for row in rows] == [0, 1, 2, 3]
    assert {row["producer_name"] for row in rows} == {"till"}


async def test_what_a_message_has_beside_its_payload_arrives(client: pydanube.Client) -> None:
    message = {"payload": b"a", "routing_key": "k", "attributes": {"x": "y"}, "publish_time": 5}
    async with client.producer(TOPIC) as producer:
        await producer.send_batch([message, {"payload": b"b"}])
    first, second = await rows_of(client)
    assert {name: first[name] for name in message} == message
    assert second["routing_key"] is None
    assert second["publish_time"] > 5


async def test_rows_without_a_payload_are_json_objects(client: pydanube.Client) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_batch([{"cups": 2}])
        await producer.send_batch(pa.table({"cups": [3]}))
    assert [row["payload"] for row in await rows_of(client)] == [b'{"cups":2}', b'{"cups":3}']


async def test_large_batches_are_sent_in_pieces(client: pydanube.Client) -> None:
    async with client.producer(TOPIC) as producer:
        sent = await producer.send_batch([bytes(1_000_000)] * 9)
        assert len(sent) > 1
        assert sent[0].offset == 0
        assert sum(each.rows for each in sent) == 9
    assert len(await rows_of(client)) == 9


async def test_consumers_of_single_messages_receive_batches(client: pydanube.Client) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_batch([b"a", b"b"])
        await producer.send(b"c")
    async with client.consumer(TOPIC, "s", start_position="earliest") as consumer:
        assert [(await consumer.receive()).payload for _ in range(3)] == [b"a", b"b", b"c"]


async def test_a_reader_keeps_to_its_bounds(client: pydanube.Client) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_batch([b"%d" % number for number in range(10)])
    rows = await rows_of(client, start=3, end=6)
    assert [row["offset"] for row in rows] == [3, 4, 5]
    assert await rows_of(client, start="latest") == []


async def test_equal_keys_share_a_partition_and_every_row_is_sent_once(
    client: pydanube.Client,
) -> None:
    messages = [{"payload": b"%d" % n, "routing_key": f"k{n % 7}"} for n in range(70)]
    async with client.producer(TOPIC, partitions=3) as producer:
        await producer.send_batch(messages)
        alone = await producer.send(b"x", routing_key="k3")
    rows = await rows_of(client)
    assert sorted(int(row["payload"]) for row in rows if row["payload"] != b"x") == list(range(70))
    assert {row["topic"] for row in rows if row["routing_key"] == "k3"} == {alone.topic}
    assert len({row["topic"] for row in rows}) > 1


async def test_a_topic_that_is_not_there_cannot_be_read(client: pydanube.Client) -> None:
    with pytest.raises(pydanube.NotFound):
        await rows_of(client)


@pytest.mark.parametrize(
    "data", [b"alone", 7, [1], [{"payload": None}], [{"payload": b"", "a": 1}]]
)
async def test_what_is_no_batch_is_refused(client: pydanube.Client, data: Any) -> None:
    async with client.producer(TOPIC) as producer:
        with pytest.raises(pydanube.InvalidRequest):
            await producer.send_batch(data)


async def test_a_batch_whose_answer_was_lost_is_stored_once(
    danube_broker: pydanube.Broker,
) -> None:
    trouble = [StatusCode.UNAVAILABLE]
    async with (
        pydanube.connect(
            danube_broker.url, open_channel=lambda url: TroubledChannel(url, trouble)
        ) as client,
        client.producer(TOPIC) as producer,
    ):
        assert await producer.send_batch([b"a", b"b"]) == [pydanube.SentBatch(TOPIC, 0, 2)]
        assert trouble == []
        assert [row["payload"] for row in await rows_of(client)] == [b"a", b"b"]


async def test_two_lives_of_a_named_producer_do_not_swallow_each_other(
    client: pydanube.Client,
) -> None:
    for _ in range(2):
        async with client.producer(TOPIC, name="till") as producer:
            await producer.send_batch([b"a"])
    assert len(await rows_of(client)) == 2


async def test_a_broker_without_batches_gets_messages_and_one_note(
    danube_broker: pydanube.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    trouble = [StatusCode.UNIMPLEMENTED]
    caplog.set_level(logging.WARNING, "pydanube.client")
    async with (
        pydanube.connect(
            danube_broker.url, open_channel=lambda url: TroubledChannel(url, trouble)
        ) as client,
        client.producer(TOPIC) as producer,
    ):
        message = {"payload": b"a", "attributes": {"x": "y"}}
        assert [each.offset for each in await producer.send_batch([message, message])] == [0, 1]
        await producer.send_batch([b"c"])
        rows = await rows_of(client)
    assert [row["attributes"] for row in rows] == [{"x": "y"}, {"x": "y"}, None]
    assert len([r for r in caplog.records if "has no Arrow Flight" in r.message]) == 1


async def test_batches_sent_together_are_all_stored(client: pydanube.Client) -> None:
    async with client.producer(TOPIC) as producer:
        await asyncio.gather(*(producer.send_batch([b"a"] * 10) for _ in range(10)))
    assert len(await rows_of(client)) == 100


async def test_frames_are_made_by_the_library_that_is_asked_for(
    client: pydanube.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_batch([b"a"])
    polars = types.ModuleType("polars")
    monkeypatch.setattr(polars, "from_arrow", lambda table: ("frame", table), raising=False)
    monkeypatch.setitem(sys.modules, "polars", polars)
    kind, table = await client.reader(TOPIC).to_polars()
    assert (kind, table.column("payload").to_pylist()) == ("frame", [b"a"])
