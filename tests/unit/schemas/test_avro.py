"""Avro: definitions, bytes and columns."""

import datetime
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from pydanube.schemas.avro.walking import Malformed, read_long
from pydanube.schemas.catalog import load_format
from pydanube.schemas.errors import InvalidSchema, SchemaTooComplex
from pydanube.schemas.format import Schema, SchemaTools
from pydanube.schemas.limits import SchemaLimits
from tests.support.schema_cases import parse

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "float"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "uid", "type": {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}},
        {"name": "any", "type": ["int", "string", "bytes"]},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
    ],
}
VALUE = {
    "id": -5,
    "customer": "Ada",
    "amount": 0.5,
    "kind": "OLD",
    "tags": ["a", "b"],
    "note": None,
    "at": 1_700_000_000_123,
    "day": 19_000,
    "price": (1234).to_bytes(2, "big"),
    "uid": bytes(range(16)),
    "any": b"\xff",
    "counts": {"x": 1},
}


def write(spec: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(json.loads(json.dumps(spec))), value)
    return buffer.getvalue()


def container(spec: Any, values: list[Any], codec: str = "null") -> bytes:
    buffer = io.BytesIO()
    fastavro.writer(buffer, fastavro.parse_schema(json.loads(json.dumps(spec))), values, codec)
    return buffer.getvalue()


def reasons(schema: Schema, *payloads: bytes | None) -> list[str]:
    return [failure.reason for failure in schema.validator().failures(payloads)]


def test_values_become_typed_columns() -> None:
    schema = parse("avro", ORDER)
    (row,) = schema.decode([write(ORDER, VALUE)]).values.to_pylist()
    moment = datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=datetime.UTC)
    assert row == {
        **VALUE,
        "at": moment,
        "day": datetime.date(2022, 1, 8),
        "price": Decimal("12.34"),
        "uid": "00010203-0405-0607-0809-0a0b0c0d0e0f",
        "any": '"\u00ff"',
        "counts": [("x", 1)],
    }
    assert schema.spark_ddl() == (
        "STRUCT<`id`: BIGINT, `customer`: STRING, `amount`: DOUBLE, `kind`: STRING, "
        "`tags`: ARRAY<STRING>, `note`: STRING, `at`: TIMESTAMP, `day`: DATE, "
        "`price`: DECIMAL(9, 2), `uid`: STRING, `any`: STRING, `counts`: MAP<STRING, BIGINT>>"
    )


def test_bad_rows_are_null_and_named() -> None:
    schema = parse("avro", ORDER)
    good = write(ORDER, VALUE)
    decoded = schema.decode([good, good[:-1], None, good + b"x"])
    assert [value is None for value in decoded.values.to_pylist()] == [False, True, True, True]
    assert [failure.row for failure in decoded.failures] == [1, 2, 3]


def test_spellings_of_one_schema_have_one_fingerprint() -> None:
    one = parse("avro", {"type": "record", "name": "a.R", "fields": [{"name": "x", "type": "int"}]})
    other = parse(
        "avro",
        {
            "fields": [{"type": {"type": "int"}, "name": "x", "vendor": 1}],
            "namespace": "a",
            "name": "R",
            "type": "record",
        },
    )
    assert one.fingerprint == other.fingerprint
    assert one.fingerprint.startswith("sha256:")


def test_a_default_makes_another_schema() -> None:
    field = {"name": "x", "type": "int"}
    one = parse("avro", {"type": "record", "name": "R", "fields": [field]})
    other = parse("avro", {"type": "record", "name": "R", "fields": [{**field, "default": 0}]})
    assert one.fingerprint != other.fingerprint


def test_readers_get_defaults_for_what_writers_lack() -> None:
    inner = {
        "type": "record",
        "name": "I",
        "fields": [{"name": "p", "type": "bytes"}, {"name": "q", "type": "int", "default": 7}],
    }
    old = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    new = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": "long"},
            {"name": "raw", "type": "bytes", "default": "\u00ff"},
            {"name": "i", "type": inner, "default": {"p": "\u0001"}},
        ],
    }
    decoded = parse("avro", new).decode([write(old, {"a": 3})], writer=parse("avro", old))
    assert decoded.values.to_pylist() == [{"a": 3, "raw": b"\xff", "i": {"p": b"\x01", "q": 7}}]


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_containers_are_payloads_too(codec: str) -> None:
    spec = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    schema = parse("avro", spec)
    one = container(spec, [{"a": 1}], codec)
    assert reasons(schema, one, container(spec, [{"a": 1}, {"a": 2}], codec)) == []
    assert schema.decode([one]).values.to_pylist() == [{"a": 1}]
    assert reasons(schema, container(spec, [], codec)) == ["the container has no datum"]
    assert "cut short" in reasons(schema, one[:-1])[0]
    several = schema.decode([container(spec, [{"a": 1}, {"a": 2}], codec)])
    assert "has 2 datums" in several.failures[0].reason


