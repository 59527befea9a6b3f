"""Batches on topics with schemas: one bad row refuses its batch, and nothing of it is stored."""

import pyarrow as pa
import pytest

from pydanube.topics import inspection
from tests.support.flight_peer import FlightPeer, call, payload_batch
from tests.support.running_broker import RunningBroker
from tests.support.schema_calls import ORDER, ORDER_WITH_NOTE, configure, register

TOPIC = "/default/orders"
GOOD, BAD = b'{"id": 1}', b'{"id": "x"}'


def orders(*payloads: bytes, version: int | None = 1, schema_id: int | None = 1) -> pa.RecordBatch:
    count = len(payloads)
    return payload_batch(
        payloads,
        schema_id=pa.array([schema_id] * count, pa.uint64()),
        schema_version=pa.array([version] * count, pa.uint32()),
    )


@pytest.fixture(autouse=True)
async def strict(broker: RunningBroker) -> None:
    client = broker.client()
    await register(client, "orders", ORDER)
    await register(client, "orders", ORDER_WITH_NOTE)
    await client.create_topic(TOPIC)
    await configure(client, TOPIC, "orders", "enforce")


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_bad_row_refuses_its_batch_and_ends_the_stream(
    peer: FlightPeer, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    if not at_once:
        monkeypatch.setattr(inspection, "AT_ONCE_BYTES_MAX", 0)

    def publish() -> tuple[list[object], str]:
        put = peer.put(TOPIC, orders(GOOD).schema)
        for batch in (orders(GOOD, GOOD), orders(GOOD, GOOD, BAD), orders(GOOD)):
            put.write(batch)
        results = [put.result()]
        return results, put.refusal()

    results, refused = await call(publish)
    assert results == [{"result": "applied", "rows": 2, "offset": 0}]
    assert "row 2 of 3" in refused
    assert "payload_invalid" in refused
    assert await call(peer.payloads, TOPIC) == [GOOD, GOOD]


async def test_ids_and_versions_reach_readers_and_consumers(peer: FlightPeer) -> None:
    await call(peer.publish, TOPIC, orders(GOOD, version=1), orders(GOOD, GOOD, version=2))
    rows = [row for found in await call(peer.read, TOPIC) for row in found.batch.to_pylist()]
    assert [(row["schema_id"], row["schema_version"]) for row in rows] == [(1, 1), (1, 2), (1, 2)]


async def test_a_batch_without_schemas_is_refused(peer: FlightPeer) -> None:
    def publish() -> str:
        batch = payload_batch([GOOD])
        put = peer.put(TOPIC, batch.schema)
        put.write(batch)
        return put.refusal()

    assert "missing_schema_id" in await call(publish)


async def test_a_subject_that_is_not_the_topics_is_refused(
    peer: FlightPeer, broker: RunningBroker
) -> None:
    await register(broker.client(), "prices")

    def publish() -> str:
        put = peer.put(TOPIC, orders(GOOD).schema, schema_subject="prices")
        return put.refusal()

    assert "cannot use prices" in await call(publish)
