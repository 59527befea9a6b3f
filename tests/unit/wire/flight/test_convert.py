import pyarrow as pa
import pytest

from pydanube.errors import InvalidRequest
from pydanube.model.batch import SCHEMA, Batch
from pydanube.model.message import Message
from pydanube.wire.flight import convert
from tests.support.arrow_streams import (
    NOW_MS,
    cut,
    intake,
    refusal_of,
    rows_of,
    stream_messages,
    take_all,
    take_table,
)

MAP = pa.map_(pa.utf8(), pa.utf8())


def table(**columns):
    return pa.record_batch(list(columns.values()), names=list(columns))


def refused(batch, **options):
    return refusal_of(stream_messages(batch.schema, [batch]), **options)


def gathered(count=3, **fields):
    messages = [
        Message(payload=b"m%d" % row, publish_time_ms=row, producer_name="p", **fields)
        for row in range(count)
    ]
    return Batch.gather(messages)


class TestOurOwnLayout:
    def test_a_batch_of_our_schema_passes_as_the_bytes_it_came_in(self):
        ours = gathered(routing_key="k", attributes={"a": "1"}, schema_id=7, schema_version=1)
        (taken,) = take_all([convert.SCHEMA_MESSAGE, ours.data])
        assert taken.data == ours.data
        assert taken.count == 3

    def test_nullable_fields_and_metadata_of_the_schema_change_no_byte(self):
        loose = pa.schema(
            [pa.field(each.name, each.type, nullable=True) for each in SCHEMA], {"who": "spark"}
        )
        ours = gathered()
        (taken,) = take_all([loose.serialize().to_pybytes(), ours.data])
        assert taken.data == ours.data

    def test_several_batches_of_a_stream_are_taken_one_by_one(self):
        first, second = gathered(2), gathered(5)
        taken = take_all([convert.SCHEMA_MESSAGE, first.data, second.data])
        assert [batch.data for batch in taken] == [first.data, second.data]

    @pytest.mark.parametrize("codec", ["lz4", "zstd"])
    def test_a_compressed_batch_is_stored_as_it_came(self, codec):
        rows = gathered(200, attributes={"a": "1"}).record_batch()
        messages = stream_messages(SCHEMA, [rows], compression=codec)
        (taken,) = take_all(messages)
        assert taken.data == messages[1]
        assert len(taken.data) < rows.nbytes
        assert taken.record_batch() == rows

    def test_a_batch_of_fewer_bytes_than_rows_is_stored_plain(self):
        same = Message(payload=b"", publish_time_ms=1, producer_name="")
        rows = Batch.gather([same] * 60_000).record_batch()
        messages = stream_messages(SCHEMA, [rows], compression="zstd")
        assert len(messages[1]) < 60_000
        (taken,) = take_all(messages)
        assert taken.data == rows.serialize().to_pybytes()

    def test_an_empty_map_of_attributes_is_none(self):
        rows = gathered(3, attributes={"a": "1"}).record_batch()
        place = SCHEMA.get_field_index("attributes")
        for sent, stored in (
            ([[], [("a", "1")], []], [None, [("a", "1")], None]),
            ([[], [], []], [None, None, None]),
        ):
            column = pa.array(sent, SCHEMA.field(place).type)
            taken = take_table(rows.set_column(place, SCHEMA.field(place), column))
            assert taken.record_batch().column(place).to_pylist() == stored
            assert Batch.from_bytes(taken.data, 3).messages(0, 3) == taken.messages(0, 3)

    def test_a_batch_without_rows_is_no_error_and_holds_nothing(self):
        empty = pa.RecordBatch.from_pylist([], schema=SCHEMA)
        assert take_table(empty).count == 0

    @pytest.mark.parametrize("column", ["publish_time", "producer_name", "payload"])
    def test_a_null_where_every_message_has_a_value_is_refused(self, column):
        loose = pa.schema([pa.field(each.name, each.type) for each in SCHEMA])
        row = {"publish_time": 1, "producer_name": "p", "payload": b""}
        batch = pa.RecordBatch.from_pylist([row, {**row, column: None}], schema=loose)
        assert f"column {column} holds a null in row 1" in refused(batch)


