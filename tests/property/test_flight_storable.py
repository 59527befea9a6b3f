"""Whatever the door of batches lets in can become a segment, and is read back from it unchanged.

A batch that was let in and could not be exported would hold its topic's history, and the journal,
for ever.
"""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pydanube.errors import InvalidRequest
from pydanube.model.batch import SCHEMA, Batch
from pydanube.model.ids import Offset, TopicId
from pydanube.storage.pieces import Piece
from pydanube.storage.segments.decoding import read_layout
from pydanube.storage.segments.encoding import SegmentEncoder, SegmentOrigin
from tests.support.arrow_streams import cut, intake, stream_messages

ORIGIN = SegmentOrigin(topic="/default/orders-part-3", topic_id=TopicId(7), epoch=2)
BASE = Offset(40)

MAP = pa.map_(pa.utf8(), pa.utf8())
TEXT = st.text(max_size=6)
PAIRS = st.lists(st.tuples(TEXT, st.none() | TEXT), max_size=3, unique_by=lambda pair: pair[0])
TIMES = st.integers(-2, 2**63 - 1) | st.sampled_from([0, 1_700_000_000_000])
# Each column in the types a sender may choose; every one may hold nulls, whether allowed or not.
COLUMNS = {
    "publish_time": (TIMES, [pa.int64(), pa.timestamp("ms", "UTC")]),
    "producer_name": (TEXT, [pa.utf8(), pa.large_utf8(), pa.dictionary(pa.int8(), pa.utf8())]),
    "routing_key": (TEXT, [pa.utf8(), pa.dictionary(pa.int16(), pa.large_utf8())]),
    "attributes": (PAIRS, [MAP, pa.map_(pa.large_utf8(), pa.utf8())]),
    "schema_id": (st.integers(0, 2**64 - 1), [pa.uint64()]),
    "schema_version": (st.integers(0, 2**32 - 1), [pa.uint32()]),
    "payload": (st.binary(max_size=30), [pa.binary(), pa.large_binary()]),
}


@st.composite
def sent_batches(draw):
    """A batch as somebody may send it: in our schema or another, with nulls anywhere."""
    rows = draw(st.integers(1, 12))
    ours = draw(st.booleans())
    columns = {}
    for name, (values, kinds) in COLUMNS.items():
        kind = SCHEMA.field(name).type if ours else draw(st.sampled_from(kinds))
        if not ours and name != "payload" and draw(st.booleans()):
            continue
        with_nulls = draw(st.sampled_from([values, values, values | st.none()]))
        cells = draw(st.lists(with_nulls, min_size=rows, max_size=rows))
        columns[name] = _column(cells, kind)
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    first = draw(st.integers(0, rows - 1))
    return batch.slice(first)


def _column(cells, kind):
    if pa.types.is_dictionary(kind):
        return pa.array(cells, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(cells, kind)


@given(sent_batches(), st.sampled_from([None, "zstd"]))
def test_what_is_let_in_is_read_back_from_a_segment_unchanged(batch, codec):
    for taken in batches_let_in(stream_messages(batch.schema, [batch], compression=codec)):
        assert through_a_segment(taken) == taken.record_batch().to_pylist()


@given(
    sent_batches(),
    st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_of_damaged_batches_too_only_what_can_be_stored_is_let_in(batch, damage):
    stream = stream_messages(batch.schema, [batch])
    last = bytearray(stream[-1])
    for place, value in damage:
        last[8 + place % (len(last) - 8)] = value
    for taken in batches_let_in([*stream[:-1], bytes(last)], stream[-1]):
        assert through_a_segment(taken) == taken.record_batch().to_pylist()


@given(st.lists(st.integers(0, 2), min_size=2, max_size=8), st.data())
def test_maps_with_rows_of_nothing_in_between_are_stored_as_they_are(lengths, data):
    """A null row may own entries, and the first row need not begin at the first entry."""
    starts = [data.draw(st.integers(0, 2))]
    for length in lengths:
        starts.append(starts[-1] + length)
    entries = starts[-1] + data.draw(st.integers(0, 2))
    absent = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    bits = sum(1 << row for row, gone in enumerate(absent) if not gone).to_bytes(8, "little")
    child = pa.StructArray.from_arrays(
        [pa.array([f"{what}{n}" for n in range(entries)], pa.utf8()) for what in "kv"],
        fields=[MAP.key_field, MAP.item_field],
    )
    attributes = pa.Array.from_buffers(
        MAP,
        len(lengths),
        [pa.py_buffer(bits), pa.py_buffer(pa.array(starts, pa.int32()).buffers()[1])],
        children=[child],
    )
    batch = pa.record_batch(
        [attributes, pa.array([b"x"] * len(lengths))], names=["attributes", "payload"]
    )
    for taken in batches_let_in(stream_messages(batch.schema, [batch])):
        assert through_a_segment(taken) == taken.record_batch().to_pylist()


def batches_let_in(messages: list[bytes], undamaged_last: bytes | None = None) -> list[Batch]:
    taking, taken = intake(), []
    for number, message in enumerate(messages):
        header, body = cut(message)
        if undamaged_last is not None and number == len(messages) - 1:
            size = len(cut(undamaged_last)[0])
            header, body = memoryview(message)[8 : 8 + size], (memoryview(message)[8 + size :],)
        try:
            batch = taking.take(header, body)
        except InvalidRequest:
            return taken
        if batch is not None and batch.count:
            taken.append(batch)
    return taken


def through_a_segment(batch: Batch) -> list[dict[str, object]]:
    encoder = SegmentEncoder(ORIGIN, BASE)
    encoder.add([Piece(BASE, batch, 0, batch.count)])
    segment = encoder.finish()
    layout = read_layout(segment.data, len(segment.data), topic_id=7, base=BASE, rows=batch.count)
    rows: list[dict[str, object]] = []
    for number, group in enumerate(layout.groups):
        data = segment.data[group.position : group.position + group.size]
        for piece in layout.decode(number, data):
            rows += piece.batch.record_batch().to_pylist()
    return rows
