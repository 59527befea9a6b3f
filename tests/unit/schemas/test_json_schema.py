"""JSON Schema: definitions, values and columns."""

import datetime
import json
import time
from typing import Any

import orjson
import pytest

from pydanube.schemas.catalog import load_format
from pydanube.schemas.compatibility import compatibility, difference
from pydanube.schemas.errors import InvalidSchema, SchemaTooComplex
from pydanube.schemas.format import Schema, SchemaTools
from tests.support.schema_cases import parse

ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "customer": {"type": "string", "minLength": 1},
        "amount": {"type": "number", "minimum": 0},
        "paid": {"type": "boolean"},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": ["string", "null"], "format": "date"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "free": {"type": "object"},
        "any": {"type": ["integer", "string"]},
        "inner": {"$ref": "#/$defs/inner"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["id"],
    "$defs": {
        "inner": {"type": "object", "properties": {"at": {"$ref": "#/$defs/moment"}}},
        "moment": {"type": "string", "format": "date-time"},
    },
}


def reasons(schema: Schema, *payloads: bytes | None) -> list[str]:
    return [failure.reason for failure in schema.validator().failures(payloads)]


def test_values_become_typed_columns() -> None:
    schema = parse("json_schema", ORDER)
    value = {
        "id": 7,
        "customer": "Ada",
        "amount": 2,
        "paid": True,
        "at": "2024-05-06T07:08:09.5Z",
        "day": "2024-05-06",
        "tags": ["x"],
        "counts": {"k": 1},
        "free": {"a": [1, None]},
        "any": "text",
        "inner": {"at": "2024-05-06T07:08:09+02:00", "unknown": 1},
        "maybe": None,
        "kind": "a",
        "unknown": 1,
    }
    (row,) = schema.decode([orjson.dumps(value)]).values.to_pylist()
    utc = datetime.UTC
    assert row == {
        **{key: each for key, each in value.items() if key != "unknown"},
        "amount": 2.0,
        "at": datetime.datetime(2024, 5, 6, 7, 8, 9, 500_000, tzinfo=utc),
        "day": datetime.date(2024, 5, 6),
        "counts": [("k", 1)],
        "free": '{"a":[1,null]}',
        "any": '"text"',
        "inner": {"at": datetime.datetime(2024, 5, 6, 5, 8, 9, tzinfo=utc)},
    }
    assert schema.spark_ddl() == (
        "STRUCT<`id`: BIGINT, `customer`: STRING, `amount`: DOUBLE, `paid`: BOOLEAN, "
        "`at`: TIMESTAMP, `day`: DATE, `tags`: ARRAY<STRING>, `counts`: MAP<STRING, BIGINT>, "
        "`free`: STRING, `any`: STRING, `inner`: STRUCT<`at`: TIMESTAMP>, `maybe`: BIGINT, "
        "`kind`: STRING>"
    )


def test_one_bad_row_does_not_cost_the_others() -> None:
    schema = parse("json_schema", ORDER)
    rows = [b'{"id":1}', b'{"id":"x"}', b"{", None, b'{"id":2,"inner":null}', b'{"at":"soon"}']
    decoded = schema.decode(rows)
    ids = [value and value["id"] for value in decoded.values.to_pylist()]
    assert ids == [1, None, None, None, 2, None]
    assert [failure.row for failure in decoded.failures] == [1, 2, 3, 5]


def test_validation_says_where_and_why() -> None:
    schema = parse("json_schema", ORDER)
    assert reasons(schema, b'{"id":1}', b"{}", b'{"id":1,"amount":-1}', None) == [
        '/: "id" is a required property',
        "/amount: -1 is less than the minimum of 0",
        "the payload is absent",
    ]
    assert all(reason.startswith("not JSON: ") for reason in reasons(schema, b"{", b"", b"\xff"))


def test_spelling_does_not_change_the_fingerprint() -> None:
    one = load_format("json", SchemaTools()).parse(b'{"type": "string",\n "maxLength": 3}')
    other = load_format("json", SchemaTools()).parse(b'{"maxLength":3,"type":"string"}')
    assert one.fingerprint == other.fingerprint
    assert one.canonical == b'{"maxLength":3,"type":"string"}'


