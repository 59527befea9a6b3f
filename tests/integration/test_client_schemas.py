"""The client's schemas: references, types that register themselves, payloads that are decoded."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec
import pydantic
import pytest

import pydanube
from pydanube.client import schemas
from pydanube.client.schema_calls import unwrapped
from tests.support.schema_calls import ORDER, ORDER_RENUMBERED, ORDER_WITH_NOTE

TOPIC = "/default/orders"


@dataclass
class Order:
    id: int
    note: str = ""


@dataclass
class OrderWithTags:
    id: int
    note: str = ""
    tags: list[str] = field(default_factory=list)


@dataclass
class Renumbered:
    id: str
    note: str = ""


class StructOrder(msgspec.Struct):
    id: int
    note: str = ""


class PydanticOrder(pydantic.BaseModel):
    id: int
    note: str = ""


@pytest.fixture
async def broker() -> AsyncIterator[pydanube.Broker]:
    async with pydanube.Broker() as broker:
        yield broker


@pytest.fixture
async def client(broker: pydanube.Broker) -> AsyncIterator[pydanube.Client]:
    async with pydanube.connect(broker.url) as client:
        yield client


async def received(
    client: pydanube.Client, count: int, subscription: str = "all"
) -> list[pydanube.ReceivedMessage]:
    consumer = client.consumer(TOPIC, subscription, start_position="earliest")
    async with consumer as messages:
        found = []
        async with asyncio.timeout(20):
            async for message in messages:
                found.append(message)
                await messages.ack(message)
                if len(found) == count:
                    break
        return found


async def test_a_tour_through_the_registry(client: pydanube.Client) -> None:
    registry = client.schemas
    first = await registry.register("orders", ORDER, tags=["a"])
    second = await registry.register("orders", ORDER_WITH_NOTE.decode(), description="a note")
    assert (first.schema_id, first.version, second.version) == (1, 1, 2)
    assert (await registry.get("orders")).definition == ORDER_WITH_NOTE
    assert (await registry.get("orders", 1)).tags == ["a"]
    assert (await registry.get_by_id(1, 2)).description == "a note"
    assert [each.version for each in await registry.versions("orders")] == [1, 2]
    assert [each.subject for each in await registry.subjects()] == ["orders"]
    report = await registry.check("orders", ORDER_RENUMBERED)
    assert (report.is_compatible, bool(report.errors)) == (False, True)
    with pytest.raises(pydanube.Conflict, match="id"):
        await registry.register("orders", ORDER_RENUMBERED)
    await registry.set_compatibility("orders", "none")
    assert (await registry.register("orders", ORDER_RENUMBERED)).version == 3
    await registry.delete_version("orders", 3)
    with pytest.raises(pydanube.NotFound):
        await registry.get("orders", 3)
    assert await registry.delete_subject("orders") == [1, 2]
    with pytest.raises(pydanube.NotFound):
        await registry.get("orders")


async def test_messages_carry_what_their_producer_refers_to(client: pydanube.Client) -> None:
    await client.schemas.register("orders", ORDER)
    await client.schemas.register("orders", ORDER_WITH_NOTE)
    reference = pydanube.SchemaReference
    references: list[str | pydanube.SchemaReference] = [
        "orders",
        reference(subject="orders", version=1),
        reference(subject="orders", min_version=2),
    ]
    for schema in references:
        async with client.producer(TOPIC, schema=schema) as producer:
            await producer.send(b'{"id": 1}')
            await producer.send_batch([b'{"id": 2}', b'{"id": 3}'])
    await client.schemas.configure_topic(TOPIC, "orders")
    found = await received(client, 9)
    assert {each.schema_id for each in found} == {1}
    assert [each.schema_version for each in found] == [2, 2, 2, 1, 1, 1, 2, 2, 2]
    for missing, words in (
        (reference(subject="orders", version=9), "version 9"),
        (reference(subject="orders", min_version=3), "3"),
        ("nothing", "not found"),
    ):
        with pytest.raises(pydanube.NotFound, match=words):
            await client.producer("/default/other", schema=missing)


async def test_one_invalid_message_of_many_is_refused_and_the_others_are_stored(
    client: pydanube.Client,
) -> None:
    await client.schemas.register("orders", ORDER)
    async with client.producer(TOPIC, schema="orders") as producer:
        await client.schemas.configure_topic(TOPIC, "orders")
        payloads = [b'{"id": "x"}' if n == 7 else b'{"id": %d}' % n for n in range(20)]
        outcomes = await asyncio.gather(
            *(producer.send(each) for each in payloads), return_exceptions=True
        )
        refused = [n for n, each in enumerate(outcomes) if isinstance(each, BaseException)]
        assert refused == [7]
        assert "payload_invalid" in str(outcomes[7])
        with pytest.raises(pydanube.InvalidRequest, match="row 1 of 2"):
            await producer.send_batch([b'{"id": 1}', b"no"])
    found = await received(client, 19)
    assert [each.payload for each in found] == [payloads[n] for n in range(20) if n != 7]


@pytest.mark.parametrize("kind", [Order, StructOrder, PydanticOrder])
async def test_a_type_registers_itself_once_and_is_enforced(
    client: pydanube.Client, kind: type
) -> None:
    for _ in range(2):
        async with client.producer(TOPIC, type=kind, schema="orders") as producer:
            await client.schemas.configure_topic(TOPIC, "orders")
            await producer.send(kind(id=1, note="x"))
    assert [each.version for each in await client.schemas.versions("orders")] == [1]
    consumer = client.consumer(
        TOPIC, "typed", type=kind, schema="orders", start_position="earliest"
    )
    async with consumer as messages:
        message = await anext(aiter(messages))
        assert message.value == kind(id=1, note="x")
        assert (message.schema_id, message.schema_version) == (1, 1)
        assert await client.schemas.decode(message) == {"id": 1, "note": "x"}


async def test_a_type_that_changes_becomes_a_version_or_is_refused(
    client: pydanube.Client,
) -> None:
    async with client.producer(TOPIC, type=Order, schema="orders") as producer:
        await producer.send(Order(1))
    async with client.producer(TOPIC, type=OrderWithTags, schema="orders") as producer:
        await producer.send(OrderWithTags(2))
    with pytest.raises(pydanube.Conflict, match="id"):
        await client.producer(TOPIC, type=Renumbered, schema="orders")
    assert [each.schema_version for each in await received(client, 2)] == [1, 2]
    with pytest.raises(pydanube.Conflict, match="cannot read version 2 of orders"):
        await client.consumer(TOPIC, "typed", type=Renumbered, schema="orders")
    with pytest.raises(pydanube.InvalidRequest, match="name the subject alone"):
        await client.producer(
            TOPIC, type=Order, schema=pydanube.SchemaReference(subject="orders", version=1)
        )


async def test_payloads_are_decoded_by_the_version_each_message_names(
    client: pydanube.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemas, "PARSED_MAX", 1)
    monkeypatch.setattr(schemas, "KEPT_MAX", 1)
    fields = [{"name": "id", "type": "long"}]
    avro = {"type": "record", "name": "Order", "fields": fields}
    await client.schemas.register("orders", json.dumps(avro), "avro")
    fields.append({"name": "note", "type": "string", "default": ""})  # type: ignore[dict-item]
    await client.schemas.register("orders", json.dumps(avro), "avro")
    for version, payload in ((1, b"\x02"), (2, b"\x04\x02a"), (1, b"\x06")):
        reference = pydanube.SchemaReference(subject="orders", version=version)
        async with client.producer(TOPIC, schema=reference) as producer:
            await producer.send(payload)
    async with client.producer(TOPIC) as producer:
        await producer.send(b"?")
    *named, unnamed = await received(client, 4)
    assert [await client.schemas.decode(each) for each in named] == [
        {"id": 1},
        {"id": 2, "note": "a"},
        {"id": 3},
    ]
    with pytest.raises(pydanube.InvalidRequest, match="names no schema"):
        await client.schemas.decode(unnamed)


def test_definitions_of_other_brokers_are_taken_out_of_their_envelope() -> None:
    for wrapped, raw in (
        ({"JsonSchema": {"raw_schema": "{}", "fingerprint": "f"}}, b"{}"),
        ({"Avro": {"raw_schema": '"int"', "fingerprint": "f"}}, b'"int"'),
        ({"Protobuf": {"raw_proto": "message A {}", "message_name": "A"}}, b"message A {}"),
    ):
        text = json.dumps(wrapped, separators=(",", ":")).encode()
        assert unwrapped(text) == raw
    assert unwrapped(b'{"JsonSchema":7}') == b'{"JsonSchema":7}'
    assert unwrapped(ORDER) == ORDER


async def test_typed_handlers_register_what_they_publish_and_check_what_they_take(
    broker: pydanube.Broker, client: pydanube.Client
) -> None:
    app = pydanube.App(broker.url)

    @app.publisher("/default/invoices", schema="invoices")
    @app.subscriber(TOPIC, subscription="billing", start_position="earliest", schema="orders")
    async def bill(order: Order) -> StructOrder:
        return StructOrder(id=order.id, note="paid")

    async with client.producer(TOPIC, type=Order, schema="orders") as producer:
        await producer.send(Order(id=7))
    async with app:
        consumer = client.consumer("/default/invoices", "all", start_position="earliest")
        async with consumer as invoices, asyncio.timeout(20):
            message = await anext(aiter(invoices))
    assert await client.schemas.decode(message) == {"id": 7, "note": "paid"}
    assert (await client.schemas.get("invoices")).version == message.schema_version == 1