class TestOtherSchemas:
    def test_payload_alone_is_completed_with_producer_and_time(self):
        taken = take_table(table(payload=pa.array([b"a", b"b"])))
        assert rows_of(taken) == [
            {
                "publish_time": NOW_MS,
                "producer_name": "the-producer",
                "routing_key": None,
                "attributes": None,
                "schema_id": None,
                "schema_version": None,
                "payload": payload,
            }
            for payload in (b"a", b"b")
        ]

    @pytest.mark.parametrize(
        "kind",
        [
            pa.binary(),
            pa.large_binary(),
            pa.binary(2),
            pa.utf8(),
            pa.large_utf8(),
            pa.dictionary(pa.int8(), pa.utf8()),
            pa.dictionary(pa.uint32(), pa.large_binary()),
        ],
        ids=str,
    )
    def test_a_payload_may_be_binary_or_text_of_any_layout(self, kind):
        values = pa.array([b"ab", b"cd", b"ab"])
        value_type = kind.value_type if pa.types.is_dictionary(kind) else kind
        column = values.cast(value_type)
        if pa.types.is_dictionary(kind):
            column = pa.DictionaryArray.from_arrays(
                pa.array([0, 1, 0], kind.index_type), column.slice(0, 2)
            )
        taken = take_table(table(payload=column))
        assert [row["payload"] for row in rows_of(taken)] == [b"ab", b"cd", b"ab"]

    def test_columns_in_any_order_and_type_are_brought_into_ours(self):
        taken = take_table(
            table(
                payload=pa.array(["x", "y"]),
                schema_version=pa.array([1, None], pa.int64()),
                schema_id=pa.array([2, None], pa.int8()),
                attributes=pa.array(
                    [[("a", "1")], None], pa.map_(pa.large_utf8(), pa.large_utf8())
                ),
                routing_key=pa.array(["k", None]).dictionary_encode(),
                producer_name=pa.array([None, "me"], pa.large_utf8()),
                publish_time=pa.array([5_999_999, None], pa.timestamp("ns", "UTC")),
            )
        )
        assert rows_of(taken) == [
            {
                "publish_time": 5,
                "producer_name": "the-producer",
                "routing_key": "k",
                "attributes": [("a", "1")],
                "schema_id": 2,
                "schema_version": 1,
                "payload": b"x",
            },
            {
                "publish_time": NOW_MS,
                "producer_name": "me",
                "routing_key": None,
                "attributes": None,
                "schema_id": None,
                "schema_version": None,
                "payload": b"y",
            },
        ]

    def test_a_column_of_nothing_but_nulls_may_have_no_type(self):
        payload = pa.array([b"x"])
        nothing = {name: pa.nulls(1) for name in SCHEMA.names if name != "payload"}
        (row,) = rows_of(take_table(table(payload=payload, **nothing)))
        assert (row["routing_key"], row["producer_name"]) == (None, "the-producer")

    @pytest.mark.parametrize(
        ("unit", "value"), [("s", 5), ("ms", 5_000), ("us", 5_000_999), ("ns", 5_000_999_999)]
    )
    def test_a_time_in_any_unit_is_stored_in_milliseconds(self, unit, value):
        times = pa.array([value], pa.timestamp(unit))
        (row,) = rows_of(take_table(table(payload=pa.array([b""]), publish_time=times)))
        assert row["publish_time"] == 5_000

    def test_an_extension_type_counts_as_what_it_is_stored_in(self):
        column = pa.array(['{"a": 1}'], pa.utf8()).cast(pa.json_())
        (row,) = rows_of(take_table(table(payload=column)))
        assert row["payload"] == b'{"a": 1}'

    @pytest.mark.parametrize("codec", ["lz4", "zstd"])
    def test_other_schemas_may_be_compressed_too(self, codec):
        batch = table(payload=pa.array(["same"] * 500).dictionary_encode())
        (taken,) = take_all(stream_messages(batch.schema, [batch], compression=codec))
        assert {row["payload"] for row in rows_of(taken)} == {b"same"}

    def test_a_slice_of_a_larger_batch_is_only_itself(self):
        whole = table(
            payload=pa.array(["a", "b", "c", "d"], pa.large_utf8()),
            attributes=pa.array([[("a", "1")]] * 4, pa.map_(pa.utf8(), pa.utf8())),
        )
        part = whole.slice(1, 2)
        rows = rows_of(take_table(part))
        assert [row["payload"] for row in rows] == [b"b", b"c"]


