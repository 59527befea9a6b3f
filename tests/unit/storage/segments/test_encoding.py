import itertools

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from pydanube.errors import Corruption
from pydanube.model.batch import SCHEMA, Batch
from pydanube.model.ids import Offset, TopicId
from pydanube.model.message import Message
from pydanube.runtime.randomness import SeededRandomness
from pydanube.storage.pieces import Piece
from pydanube.storage.segments import encoding
from pydanube.storage.segments.decoding import (
    SegmentLayout,
    first_at_time,
    footer_bytes,
    read_layout,
)
from pydanube.storage.segments.encoding import EncodedSegment, SegmentEncoder, SegmentOrigin
from tests.support.segment_rows import any_messages, in_pieces, messages_in

ORIGIN = SegmentOrigin(topic="/default/orders-part-3", topic_id=TopicId(7), epoch=2)


def encode(pieces, origin: SegmentOrigin = ORIGIN) -> EncodedSegment:
    encoder = SegmentEncoder(origin, pieces[0].start)
    encoder.add(pieces)
    return encoder.finish()


def layout_of(segment: EncodedSegment, **other) -> SegmentLayout:
    expected = {
        "topic_id": ORIGIN.topic_id,
        "base": segment.base,
        "rows": segment.end - segment.base,
        **other,
    }
    return read_layout(
        segment.data[-footer_bytes(segment.data[-100:]) :], len(segment.data), **expected
    )


def decode(segment: EncodedSegment, number: int) -> list[Piece]:
    layout = layout_of(segment)
    group = layout.groups[number]
    return layout.decode(number, segment.data[group.position : group.position + group.size])


def one_message(**fields) -> Message:
    return structs.replace(Message(payload=b"x", publish_time_ms=1, producer_name="p"), **fields)


def test_every_column_of_every_message_comes_back_in_order(monkeypatch) -> None:
    monkeypatch.setattr(encoding, "GROUP_ROWS_MAX", 70)
    randomness = SeededRandomness(1)
    messages = any_messages(randomness, 500)
    segment = encode(in_pieces(messages, 1000, randomness))
    groups = layout_of(segment).groups
    assert [group.rows for group in groups] == [70] * 7 + [10]
    pieces = [piece for number in range(len(groups)) for piece in decode(segment, number)]
    assert messages_in(pieces) == messages
    assert pieces[0].start == 1000
    assert all(a.end == b.start for a, b in itertools.pairwise(pieces))
    assert (segment.base, segment.end) == (1000, 1500)


def test_a_row_group_holds_at_most_its_bytes_unless_one_message_is_larger(monkeypatch) -> None:
    monkeypatch.setattr(encoding, "GROUP_BYTES_MAX", 10_000)
    payloads = [b"s" * 100] * 50 + [b"l" * 20_000] + [b"s" * 100] * 50
    batch = Batch.gather([one_message(payload=payload) for payload in payloads])
    segment = encode([Piece(Offset(0), batch, 0, batch.count)])
    groups = layout_of(segment).groups
    assert [group.rows for group in groups].count(1) == 1
    assert len(groups) == 3
    assert [m.payload for n in range(3) for m in messages_in(decode(segment, n))] == payloads


def test_columns_are_stored_as_the_format_says() -> None:
    randomness = SeededRandomness(2)
    segment = encode(in_pieces(any_messages(randomness, 100), 0, randomness))
    file = pq.ParquetFile(pa.BufferReader(segment.data))
    stored = {field.name: str(field.type).partition("<")[0] for field in file.schema_arrow}
    assert stored == {
        field.name: str(field.type).partition("<")[0] for field in encoding.SEGMENT_SCHEMA
    }
    group = file.metadata.row_group(0)
    chunks = {
        group.column(n).path_in_schema.partition(".")[0]: group.column(n)
        for n in range(group.num_columns)
    }
    with_statistics = {name for name, chunk in chunks.items() if chunk.is_stats_set}
    with_dictionary = {name for name, chunk in chunks.items() if chunk.has_dictionary_page}
    assert with_statistics == {"partition", "offset", "publish_time", "routing_key"}
    assert with_dictionary == {"topic", "producer_name", "schema_id", "schema_version"}
    assert {chunk.compression for chunk in chunks.values()} == {"ZSTD"}
    assert "DELTA_BINARY_PACKED" in chunks["offset"].encodings
    assert all(chunks[name].has_column_index for name in with_statistics)
    assert [column.column_index for column in group.sorting_columns] == [2]
    assert file.metadata.metadata == {
        b"danube.format": b"1",
        b"danube.topic": b"/default/orders-part-3",
        b"danube.topic_id": b"7",
        b"danube.epoch": b"2",
        b"danube.base_offset": b"0",
        b"danube.rows": b"100",
    }
    rows = file.read(columns=["topic", "partition", "offset"]).to_pydict()
    assert set(rows["topic"]) == {"/default/orders"}
    assert set(rows["partition"]) == {3}
    assert rows["offset"] == list(range(100))


