"""Callers that send and never read: no more is taken from them than can be answered."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pydanube.broker.servicers import flight_consuming, flight_publishing
from pydanube.wire.calls import Call, whole
from pydanube.wire.flight import framing, service
from pydanube.wire.flight.convert import SCHEMA_MESSAGE
from tests.support.running_broker import RunningBroker
from tests.support.served_topic import batch_from

TOPIC = "/default/orders"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    running = RunningBroker(tmp_path / "data")
    await running.start()
    yield running
    await running.close()


class Requests(AsyncIterator[bytes]):
    """As many of the same request as are taken, after a first one."""

    def __init__(self, first: bytes, then: bytes) -> None:
        self._first = first
        self._then = then
        self.taken = 0

    async def __anext__(self) -> bytes:
        await asyncio.sleep(0)
        self.taken += 1
        return self._first if self.taken == 1 else self._then


async def begin(broker: RunningBroker, path: str, requests: Requests):
    """Call without any wire between, so that nothing but the handler can hold requests."""
    handler = broker.server._broker.client_gate.table.exchanges[path]
    return await handler(requests, Call(path=path, peer="ipv4:test:1", metadata={}))


async def until_still(requests: Requests) -> int:
    seen = -1
    while seen != requests.taken:
        seen = requests.taken
        await asyncio.sleep(0.3)
    return seen


def first_request(command: dict[str, object], ipc_message: bytes = b"") -> bytes:
    descriptor = framing.Descriptor(framing.COMMAND, json.dumps(command).encode())
    data = whole(framing.flight_data(ipc_message)) if ipc_message else b""
    return framing.bytes_field(1, framing.write_descriptor(descriptor)) + data


async def test_batches_whose_results_are_not_read_are_not_taken_for_ever(broker):
    batch = whole(framing.flight_data(batch_from(b"x").data))
    requests = Requests(first_request({"topic": TOPIC}, SCHEMA_MESSAGE), batch)
    results = await begin(broker, service.DO_PUT, requests)
    assert len(await anext(results)) > 0
    taken = await until_still(requests)
    assert taken <= 2 * flight_publishing.UNANSWERED_BATCHES_MAX
    answered = 0
    while answered < taken:
        answered += len(await anext(results))
    assert requests.taken > taken, "it goes on when results are read"
    await results.aclose()
    before = requests.taken
    await asyncio.sleep(0.05)
    assert requests.taken == before, "nothing is read after the end"


async def test_large_batches_are_bounded_by_their_bytes(broker):
    batch = whole(framing.flight_data(batch_from(bytes(1024 * 1024)).data))
    requests = Requests(first_request({"topic": TOPIC}, SCHEMA_MESSAGE), batch)
    results = await begin(broker, service.DO_PUT, requests)
    await anext(results)
    assert await until_still(requests) <= 3 + flight_publishing.UNANSWERED_BYTES_MAX // 2**20
    await results.aclose()


async def test_acks_whose_answers_are_not_read_are_not_taken_for_ever(broker):
    client = broker.client()
    await client.send(TOPIC, await client.create_producer(TOPIC))
    words = framing.metadata_only(b'{"ack": [[0, 1]], "id": 7}')
    command = {"topic": TOPIC, "subscription": "s", "consumer": "c"}
    requests = Requests(first_request(command), words)
    groups = await begin(broker, service.DO_EXCHANGE, requests)
    await anext(groups)
    taken = await until_still(requests)
    assert taken <= flight_consuming.UNSENT_NOTICES_MAX + 2
    notices = await anext(groups)
    assert framing.read_flight_data(notices[0]).app_metadata == b'{"acked":7}'
    await until_still(requests)
    assert requests.taken > taken
    await groups.aclose()


async def test_a_consumer_is_sent_no_more_than_it_takes(broker, monkeypatch):
    read = 0
    read_pieces = flight_consuming.read_pieces

    async def counting(*arguments):
        nonlocal read
        async for piece in read_pieces(*arguments):
            read += len(piece.batch.data)
            yield piece

    monkeypatch.setattr(flight_consuming, "read_pieces", counting)
    client = broker.client()
    producer = await client.create_producer(TOPIC)
    for _ in range(40):
        await client.send(TOPIC, producer, bytes(200_000))
    command = {
        "topic": TOPIC,
        "subscription": "s",
        "consumer": "c",
        "credit": 1_000,
        "start_position": "earliest",
    }
    requests = Requests(first_request(command), framing.metadata_only(b"{}"))
    groups = await begin(broker, service.DO_EXCHANGE, requests)
    await anext(groups)
    await anext(groups)
    await asyncio.sleep(0.1)
    assert read <= 2 * 1024 * 1024
    await groups.aclose()
