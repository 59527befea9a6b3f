"""Rows of a frame as messages."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pydanube.client.routing import PartitionRouter
from pydanube.errors import InvalidRequest
from pydanube.spark.options import Access, WriteOptions
from pydanube.spark.sink.digests import digest_of
from pydanube.spark.sink.frames import (
    LENIENCE,
    Chunker,
    FrameColumns,
    batch_weight,
    check_frame,
    messages_of,
    partitions_for,
    row_weights,
    sort_rows,
    split_by_topic,
)
from pydanube.spark.sink.numbering import TaskIdentity, stream_owner

ACCESS = Access(urls=("http://x:1",))


def options(**given) -> WriteOptions:
    return WriteOptions(access=ACCESS, topic="/default/out", **given)


def test_a_frame_that_was_read_can_be_written():
    types = [("topic", "string"), ("partition", "int"), ("offset", "bigint"), ("payload", "binary")]
    assert check_frame(types, options()).message == ("payload",)


@pytest.mark.parametrize(
    ("types", "given", "words"),
    [
        ([("body", "string")], {}, "no column payload"),
        ([("payload", "int")], {}, "column payload is int"),
        ([("payload", "string"), ("colour", "string")], {}, "column colour is none"),
        ([("payload", "string"), ("payload", "string")], {}, "twice"),
        ([("payload", "string")], {"topic": None}, "no topic is given"),
        ([("payload", "string")], {"encode": "json"}, "there are none"),
        ([("payload", "string"), ("a", "int")], {"encode": "json"}, "has one already"),
        ([("payload", "binary")], {"producer_column": "p", "sequence_column": "s"}, "no column p"),
    ],
)
def test_a_frame_that_makes_no_messages_is_refused(types, given, words):
    with pytest.raises(InvalidRequest) as refused:
        check_frame(types, WriteOptions(access=ACCESS, **{"topic": "/default/out", **given}))
    assert words in str(refused.value)


def test_columns_become_json():
    columns = check_frame([("id", "int"), ("name", "string")], options(encode="json"))
    rows = pa.record_batch({"id": [1, 2], "name": ["a", None]})
    assert messages_of(rows, columns).column("payload").to_pylist() == [
        b'{"id":1,"name":"a"}',
        b'{"id":2,"name":null}',
    ]


def test_rows_without_payload_are_refused():
    columns = check_frame([("payload", "string")], options())
    with pytest.raises(InvalidRequest, match="1 rows have no payload"):
        messages_of(pa.record_batch({"payload": ["a", None]}), columns)


def test_columns_with_long_offsets_are_those_of_messages_with_short_ones():
    large, small = (
        pa.record_batch(
            {
                "payload": pa.array([b"a", b"bc"], binary),
                "routing_key": pa.array(["k", None], text),
                "attributes": pa.array([[("x", "y")], None], pa.map_(text, text)),
            }
        )
        for binary, text in ((pa.large_binary(), pa.large_utf8()), (pa.binary(), pa.utf8()))
    )
    columns = FrameColumns(message=("payload", "routing_key", "attributes"))
    assert messages_of(large, columns) == small
    assert digest_of(messages_of(large, columns)) == digest_of(small)
    texts = pa.record_batch({"payload": pa.array(["a"], pa.large_utf8())})
    payload = messages_of(texts, FrameColumns(message=("payload",))).column("payload")
    assert (payload.type, payload.to_pylist()) == (pa.binary(), [b"a"])


def test_an_empty_map_of_attributes_is_none():
    kind = pa.map_(pa.utf8(), pa.utf8())
    empty, none = (
        pa.record_batch({"payload": [b"a", b"b"], "attributes": pa.array(maps, kind)})
        for maps in ([[], [("x", "y")]], [None, [("x", "y")]])
    )
    columns = FrameColumns(message=("payload", "attributes"))
    assert messages_of(empty, columns) == none
    assert digest_of(messages_of(empty, columns)) == digest_of(messages_of(none, columns))


def test_rows_go_where_their_topic_says():
    rows = pa.record_batch({"topic": ["/a/x", "/a/y", "/a/x"], "payload": ["1", "2", "3"]})
    found = {
        topic: part.column("payload").to_pylist() for topic, part in split_by_topic(rows, None)
    }
    assert found == {"/a/x": ["1", "3"], "/a/y": ["2"]}


def test_keys_go_where_every_client_sends_them():
    keys = [f"key-{number}" for number in range(20)]
    chosen = partitions_for(pa.array(keys), pa.arange(0, 20), 7).to_pylist()
    assert chosen == [PartitionRouter(7).pick(key) for key in keys]


def test_rows_without_a_key_take_turns_by_their_number_in_the_task():
    assert partitions_for(None, pa.arange(5, 9), 3).to_pylist() == [2, 0, 1, 2]
    keys = pa.array([None, "a", None], pa.utf8())
    assert partitions_for(keys, pa.arange(0, 3), 2).to_pylist()[::2] == [0, 0]


_rows = st.lists(st.binary(max_size=40), min_size=1, max_size=60)


def chunks_of(batches, rows_max, bytes_max):
    chunker = Chunker(rows_max, bytes_max)
    found = [chunk for batch in batches for chunk in chunker.add(batch)]
    rest = chunker.rest()
    return [*found, *([rest] if rest is not None else [])]


@example([b"a"] * 6, [1], 2, 400)
@given(_rows, st.lists(st.integers(1, 59), max_size=5), st.integers(1, 9), st.integers(70, 400))
def test_chunks_hold_all_rows_in_their_order_and_no_more_than_they_may(
    payloads, cuts, rows_max, bytes_max
):
    whole = pa.record_batch({"payload": pa.array(payloads, pa.binary())})
    edges = sorted(cut for cut in set(cuts) if cut < len(payloads))
    batches = [
        whole.slice(low, high - low)
        for low, high in zip([0, *edges], [*edges, len(payloads)], strict=True)
    ]
    chunks = chunks_of(batches, rows_max, bytes_max)
    assert pa.concat_batches(chunks).column("payload").to_pylist() == payloads
    assert all(1 <= each.num_rows <= rows_max for each in chunks)
    weights = [(each.num_rows, pc.sum(row_weights(each)).as_py()) for each in chunks]
    assert all(count == 1 or weight <= bytes_max * LENIENCE for count, weight in weights)
    # A repeat has equal batches, wherever they happen to lie in memory.
    repeat = chunks_of([pa.concat_batches([each]) for each in batches], rows_max, bytes_max)
    assert [digest_of(each) for each in repeat] == [digest_of(each) for each in chunks]


def payload_address(rows):
    return rows.column("payload").buffers()[2].address


def test_a_large_batch_is_cut_evenly_and_not_copied():
    rows = pa.record_batch({"payload": pa.array([bytes(1_000)] * 400, pa.binary())})
    chunks = chunks_of([rows], 1_000, 200_000)
    assert [each.num_rows for each in chunks] == [200, 200]
    assert {payload_address(each) for each in chunks} == {payload_address(rows)}


def test_small_batches_gather_until_a_large_one_comes():
    whole = pa.record_batch({"payload": pa.array([b"%d" % n for n in range(29)], pa.binary())})
    sizes = [4, 4, 4, 1, 6, 2, 6, 2]
    batches = [whole.slice(sum(sizes[:n]), size) for n, size in enumerate(sizes)]
    chunks = chunks_of(batches, 10, 10_000)
    assert [each.num_rows for each in chunks] == [8, 5, 6, 2, 6, 2]
    assert pa.concat_batches(chunks) == whole


@given(
    st.lists(
        st.none() | st.lists(st.tuples(st.text(max_size=4), st.none() | st.text(max_size=9))),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 7),
)
def test_a_batch_weighs_what_its_rows_weigh(attributes, first):
    rows = pa.record_batch(
        {
            "attributes": pa.array(attributes, pa.map_(pa.utf8(), pa.utf8())),
            "payload": pa.array([b"x" * len(each or ()) for each in attributes]),
        }
    ).slice(min(first, len(attributes) - 1))
    assert batch_weight(rows) == pc.sum(row_weights(rows)).as_py()


def test_a_row_heavier_than_a_chunk_is_one_of_its_own():
    rows = pa.record_batch({"payload": pa.array([b"a", bytes(5_000), b"b"], pa.binary())})
    chunks = [each.column("payload").to_pylist() for each in chunks_of([rows], 10, 1_000)]
    assert chunks == [[b"a"], [bytes(5_000)], [b"b"]]


def test_a_digest_tells_rows_apart_by_their_values_alone():
    attributes = pa.map_(pa.utf8(), pa.utf8())

    def rows(payloads, keys, maps):
        return pa.record_batch(
            {
                "payload": pa.array(payloads, pa.binary()),
                "routing_key": pa.array(keys, pa.utf8()),
                "attributes": pa.array(maps, attributes),
                "schema_id": pa.array([1] * len(payloads)),
            }
        )

    one = rows([b"a", b"bc"], ["k", None], [[("x", "y")], None])
    assert digest_of(one) == digest_of(pa.concat_batches([one.slice(0, 1), one.slice(1)]))
    assert digest_of(one) == digest_of(pa.concat_batches([one, one]).slice(2))
    others = [
        rows([b"ab", b"c"], ["k", None], [[("x", "y")], None]),
        rows([b"a", b"bc"], ["k", ""], [[("x", "y")], None]),
        rows([b"a", b"bc"], ["k", None], [[("x", "y")], []]),
        rows([b"a", b"bc"], ["k", None], [[("x", "z")], None]),
        rows([b"bc", b"a"], [None, "k"], [None, [("x", "y")]]),
    ]
    assert len({digest_of(each) for each in [one, *others]}) == 6


def test_digests_stay_what_they_are_for_queries_that_go_on_after_an_update():
    rows = pa.record_batch(
        {
            "payload": pa.array([b"a", b"bc", b""], pa.binary()),
            "routing_key": pa.array(["k", None, "l"], pa.utf8()),
            "attributes": pa.array([[("x", "y")], None, []], pa.map_(pa.utf8(), pa.utf8())),
            "schema_id": pa.array([1, None, 2]),
            "schema_version": pa.nulls(3, pa.int32()),
        }
    )
    assert digest_of(rows) == 0x2851621135EF21B0
    assert digest_of(pa.concat_batches([rows, rows]).slice(3)) == digest_of(rows)


def test_sorting_gives_the_same_order_to_the_same_rows():
    table = pa.table(
        {
            "payload": [b"b", b"a", b"a"],
            "attributes": pa.array(
                [None, [("z", "1")], [("a", "1")]], pa.map_(pa.utf8(), pa.utf8())
            ),
        }
    )
    backwards = table.take([2, 1, 0])
    assert sort_rows(table).to_pylist() == sort_rows(backwards).to_pylist()
    assert sort_rows(table).column_names == table.column_names


def test_numbers_grow_from_batch_to_batch():
    def sequence(epoch: int, row: int) -> int:
        return TaskIdentity(owner=stream_owner("q"), epoch=epoch, task=3).sequence(row)

    assert sequence(0, 0) == 0
    assert sequence(1, 0) == 2**32
    assert sequence(0, 2**32 - 1) < sequence(1, 0) < sequence(1, 1)
    assert TaskIdentity(owner=stream_owner("q"), epoch=9, task=3).producer == "spark/q/3"