class TestDictionaries:
    def test_a_dictionary_may_grow_between_batches(self):
        schema = pa.schema([("payload", pa.dictionary(pa.int32(), pa.utf8()))])
        batches = [
            table(payload=pa.array(["a", "b"]).dictionary_encode()),
            table(
                payload=pa.DictionaryArray.from_arrays(
                    pa.array([2, 0], pa.int32()), pa.array(["a", "b", "c"])
                )
            ),
        ]
        messages = stream_messages(schema, batches, emit_dictionary_deltas=True)
        assert len(messages) == 5
        taken = take_all(messages)
        payloads = [[row["payload"] for row in rows_of(batch)] for batch in taken]
        assert payloads == [[b"a", b"b"], [b"c", b"a"]]

    def test_a_dictionary_may_be_replaced(self):
        batches = [table(payload=pa.array([word, word]).dictionary_encode()) for word in ("a", "b")]
        taken = take_all(stream_messages(batches[0].schema, batches))
        assert [rows_of(batch)[0]["payload"] for batch in taken] == [b"a", b"b"]

    def test_a_batch_before_its_dictionary_is_refused(self):
        batch = table(payload=pa.array(["a"]).dictionary_encode())
        schema, _, records = stream_messages(batch.schema, [batch])
        assert "not a valid Arrow record batch" in refusal_of([schema, records])

    def test_dictionaries_are_bounded_all_together(self):
        half = convert.DICTIONARY_BYTES_MAX // 4
        columns = {
            name: pa.array([b"x" * half + name.encode()]).dictionary_encode()
            for name in ("payload", "a", "b", "c")
        }
        batch = table(**columns)
        messages = stream_messages(batch.schema, [batch])
        assert "more than" in refusal_of(messages, ignore_others=True)

    def test_compressed_dictionaries_count_as_what_they_unpack_to(self):
        word = "x" * convert.DICTIONARY_BYTES_MAX
        batch = table(payload=pa.array([word]).dictionary_encode())
        messages = stream_messages(batch.schema, [batch], compression="zstd")
        assert sum(map(len, messages)) < 10_000
        assert "more than" in refusal_of(messages)

    def test_a_small_dictionary_that_unpacks_to_much_is_refused(self):
        column = pa.DictionaryArray.from_arrays(
            pa.array([0] * 60_000, pa.int32()), pa.array([b"x" * 1024])
        )
        assert "once its dictionary is unpacked" in refused(table(payload=column))


