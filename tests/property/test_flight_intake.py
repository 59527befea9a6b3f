"""Whatever bytes a stream holds, a batch that was taken can be read by everybody."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pydanube.errors import InvalidRequest
from pydanube.model.batch import SCHEMA, Batch
from pydanube.model.message import Message
from pydanube.wire.flight.convert import BATCH_BYTES_MAX, SCHEMA_MESSAGE, rows_message
from tests.support.arrow_streams import cut, intake, rows_of, stream_messages

TEXTS = st.text(max_size=5)
MESSAGES = st.builds(
    Message,
    payload=st.binary(max_size=20),
    publish_time_ms=st.integers(0, 2**63 - 1),
    producer_name=TEXTS,
    routing_key=st.none() | TEXTS,
    attributes=st.none() | st.dictionaries(TEXTS, TEXTS, min_size=1, max_size=3),
    schema_id=st.none() | st.integers(0, 2**64 - 1),
    schema_version=st.none() | st.integers(0, 2**32 - 1),
)
ROWS = st.lists(MESSAGES, min_size=1, max_size=8)

TABLES = [
    pa.record_batch([pa.array(["a", None, "ccc"], kind).fill_null("b")], names=["payload"])
    for kind in (pa.utf8(), pa.large_utf8())
] + [
    pa.record_batch(
        [
            pa.array(["x", "y", "x"]).dictionary_encode(),
            pa.array(["long enough to lie apart", "k", None], pa.large_utf8()),
            pa.array([[("a", "1")], None, []], pa.map_(pa.utf8(), pa.large_utf8())),
            pa.array([1, 2, None], pa.timestamp("us")),
        ],
        names=["payload", "routing_key", "attributes", "publish_time"],
    ),
    pa.record_batch(
        [
            pa.array([b"12", b"34", b"12"], pa.binary(2)),
            pa.array(["k", None, "l"]).dictionary_encode(),
            pa.array([7, None, 7], pa.int16()).dictionary_encode(),
            pa.array([1, None, 3], pa.int32()),
            pa.array([None, "p", None], pa.dictionary(pa.int8(), pa.large_utf8())),
        ],
        names=["payload", "routing_key", "schema_id", "schema_version", "producer_name"],
    ),
    Batch.gather(
        [
            Message(
                payload=bytes(range(row)),
                publish_time_ms=row,
                producer_name="p",
                routing_key="k" if row % 2 else None,
                attributes={"a": "1"} if row % 3 else None,
            )
            for row in range(12)
        ]
    ).record_batch(),
]
STREAMS = [
    stream_messages(table.schema, [table], compression=codec)
    for table in TABLES
    for codec in (None, "lz4", "zstd")
]


@given(ROWS)
def test_messages_in_columns_come_out_of_a_stream_as_they_went_in(messages):
    taking = intake()
    taking.take(*cut(SCHEMA_MESSAGE))
    ours = Batch.gather(messages)
    taken = taking.take(*cut(ours.data))
    assert taken is not None
    assert taken.data == ours.data
    assert taken.messages(0, taken.count) == messages


@given(ROWS, st.data())
def test_any_rows_of_a_batch_are_sent_as_those_messages(messages, data):
    first = data.draw(st.integers(0, len(messages) - 1))
    end = data.draw(st.integers(first + 1, len(messages)))
    part = Batch.from_bytes(rows_message(Batch.gather(messages), first, end), end - first)
    assert part.messages(0, part.count) == messages[first:end]


@given(
    st.sampled_from(STREAMS),
    st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, 64),
)
def test_damaged_streams_are_refused_or_harmless(stream, damage, cut_bytes):
    damaged = [bytearray(message) for message in stream]
    for place, value in damage:
        message = damaged[place % len(damaged)]
        # The first eight bytes are not sent by Flight; what is cut off is cut off the body.
        at = 8 + (place // len(damaged)) % (len(message) - 8)
        message[at] = value
    taking = intake()
    for message, whole in zip(damaged, stream, strict=True):
        header, _ = cut(whole)
        body = memoryview(bytes(message))[8 + len(header) :]
        header = memoryview(bytes(message))[8 : 8 + len(header)]
        if body:
            body = body[: len(body) - cut_bytes % len(body)]
        try:
            batch = taking.take(header, (body,))
        except InvalidRequest:
            continue
        if batch is not None and batch.count:
            assert_readable(batch)


def assert_readable(batch):
    assert len(batch.data) <= BATCH_BYTES_MAX
    columns = Batch.from_bytes(batch.data, batch.count).record_batch()
    columns.validate(full=True)
    assert columns.schema == SCHEMA
    assert len(rows_of(batch)) == batch.count
    messages = batch.messages(0, batch.count)
    assert all(message.publish_time_ms >= 0 for message in messages)
    assert all(None not in (message.attributes or {}).values() for message in messages)
    assert len(batch.routing_keys(0, batch.count)) == batch.count


@given(st.binary(max_size=200), st.binary(max_size=64), st.sampled_from([0, 1, 2]))
def test_bytes_that_never_were_arrow_are_refused(header, body, begun):
    taking = intake()
    for message in STREAMS[0][:begun]:
        taking.take(*cut(message))
    try:
        batch = taking.take(memoryview(header), (body,))
    except InvalidRequest:
        return
    assert batch is None or assert_readable(batch) is None