@pytest.mark.parametrize(
    "reference",
    [
        "http://127.0.0.1:1/schema.json",
        "https://json-schema.org/draft/2020-12/schema",
        "file:///etc/passwd",
        "other.json#/a",
    ],
)
def test_nothing_is_ever_fetched(reference: str) -> None:
    with pytest.raises(InvalidSchema, match="never fetches"):
        parse("json_schema", {"$ref": reference})


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ([1], "an object, true or false"),
        ({"type": "strin"}, "not a JSON Schema, at /type"),
        ({"pattern": "("}, "not a JSON Schema, at /pattern"),
        ({"pattern": "((a{100}){100}){100}"}, "not a JSON Schema, at /pattern"),
        ({"$ref": "#/$defs/none"}, "names nothing"),
        ({"$ref": "#none"}, "names no \\$anchor"),
        ({"$ref": "#/type", "type": "string"}, "does not name a schema"),
        ({"$schema": "http://127.0.0.1:1/meta"}, "Unknown meta-schema"),
        ({"minimum": "x"}, "not a JSON Schema, at /minimum"),
    ],
)
def test_what_is_not_a_schema_is_refused_with_the_reason(spec: Any, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        parse("json_schema", spec)


def doubling(depth: int) -> Any:
    definitions: dict[str, Any] = {"a0": {"type": "string"}}
    for level in range(1, depth + 1):
        definitions[f"a{level}"] = {"allOf": [{"$ref": f"#/$defs/a{level - 1}"}] * 2}
    return {"$defs": definitions, "$ref": f"#/$defs/a{depth}"}


def doubling_below(depth: int) -> Any:
    definitions: dict[str, Any] = {"a0": {"type": "string"}}
    for level in range(1, depth + 1):
        part = {"properties": {"x": {"$ref": f"#/$defs/a{level - 1}"}}}
        definitions[f"a{level}"] = {"allOf": [part, dict(part)]}
    return {"$defs": definitions, "$ref": f"#/$defs/a{depth}"}


def chain(length: int) -> Any:
    definitions: dict[str, Any] = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(length)}
    definitions[f"a{length}"] = {"type": "string"}
    return {"$defs": definitions, "$ref": "#/$defs/a0"}


@pytest.mark.parametrize(
    ("spec", "limit"),
    [
        (doubling(40), "expansion_max"),
        (doubling_below(40), "expansion_max"),
        (chain(300), "depth_max"),
        ({"enum": list(range(2_001))}, "enum_values_max"),
        ({"properties": {f"p{n}": {} for n in range(2_001)}}, "fields_max"),
        ({"pattern": "a" * 1_001}, "pattern_chars_max"),
        ({"patternProperties": {"a" * 1_001: {}}}, "pattern_chars_max"),
        ({"anyOf": [{"$ref": "#"}] * 1_001}, "references_max"),
        ({"description": "x" * 300_000}, "definition_bytes_max"),
        ({"examples": [[1] * 10] * 1_000}, "nodes_max"),
    ],
)
def test_a_hostile_schema_is_refused_by_the_limit_it_exceeds(spec: Any, limit: str) -> None:
    with pytest.raises(SchemaTooComplex, match=limit):
        parse("json_schema", spec)


def test_a_deep_definition_is_refused() -> None:
    text = b'{"items":' * 100 + b"{}" + b"}" * 100
    with pytest.raises(SchemaTooComplex, match="depth_max"):
        load_format("json", SchemaTools()).parse(text)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^(a+)+$", "a" * 50_000 + "b"),
        ("^(?=a)(a+)+b$", "a" * 5_000),
        ("(a*)*\\1b", "a" * 60),
        ("^(\\w+\\s?)*$", "word " * 5_000 + "!"),
    ],
)
def test_no_pattern_takes_long_whatever_it_is_matched_with(pattern: str, text: str) -> None:
    schema = parse("json_schema", {"type": "string", "pattern": pattern})
    before = time.process_time()
    assert len(reasons(schema, orjson.dumps(text))) == 1
    assert time.process_time() - before < 1


def test_values_under_recursive_alternatives_are_bounded_in_depth() -> None:
    branch = {"type": "object", "properties": {"left": {"$ref": "#"}}}
    schema = parse("json_schema", {"anyOf": [{**branch, "title": "a"}, {**branch, "title": "b"}]})
    value: Any = 1
    for _ in range(60):
        value = {"left": value}
    assert reasons(schema, json.dumps(value).encode()) == ["nests deeper than 19 levels"]
    assert reasons(schema, b'{"left":{"left":{}}}') == []