def test_a_container_of_another_schema_is_resolved_or_refused() -> None:
    spec = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
    schema = parse("avro", spec)
    narrower = {**spec, "fields": [{"name": "a", "type": "int"}]}
    other = {**spec, "fields": [{"name": "a", "type": "string"}]}
    assert schema.decode([container(narrower, [{"a": 1}])]).values.to_pylist() == [{"a": 1}]
    (reason,) = reasons(schema, container(other, [{"a": "x"}]))
    assert reason.startswith("the container was written with another schema: a: type_changed")


def test_a_container_that_expands_beyond_the_limit_is_refused() -> None:
    spec = "bytes"
    limits = SchemaLimits(container_expansion_max=1_000)
    schema = load_format("avro", SchemaTools(limits)).parse(b'"bytes"')
    bomb = container(spec, [bytes(1 << 20)], "deflate")
    assert len(bomb) < 3_000
    assert "expands beyond the limit" in reasons(schema, bomb)[0]


@pytest.mark.parametrize(
    ("spec", "payload", "reason"),
    [
        ("boolean", b"\x02", "the boolean at byte 0 is 2"),
        ("int", b"\x80\x80\x80\x80\x10", "the int at byte 0 has more than 32 bits"),
        ("int", b"\x80\x80\x80\x80\x80\x01", "the int at byte 0 has more than 32 bits"),
        ("long", b"\x80" * 9 + b"\x02", "the long at byte 0 has more than 64 bits"),
        ("string", b"\x04\xff\xfe", "the string at byte 0 is not UTF-8"),
        ("string", b"\x04a", "2 bytes are announced at byte 0, 1 are left"),
        ("bytes", b"\x01", "the length at byte 0 is negative"),
        ("double", b"1234567", "8 bytes are due at byte 0, 7 are left"),
        (["null", "int"], b"\x04", "the branch at byte 0 is number 2 of 2"),
        (["null", "int"], b"\x01\x02", "the branch at byte 0 is number -1 of 2"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01", "number -1 of 1"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\x7f\x00", "items are announced"),
        ({"type": "array", "items": "int"}, b"\x01\x04\x02\x00", "announced another size"),
        ("int", b"", "the datum ends too early, after 0 bytes"),
        ("int", b"\x02\x02", "1 bytes are left behind the datum"),
    ],
)
def test_bytes_that_are_no_value_are_refused(spec: Any, payload: bytes, reason: str) -> None:
    assert reason in reasons(parse("avro", spec), payload)[0]


def test_blocks_may_announce_their_size() -> None:
    assert reasons(parse("avro", {"type": "array", "items": "int"}), b"\x01\x02\x02\x00") == []


def test_unions_of_many_branches_are_walked() -> None:
    branches = [{"type": "fixed", "name": f"F{number}", "size": 1} for number in range(70)]
    schema = parse("avro", branches)
    assert reasons(schema, b"\x8a\x01x", b"\x02x") == []
    assert "number 70 of 70" in reasons(schema, b"\x8c\x01x")[0]


def test_a_value_that_nests_too_deep_is_refused_and_does_not_end_the_process() -> None:
    spec = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
    schema = parse("avro", spec)
    deep = b"\x02" * 100_000 + b"\x00"
    assert reasons(schema, deep) == ["records L nest deeper than 100 levels"]
    assert schema.decode([deep, b"\x02\x00"]).failures[0].row == 0
    assert reasons(schema, b"\x02" * 99 + b"\x00") == []


def test_an_integer_that_never_ends_is_refused() -> None:
    with pytest.raises(Malformed):
        read_long(b"\x80" * 50, 0)


