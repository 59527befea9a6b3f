"""Columns go by name, grow, and never change their type."""

import pyarrow as pa

from pydanube.tables.columns import ENVELOPE, Columns, column_name, columns_of
from pydanube.tables.lake_types import conform, lake_type, merged, to_lake


def test_tables_have_one_integer_one_number_and_no_unsigned() -> None:
    assert lake_type(pa.int32()) == pa.int64()
    assert lake_type(pa.float32()) == pa.float64()
    assert lake_type(pa.uint64()) == pa.decimal128(20, 0)
    assert lake_type(pa.timestamp("ms")) == pa.timestamp("us", "UTC")
    assert lake_type(pa.list_(pa.int8())) == pa.list_(pa.int64())
    assert to_lake(pa.array([2**64 - 1], pa.uint64())).to_pylist()[0] == 2**64 - 1


def test_structs_merge_by_name_and_types_do_not_change() -> None:
    one = pa.struct([("a", pa.int64())])
    both = pa.struct([("b", pa.string()), ("a", pa.int64())])
    assert merged(one, both) == pa.struct([("a", pa.int64()), ("b", pa.string())])
    assert merged(pa.int64(), pa.string()) is None
    assert merged(one, pa.struct([("a", pa.string())])) is None
    assert merged(pa.list_(one), pa.list_(both)) == pa.list_(merged(one, both))


def test_values_get_the_fields_they_lack() -> None:
    wanted = pa.map_(pa.string(), pa.struct([("a", pa.int64()), ("b", pa.string())]))
    narrow = pa.array(
        [[("k", {"a": 1})], None], pa.map_(pa.string(), pa.struct([("a", pa.int64())]))
    )
    assert conform(narrow, wanted).to_pylist() == [[("k", {"a": 1, "b": None})], None]


def test_names_of_the_envelope_are_taken() -> None:
    assert column_name("offset") == "payload_offset"
    assert column_name("price") == "price"
    assert columns_of(None).names == [*ENVELOPE.names, "payload"]
    assert columns_of(pa.string()).names == [*ENVELOPE.names, "value"]


def test_only_what_is_new_is_added() -> None:
    columns = Columns(pa.schema([("a", pa.int64()), ("s", pa.struct([("x", pa.int64())]))]))
    assert columns.admit("a", pa.int64()) is None
    assert columns.admit("b", pa.string()) is None
    assert columns.admit("s", pa.struct([("y", pa.int64())])) is None
    assert "column a of the table is int64" in (columns.admit("a", pa.string()) or "")
    assert columns.added.names == ["s", "b"]
    assert columns.arranged({"b": pa.array(["x"])}, 1).to_pylist() == [
        {"a": None, "s": None, "b": "x"}
    ]