def test_readers_find_an_empty_map_where_a_message_has_no_attributes() -> None:
    given = [None, {"a": "1"}, None]
    batch = Batch.gather([one_message(attributes=each) for each in given])
    segment = encode([Piece(Offset(0), batch, 0, 3)])
    stored = pq.read_table(pa.BufferReader(segment.data)).column("attributes")
    assert stored.to_pylist() == [[], [("a", "1")], []]
    assert [each.attributes for each in messages_in(decode(segment, 0))] == given


def test_a_plain_topic_is_partition_0() -> None:
    batch = Batch.gather([one_message()])
    plain = SegmentOrigin(topic="/default/orders", topic_id=TopicId(7), epoch=0)
    segment = encode([Piece(Offset(0), batch, 0, 1)], plain)
    rows = pq.read_table(pa.BufferReader(segment.data)).to_pydict()
    assert (rows["topic"], rows["partition"]) == (["/default/orders"], [0])


def test_times_and_schema_ids_are_summed_up() -> None:
    messages = [one_message(publish_time_ms=t, schema_id=t % 3) for t in (50, 7, 99)]
    segment = encode([Piece(Offset(0), Batch.gather(messages), 0, 3)])
    assert (segment.min_time_ms, segment.max_time_ms) == (7, 99)
    assert segment.schema_ids == (0, 1, 2)
    many = [one_message(schema_id=number) for number in range(65)]
    assert encode([Piece(Offset(0), Batch.gather(many), 0, 65)]).schema_ids is None
    assert encode([Piece(Offset(0), Batch.gather(many), 0, 64)]).schema_ids == tuple(range(64))


def test_the_first_offset_at_a_time_is_found_though_clocks_jump() -> None:
    times = [5, 3, 9, 2, 9]
    batch = Batch.gather([one_message(publish_time_ms=t) for t in times])
    pieces = decode(encode([Piece(Offset(10), batch, 0, 5)]), 0)
    assert [first_at_time(pieces, t) for t in (0, 4, 6, 9, 10)] == [10, 10, 12, 12, None]


def test_a_damaged_page_is_noticed_when_it_is_read() -> None:
    batch = Batch.gather([one_message(payload=b"payload %d" % n) for n in range(1000)])
    segment = encode([Piece(Offset(0), batch, 0, 1000)])
    layout = layout_of(segment)
    group = layout.groups[0]
    data = bytearray(segment.data[group.position : group.position + group.size])
    data[-20] ^= 1
    with pytest.raises(Corruption, match="offsets 0 to 999"):
        layout.decode(0, bytes(data))


@pytest.mark.parametrize("other", [{"topic_id": 8}, {"base": 1}, {"rows": 2}])
def test_another_segment_in_its_place_is_noticed(other: dict[str, int]) -> None:
    batch = Batch.gather([one_message()])
    segment = encode([Piece(Offset(0), batch, 0, 1)])
    layout_of(segment)
    with pytest.raises(Corruption, match="catalogue says"):
        layout_of(segment, **other)


def test_what_is_no_parquet_file_is_noticed() -> None:
    with pytest.raises(Corruption, match="does not end"):
        footer_bytes(b"something else")
    with pytest.raises(Corruption, match="footer"):
        read_layout(b"no footer\x05\0\0\0PAR1", 100, topic_id=7, base=Offset(0), rows=1)


def test_messages_without_a_payload_are_refused_by_name() -> None:
    columns = Batch.gather([one_message()]).record_batch()
    without = columns.set_column(6, SCHEMA.field(6), pa.nulls(1, pa.binary()))
    batch = Batch.from_bytes(without.serialize().to_pybytes(), 1)
    with pytest.raises(Corruption, match="payload"):
        encode([Piece(Offset(0), batch, 0, 1)])


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_batch_weighs_what_it_unpacks_to(compression: str) -> None:
    messages = [one_message(payload=b"tea" * 1000)] * 100
    plain = Batch.gather(messages)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
        writer.write_batch(plain.record_batch())
    packed = Batch.from_bytes(sink.getvalue().to_pybytes()[len(SCHEMA.serialize()) : -8], 100)
    assert len(packed.data) * 10 < len(plain.data)
    of_plain, of_packed = (
        encode([Piece(Offset(0), batch, 0, 60), Piece(Offset(0), batch, 60, 100)])
        for batch in (plain, packed)
    )
    assert of_packed.raw_bytes == pytest.approx(of_plain.raw_bytes, rel=0.02)
    assert messages_in(decode(of_packed, 0)) == messages_in(decode(of_plain, 0))
