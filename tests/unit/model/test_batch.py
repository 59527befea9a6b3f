import pyarrow as pa
import pytest

from pydanube.errors import Corruption, InvalidRequest
from pydanube.model import batch as batches
from pydanube.model.batch import SCHEMA, UNPACKED_KEPT_MAX, Batch, payloads_of
from pydanube.model.message import Message


def message(payload: bytes = b"x", name: str = "producer", **rest: object) -> Message:
    return Message(payload=payload, publish_time_ms=5, producer_name=name, **rest)  # type: ignore[arg-type]


MIXED = [
    message(b"", routing_key="key", attributes={"a": "1", "b": ""}, schema_id=2**64 - 1),
    message(b"\0\xff", name="other", schema_version=7),
    message(b"plain"),
]


def test_messages_come_back_as_they_went_in() -> None:
    assert Batch.gather(MIXED).messages(0, 3) == MIXED


def test_messages_come_back_from_the_stored_bytes() -> None:
    stored = Batch.from_bytes(Batch.gather(MIXED).data, 3)
    assert stored.messages(0, 3) == MIXED
    assert stored.messages(1, 2) == MIXED[1:2]
    assert stored.messages(3, 3) == []


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_payload_bytes_are_known_for_any_rows(compression: str | None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    rows = Batch.gather(MIXED).record_batch()
    stored = memoryview(rows.serialize())
    if compression is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
            writer.write_batch(rows)
        messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
        stored = memoryview(list(messages)[1].serialize())
    batch = Batch.from_bytes(stored, 3)
    for first in range(4):
        for end in range(first, 4):
            expected = sum(len(each.payload) for each in MIXED[first:end])
            assert batch.payload_bytes_of(first, end) == expected
    assert batch.payload_bytes == 7


def test_an_empty_map_of_attributes_is_none() -> None:
    batch = Batch.gather([message(b"plain", attributes={}), MIXED[0]])
    assert batch.record_batch().column("attributes").null_count == 1
    assert [each.attributes for each in batch.messages(0, 2)] == [None, MIXED[0].attributes]


def test_the_bytes_are_one_arrow_record_batch_of_the_schema() -> None:
    batch = Batch.gather(MIXED)
    columns = pa.ipc.read_record_batch(batch.data, SCHEMA)
    columns.validate(full=True)
    assert columns.column("payload").to_pylist() == [b"", b"\0\xff", b"plain"]


def test_the_original_requests_are_kept_when_every_message_has_one() -> None:
    alone = [message(wire=b"one"), message(wire=b"two")]
    batch = Batch.gather(alone)
    assert batch.wire == [b"one", b"two"]
    assert batch.size_bytes == len(batch.data) + 6
    assert batch.messages(1, 2)[0].wire == b"two"
    assert Batch.gather([*alone, message()]).wire is None


def test_a_row_without_a_key_is_routed_by_its_producer() -> None:
    batch = Batch.gather(MIXED)
    assert batch.routing_keys(0, 3) == ["key", "other", "producer"]
    assert batch.routing_keys(1, 3) == ["other", "producer"]


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        Batch.gather([])


def test_a_wrong_count_is_found_when_the_batch_is_opened() -> None:
    with pytest.raises(Corruption, match="holds 3 rows, its header says 4"):
        Batch.from_bytes(Batch.gather(MIXED).data, 4).record_batch()


def test_bytes_that_are_no_record_batch_are_found_when_the_batch_is_opened() -> None:
    with pytest.raises(Corruption):
        Batch.from_bytes(b"nonsense" * 10, 1).messages(0, 1)


def test_the_columns_of_one_batch_do_not_leak_into_the_next() -> None:
    first = Batch.gather([message(name="a"), message(name="a")])
    second = Batch.gather([message(name="a"), message(name="b", routing_key="k")])
    assert first.routing_keys(0, 2) == ["a", "a"]
    assert second.routing_keys(0, 2) == ["a", "k"]


@pytest.mark.parametrize(
    "payloads", [[b"one", b"", b"three"], [b"", b""], [b"x" * 3000], [b"a", b"b", b"c", b"d", b"e"]]
)
def test_payloads_are_the_same_without_arrow_objects_also_of_a_part(payloads: list[bytes]) -> None:
    messages = [Message(payload=each, publish_time_ms=1, producer_name="p") for each in payloads]
    rows = Batch.gather(messages).record_batch()
    assert payloads_of(rows) == payloads
    for first in range(len(payloads) + 1):
        for count in range(len(payloads) - first + 1):
            part = rows.slice(first, count)
            assert payloads_of(part) == payloads[first : first + count]


def compressed(count: int = 100) -> Batch:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
        writer.write_batch(Batch.gather([message(b"tea" * 100)] * count).record_batch())
    packed = sink.getvalue().to_pybytes()[len(SCHEMA.serialize()) : -8]
    return Batch.from_bytes(packed, count)


def test_a_compressed_batch_that_is_read_row_by_row_is_unpacked_twice_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = compressed()
    opened = []
    open_it = Batch._open
    monkeypatch.setattr(Batch, "_open", lambda self: opened.append(self) or open_it(self))
    for row in range(100):
        assert batch.messages(row, row + 1) == [message(b"tea" * 100)]
    assert opened == [batch, batch]


def test_few_unpacked_batches_are_kept() -> None:
    for _ in range(3 * UNPACKED_KEPT_MAX):
        batch = compressed(10)
        assert batch.messages(0, 1) == batch.messages(9, 10)
    assert batches._unpacked.cache_info().currsize <= UNPACKED_KEPT_MAX
    assert batch._columns is None, "nobody accounts for what lies beside the bytes"


def test_many_payloads_of_one_length_are_cut_where_they_end() -> None:
    payloads = [b"%05d" % number for number in range(2_500)]
    rows = Batch.gather([message(each) for each in payloads]).record_batch()
    assert payloads_of(rows) == payloads
    assert payloads_of(rows.slice(7, 2_000)) == payloads[7:2_007]
