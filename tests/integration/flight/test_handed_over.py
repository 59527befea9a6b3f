"""DoPut of batches that lie in memory which producer and broker share."""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pydanube.errors import InvalidRequest, Unavailable
from pydanube.model.batch import SCHEMA, Batch
from pydanube.model.message import Message
from pydanube.wire.flight.blocking import BlockingFlight, BlockingPut, Credentials
from pydanube.wire.flight.descriptors import BatchNumbers, PublishCommand
from pydanube.wire.flight.handing_over import HandedOver
from tests.support.flight_peer import Put, call, refusal_of

TOPIC = "/default/handed-over"
COMMAND = PublishCommand(topic=TOPIC, producer="spark", dispatch="reliable")


def rows(number: int, size: int = 500_000) -> pa.RecordBatch:
    """Return ten messages that differ from those of other numbers."""
    return Batch.gather(
        [
            Message(payload=bytes([number]) * (size // 10), publish_time_ms=row, producer_name="p")
            for row in range(10)
        ]
    ).record_batch()


def _raise(error: OSError) -> Callable[..., memoryview]:
    def refuse(*_: object) -> memoryview:
        raise error

    return refuse


class CountedWriter:
    """Counts what a DoPut sends itself."""

    def __init__(self, put: BlockingPut) -> None:
        self._writer: Any = put._writer
        put._writer = self
        self.batches = self.places = 0

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self.batches += 1
        self._writer.write_batch(batch)

    def write_with_metadata(self, batch: pa.RecordBatch, said: bytes) -> None:
        self.batches += 1
        self._writer.write_with_metadata(batch, said)

    def write_metadata(self, said: bytes) -> None:
        self.places += 1
        self._writer.write_metadata(said)

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
def connection(broker):
    url = f"http://127.0.0.1:{broker.server.client_port}"
    flight = BlockingFlight(url, Credentials(), 20.0)
    yield flight
    flight.close()


async def test_long_batches_lie_in_memory_and_short_ones_in_messages(connection, peers, broker):
    sent = [rows(1), rows(2, size=100), rows(3), rows(4, size=4_000_000), rows(5)]

    def publish() -> tuple[list[int | None], CountedWriter]:
        put = connection.put(COMMAND, SCHEMA)
        counted = CountedWriter(put)
        for batch in sent:
            put.write(batch, None)
        offsets = [put.answer().offset for _ in sent]
        put.close()
        return offsets, counted

    offsets, counted = await call(publish)
    assert offsets == [0, 10, 20, 30, 40]
    assert (counted.places, counted.batches) == (4, 1)
    assert [found.batch for found in await call(peers().read, TOPIC)] == sent
    await broker.restart()
    assert [found.batch for found in await call(peers().read, TOPIC)] == sent


async def test_memory_is_used_again_by_the_next_stream_and_by_no_other_at_a_time(connection):
    def streams() -> None:
        first, second = connection.put(COMMAND, SCHEMA), connection.put(COMMAND, SCHEMA)
        assert first._shared is not second._shared
        memory = first._shared
        assert memory is not None
        for put, number in ((first, 1), (second, 2)):
            put.write(rows(number), None)
            assert put.answer().rows == 10
        first.close()
        third = connection.put(COMMAND, SCHEMA)
        assert third._shared is memory
        third.close()
        second.close()

    await call(streams)


async def test_the_memory_of_a_stream_that_was_given_up_is_not_written_to_again(connection):
    def streams() -> None:
        given_up = connection.put(COMMAND, SCHEMA)
        given_up.write(rows(1), None)
        memory = given_up._shared
        del given_up
        put = connection.put(COMMAND, SCHEMA)
        assert put._shared is not memory
        put.close()

    await call(streams)


async def test_numbers_count_for_batches_in_memory(connection, peer):
    def publish() -> list[str]:
        results = []
        for _ in range(2):
            put = connection.put(COMMAND, SCHEMA)
            put.write(rows(7), BatchNumbers(first_sequence=0, last_sequence=9, digest=7))
            results.append(put.answer().result)
            put.close()
        return results

    assert await call(publish) == ["applied", "already_applied"]
    assert len(await call(peer.read, TOPIC)) == 1

    def publish_another() -> None:
        put = connection.put(COMMAND, SCHEMA)
        put.write(rows(8), BatchNumbers(first_sequence=0, last_sequence=9, digest=8))
        put.answer()

    with pytest.raises(InvalidRequest, match="SINK_NOT_DETERMINISTIC"):
        await call(publish_another)


async def test_a_broker_that_cannot_read_the_memory_is_sent_messages(connection, peer, monkeypatch):
    monkeypatch.setattr(
        "pydanube.wire.flight.handing_over.open_shared", _raise(PermissionError("not yours"))
    )

    def publish() -> CountedWriter:
        put = connection.put(COMMAND, SCHEMA)
        counted = CountedWriter(put)
        put.write(rows(1), None)
        put.answer()
        put.close()
        return counted

    counted = await call(publish)
    assert (counted.places, counted.batches) == (0, 1)
    assert [found.batch for found in await call(peer.read, TOPIC)] == [rows(1)]


async def test_memory_that_became_unreadable_can_be_asked_for_again(connection, monkeypatch):
    await call(lambda: connection.put(COMMAND, SCHEMA).close())
    monkeypatch.setattr(
        "pydanube.wire.flight.handing_over.open_shared", _raise(PermissionError("not yours"))
    )

    def publish() -> None:
        put = connection.put(COMMAND, SCHEMA)
        put.write(rows(1), None)
        put.answer()

    with pytest.raises(Unavailable, match="not yours") as refused:
        await call(publish)
    assert refused.value.retryable, "a new connection asks before it shares"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"place": {"start": 0, "length": 48 << 20}}, "not within"),
        ({"place": {"start": 48 << 20, "length": 1024}}, "not within"),
        ({"place": {"start": 1 << 20, "length": 1024}}, "no Arrow message"),
        ({"place": {"start": -1, "length": 1024}}, "place"),
        ({"place": {"start": 0}}, "length"),
        ({"first_sequence": 3}, "without a batch"),
    ],
)
async def test_bad_places_are_refused_and_nothing_is_stored(peer, said, reason):
    handed = HandedOver()

    def publish() -> str:
        put = Put(peer, SCHEMA, {"topic": TOPIC, "memory": handed.name})
        put.writer.write_metadata(json.dumps(said).encode())
        assert put.result() is None
        return put.refusal()

    assert reason in await call(publish)
    assert await call(peer.read, TOPIC) == []