def test_values_under_plain_recursion_may_nest_as_deep_as_the_limit() -> None:
    schema = parse("json_schema", {"type": "object", "properties": {"next": {"$ref": "#"}}})
    assert reasons(schema, b'{"next":' * 100 + b"{}" + b"}" * 100) == []
    assert reasons(schema, b'{"next":' * 101 + b"{}" + b"}" * 101) == [
        "nests deeper than 100 levels"
    ]


def test_parts_of_a_combination_stay_open() -> None:
    """Closing them would make the writer write nothing, which every reader reads."""
    left = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    right = {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}
    new = {"type": "object", "properties": {"b": {"type": "string", "maxLength": 1}}}
    for old in (
        {"allOf": [left, right]},
        {"$defs": {"l": left, "r": right}, "allOf": [{"$ref": "#/$defs/l"}, {"$ref": "#/$defs/r"}]},
        {"$defs": {"l": left}, "$ref": "#/$defs/l", **right},
        {**left, "allOf": [right]},
    ):
        assert compatibility(parse("json_schema", old), parse("json_schema", new)) != []


def test_the_difference_is_told_in_words() -> None:
    new = {**ORDER, "properties": {**ORDER["properties"], "id": {"type": "string"}, "new": {}}}  # type: ignore[dict-item]
    del new["properties"]["paid"]
    assert [
        str(each) for each in difference(parse("json_schema", ORDER), parse("json_schema", new))
    ] == [
        'id: type "integer" became "string"',
        "new: optional property added: {}",
        "paid: optional property removed",
    ]


def test_values_that_contradict_the_readers_type_are_not_read() -> None:
    old = parse("json_schema", {"enum": [1]})
    new = parse("json_schema", {"type": "string", "enum": [1, "a"]})
    assert [fault.rule for fault in compatibility(old, new)] == ["type_narrowed"]


def part(name: str, kind: str) -> Any:
    return {"type": "object", "properties": {name: {"type": kind}}}


def all_of(count: int, kind: str, **more: Any) -> Any:
    choices = [{"anyOf": [part(f"a{n}", kind), part(f"b{n}", kind)]} for n in range(count)]
    return {"allOf": choices, **more}


@pytest.mark.parametrize(
    "spec",
    [
        all_of(20, "string"),
        {"not": all_of(20, "string")},
        {"not": {"anyOf": [{"allOf": [part(f"a{n}", "string"), {}]} for n in range(20)]}},
        {"allOf": [{"not": {"required": [f"a{n}", f"b{n}"]}} for n in range(20)]},
        {
            "allOf": [
                {"if": part(f"a{n}", "string"), "then": {"required": ["b"]}} for n in range(20)
            ]
        },
        {"dependentRequired": {f"a{n}": [f"b{n}"] for n in range(20)}},
    ],
)
def test_combinations_that_would_take_long_to_compare_are_not_compared(spec: Any) -> None:
    before = time.process_time()
    faults = compatibility(parse("json_schema", spec), parse("json_schema", all_of(20, "integer")))
    assert faults != []
    assert time.process_time() - before < 1


def test_words_may_change_even_in_what_cannot_be_compared() -> None:
    old = all_of(20, "string", title="old")
    new = all_of(20, "string", description="new")
    new["allOf"][3]["anyOf"][0]["properties"]["a3"]["description"] = "words"
    assert compatibility(parse("json_schema", old), parse("json_schema", new)) == []
    new["allOf"][3]["anyOf"][0]["properties"]["title"] = {"type": "string"}
    assert compatibility(parse("json_schema", old), parse("json_schema", new)) != []


def test_a_discriminated_union_may_gain_branches_and_optional_properties() -> None:
    def branch(kind: str, **more: Any) -> Any:
        properties = {"kind": {"const": kind}, kind: {"type": "integer"}, **more}
        return {"type": "object", "properties": properties, "required": ["kind"]}

    old = {"oneOf": [branch("a"), branch("b")]}
    new = {"oneOf": [branch("a", note={"type": "string"}), branch("b"), branch("c")]}
    assert compatibility(parse("json_schema", old), parse("json_schema", new)) == []
    assert compatibility(parse("json_schema", new), parse("json_schema", old)) != []