def doubling(depth: int) -> Any:
    """A record of two records of two records, down to one of no fields."""
    if depth == 0:
        return {"type": "record", "name": "R0", "fields": []}
    return {
        "type": "record",
        "name": f"R{depth}",
        "fields": [
            {"name": "a", "type": doubling(depth - 1)},
            {"name": "b", "type": f"R{depth - 1}"},
        ],
    }


def optional_doubling(depth: int) -> Any:
    if depth == 0:
        return {"type": "record", "name": "R0", "fields": []}
    return {
        "type": "record",
        "name": f"R{depth}",
        "fields": [
            {"name": "a", "type": ["null", optional_doubling(depth - 1)]},
            {"name": "b", "type": ["null", f"R{depth - 1}"]},
        ],
    }


def record_of(*fields: Any) -> Any:
    return {"type": "record", "name": "R", "fields": list(fields)}


def nested(depth: int) -> Any:
    spec: Any = "int"
    for _ in range(depth):
        spec = {"type": "array", "items": spec}
    return spec


@pytest.mark.parametrize(
    ("spec", "limit"),
    [
        (doubling(12), "visits_per_byte_max"),
        (optional_doubling(13), "nodes_max"),
        (nested(80), "depth_max"),
        (
            {"type": "enum", "name": "E", "symbols": [f"S{n}" for n in range(2_001)]},
            "enum_values_max",
        ),
        (
            {
                "type": "record",
                "name": "R",
                "fields": [{"name": f"f{n}", "type": "int"} for n in range(2_001)],
            },
            "fields_max",
        ),
        ({"type": "fixed", "name": ".".join(["abcdefgh"] * 60), "size": 1}, "name_chars_max"),
        ({"type": "string", "doc": "x" * 300_000}, "definition_bytes_max"),
        ([{"type": "array", "items": "int"}] * 4_000, "nodes_max"),
    ],
)
def test_a_hostile_schema_is_refused_by_the_limit_it_exceeds(spec: Any, limit: str) -> None:
    with pytest.raises(SchemaTooComplex, match=limit):
        parse("avro", spec)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (1, "a type is a name, an object or a list"),
        ("colour", "'colour' is not defined"),
        ({}, 'needs "type"'),
        ([], "a union needs a branch"),
        (["int", "int"], "has int twice"),
        (["int", ["null"]], "may not stand directly in a union"),
        ({"type": "record", "fields": []}, '"name" is missing'),
        ({"type": "record", "name": "R"}, '"fields" is missing'),
        ({"type": "record", "name": "9", "fields": []}, "letters, digits and _"),
        ({"type": "record", "name": "int", "fields": []}, "cannot be defined"),
        ({"type": "record", "name": "R", "fields": [1]}, "a field is an object"),
        ({"type": "record", "name": "R", "fields": {}}, "are a list"),
        (
            {
                "type": "record",
                "name": "R",
                "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}],
            },
            "field 'a' twice",
        ),
        (
            {
                "type": "record",
                "name": "R",
                "fields": [{"name": "a", "type": "int", "default": "x"}],
            },
            "a: the default 'x' is not of the field's type",
        ),
        (
            {
                "type": "record",
                "name": "R",
                "fields": [{"name": "a", "type": "int", "order": "up"}],
            },
            "order is ascending",
        ),
        ({"type": "enum", "name": "E", "symbols": []}, "needs symbols"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "each one once"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "no symbol of it"),
        ({"type": "fixed", "name": "F", "size": -1}, "size of fixed F"),
        ({"type": "fixed", "name": "F", "size": True}, "size of fixed F"),
        ({"type": "array", "items": "null"}, "must take at least one byte"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "R"}]}, "without an end"),
        (
            {
                "type": "record",
                "name": "A",
                "fields": [
                    {
                        "name": "b",
                        "type": {
                            "type": "record",
                            "name": "B",
                            "fields": [{"name": "a", "type": ["A"]}],
                        },
                    }
                ],
            },
            "without an end",
        ),
    ],
)
def test_what_is_not_avro_is_refused_with_the_reason(spec: Any, reason: str) -> None:
    with pytest.raises(InvalidSchema) as refused:
        parse("avro", spec)
    assert reason in str(refused.value)


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(InvalidSchema, match="the Avro schema is not JSON"):
        load_format("avro", SchemaTools()).parse(b"{")


def test_compiled_validators_are_kept_and_shared_by_equal_schemas() -> None:
    assert parse("avro", ORDER).validator() is parse("avro", dict(ORDER)).validator()