async def test_garbage_in_memory_is_refused_as_it_is_in_a_message(peer):
    handed = HandedOver()
    place = handed.put(rows(1))
    assert place is not None
    handed._memory.view[place.start + 16 : place.start + 400] = bytes(range(128)) * 3

    def publish() -> str:
        put = Put(peer, SCHEMA, {"topic": TOPIC, "memory": handed.name})
        said = {"place": {"start": place.start, "length": place.length}}
        put.writer.write_metadata(json.dumps(said).encode())
        assert put.result() is None
        return put.refusal()

    assert await call(publish)
    assert await call(peer.read, TOPIC) == []


async def test_a_place_needs_memory_and_a_batch_only_one_of_both(peer):
    handed = HandedOver()
    said = json.dumps({"place": {"start": 0, "length": 1024}}).encode()

    def without_memory() -> str:
        put = Put(peer, SCHEMA, {"topic": TOPIC})
        put.writer.write_metadata(said)
        assert put.result() is None
        return put.refusal()

    def with_a_batch() -> str:
        put = Put(peer, SCHEMA, {"topic": TOPIC, "memory": handed.name})
        put.writer.write_with_metadata(rows(1, size=100), said)
        assert put.result() is None
        return put.refusal()

    assert "no shared memory that could hold" in await call(without_memory)
    assert "not both" in await call(with_a_batch)


async def test_memory_that_is_not_there_is_refused(peer):
    def publish() -> str:
        put = Put(peer, SCHEMA, {"topic": TOPIC, "memory": "1/2/" + "0" * 32})
        assert put.result() is None
        return put.refusal()

    assert "cannot be read" in await call(publish)
    assert "not exist" in await call(refusal_of, peer.read, TOPIC), "the topic was not created"


async def test_share_tells_what_can_be_read(connection):
    handed = HandedOver()
    assert await call(connection._can_read, handed.name) is True
    assert await call(connection._can_read, "1/2/" + "0" * 32) is False