class TestRefusals:
    def test_a_schema_without_payload_is_refused_by_its_columns(self):
        assert "no column payload, only value" in refused(table(value=pa.array([b""])))

    def test_an_unknown_column_is_refused_by_name_with_a_way_out(self):
        batch = table(payload=pa.array([b""]), price=pa.array([1]))
        text = refused(batch)
        assert "column price" in text
        assert '"other_columns": "ignore"' in text

    def test_an_unknown_column_may_be_ignored_on_request(self):
        batch = table(payload=pa.array([b"x"]), price=pa.array([1]), f=pa.array([[1.5]]))
        assert rows_of(take_table(batch, options={"ignore_others": True}))[0]["payload"] == b"x"

    def test_a_column_that_is_there_twice_is_refused(self):
        batch = pa.record_batch([pa.array([b"1"]), pa.array([b"2"])], names=["payload", "payload"])
        assert "column payload twice" in refused(batch)

    @pytest.mark.parametrize(
        ("column", "values", "reason"),
        [
            ("payload", pa.array([1]), "must be binary or text, not int64"),
            ("payload", pa.nulls(1), "must be binary or text, not null"),
            ("payload", pa.array(["a"], pa.string_view()), "not string_view; convert it first"),
            ("routing_key", pa.array(["a"], pa.string_view()), "not string_view; convert it first"),
            ("routing_key", pa.array([1]), "must be text, not int64"),
            ("routing_key", pa.array([b"\xff"]), "column routing_key"),
            ("producer_name", pa.array([True]), "must be text, not bool"),
            (
                "publish_time",
                pa.array(["now"]),
                "a timestamp or an integer of milliseconds, not string",
            ),
            ("publish_time", pa.array([-1]), "publish_time -1"),
            ("publish_time", pa.array([2**62], pa.timestamp("s")), "column publish_time"),
            ("schema_id", pa.array([-1]), "column schema_id"),
            ("schema_id", pa.array([1.5]), "must be an integer, not double"),
            ("schema_version", pa.array([2**32]), "column schema_version"),
            ("attributes", pa.array(["a=b"]), "a map of text to text"),
            ("attributes", pa.array([[("a", 1)]], pa.map_(pa.utf8(), pa.int8())), "text to text"),
            (
                "attributes",
                pa.array([[("a", None)]], pa.map_(pa.utf8(), pa.utf8())),
                "the attributes of row 0 hold nulls",
            ),
            (
                "attributes",
                pa.array([[("a", "1")], None, [("b", "")], [("c", "2"), ("d", None)]], MAP),
                "the attributes of row 3 hold nulls",
            ),
            ("payload", pa.array([b"", None, b""]), "column payload holds a null in row 1"),
            ("payload", pa.array(["", None]), "column payload holds a null in row 1"),
            (
                "payload",
                pa.array(["a", "a", None]).dictionary_encode(),
                "column payload holds a null in row 2",
            ),
            ("publish_time", pa.array([5, -2]), "publish_time -2 in row 1"),
        ],
    )
    def test_a_column_of_the_wrong_kind_is_refused_with_its_reason(self, column, values, reason):
        columns = {"payload": pa.array([b""] * len(values)), column: values}
        assert reason in refused(table(**columns))

    def test_a_batch_before_the_schema_is_refused(self):
        assert "begin with its Arrow schema" in refusal_of([gathered().data])

    def test_a_second_schema_is_refused(self):
        messages = [convert.SCHEMA_MESSAGE, convert.SCHEMA_MESSAGE]
        assert "second schema" in refusal_of(messages)

    def test_too_many_rows_are_refused_before_they_are_looked_at(self):
        batch = table(payload=pa.array([b""] * (convert.BATCH_ROWS_MAX + 1)))
        assert f"{convert.BATCH_ROWS_MAX + 1} rows" in refused(batch)

    def test_a_batch_that_is_too_large_is_refused_as_it_comes_or_once_unpacked(self):
        batch = table(payload=pa.array([bytes(convert.BATCH_BYTES_MAX)]))
        assert "send it in several" in refused(batch)
        messages = stream_messages(batch.schema, [batch], compression="zstd")
        assert sum(map(len, messages)) < 10_000
        assert "send it in several" in refusal_of(messages)

    def test_a_big_endian_schema_is_refused(self):
        message = bytearray(pa.schema([("payload", pa.binary())]).serialize().to_pybytes())
        # The vtable of the schema's table, where its first field, endianness, has the default.
        vtable = bytes.fromhex("0800 0800 0000 0400".replace(" ", ""))
        at = message.index(vtable)
        message[at : at + 8] = bytes.fromhex("0800 0800 0600 0400".replace(" ", ""))
        table_at = at + 8
        message[table_at + 6] = 1
        text = refusal_of([bytes(message)])
        assert "big-endian" in text or "cannot be read" in text

    def test_a_message_of_another_kind_is_refused(self):
        tensor = pa.BufferOutputStream()
        pa.ipc.write_tensor(pa.record_batch([pa.array([1])], names=["a"]).to_tensor(), tensor)
        header = tensor.getvalue().to_pybytes()
        assert "not that of an Arrow IPC message" in refusal_of([header])

    def test_a_refused_batch_leaves_the_stream_as_it_was(self):
        taking = intake()
        taking.take(*cut(convert.SCHEMA_MESSAGE))
        good = gathered()
        header, body = cut(good.data)
        with pytest.raises(InvalidRequest, match="promises a body of"):
            taking.take(header, body[: len(body) // 2])
        taken = taking.take(header, body)
        assert taken is not None
        assert taken.data == good.data


class TestWhatEveryRowMustKeep:
    def test_a_long_routing_key_is_refused_by_its_length(self):
        keys = pa.array(["k", "ä" * 1025])
        text = refused(table(payload=pa.array([b""] * 2), routing_key=keys))
        assert "the routing_key of row 1 has 1025 characters" in text

    def test_many_bytes_of_keys_are_fine_while_each_is_short(self):
        keys = pa.array(["ä" * 1024] * 20)
        assert take_table(table(payload=pa.array([b""] * 20), routing_key=keys)).count == 20

    def test_too_many_attributes_of_one_message_are_refused(self):
        kind = pa.map_(pa.utf8(), pa.utf8())
        many = [(str(number), "v") for number in range(65)]
        batch = table(payload=pa.array([b""] * 2), attributes=pa.array([[], many], kind))
        assert "the message in row 1 has 65 attributes" in refused(batch)
        spread = pa.array([many[:64], many[:64]], kind)
        assert take_table(table(payload=pa.array([b""] * 2), attributes=spread)).count == 2

    def test_what_a_message_weighs_beside_its_payload_is_bounded(self):
        kind = pa.map_(pa.utf8(), pa.utf8())
        payload = pa.array([b""] * 3)
        attributes = pa.array([[("a", "x" * 20_000)], None, [("b", "y" * 20_000)]], kind)
        assert take_table(table(payload=payload, attributes=attributes)).count == 3
        attributes = pa.array([None, [("a", "x" * 20_000), ("b" * 13_000, "y")], None], kind)
        assert "bytes beside its payload" in refused(table(payload=payload, attributes=attributes))
        names = pa.array(["a", "n" * 33_000, "b"])
        assert "bytes beside its payload" in refused(table(payload=payload, producer_name=names))

    def test_a_key_weighs_as_well_as_the_attributes(self):
        kind = pa.map_(pa.utf8(), pa.utf8())
        attributes = pa.array([[("a", "x" * 29_000)], None], kind)

        def keyed(*keys):
            payload = pa.array([b""] * 2)
            return table(payload=payload, attributes=attributes, routing_key=pa.array(keys))

        assert take_table(keyed("k", "😀" * 1024)).count == 2
        assert "the message in row 0 has about 33" in refused(keyed("😀" * 1024, "k"))

    def test_a_slice_is_judged_by_its_own_rows(self):
        kind = pa.map_(pa.utf8(), pa.utf8())
        heavy = [("a", "x" * 40_000)]
        attributes = pa.array([heavy, [("a", "1")], [("b", "2" * 20_000)]], kind)
        batch = table(payload=pa.array([b"0", b"1", b"2"]), attributes=attributes)
        assert take_table(batch.slice(1)).count == 2
        assert "bytes beside its payload" in refused(batch)


class TestSending:
    def test_a_whole_batch_is_sent_as_its_stored_bytes(self):
        ours = gathered()
        assert convert.rows_message(ours, 0, 3) is ours.data

    def test_some_rows_are_sent_as_a_batch_of_their_own(self):
        ours = gathered(10, attributes={"a": "1"})
        part = convert.rows_message(ours, 3, 7)
        rows = pa.ipc.read_record_batch(pa.py_buffer(part), SCHEMA)
        assert rows == ours.record_batch().slice(3, 4)
        assert len(part) < len(ours.data)
