"""Protobuf: definitions, messages and columns."""

import datetime
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass

from pydanube.schemas.catalog import load_format
from pydanube.schemas.compatibility import difference
from pydanube.schemas.errors import InvalidSchema, SchemaCompilerUnavailable, SchemaTooComplex
from pydanube.schemas.format import Schema, SchemaTools
from tests.support.schema_cases import QuickCompiler, parse

ORDER = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Order {
  int32 id = 1;
  string customer = 2;
  float amount = 3;
  Kind kind = 4;
  repeated string tags = 5;
  optional string note = 6;
  google.protobuf.Timestamp at = 7;
  map<string, Line> lines = 8;
  uint64 big = 9;
  oneof choice { int64 left = 10; bytes right = 11; }
  google.protobuf.Int32Value wrapped = 12;
  Order parent = 13;
  repeated Kind kinds = 14;
  google.protobuf.Struct free = 15;
  message Line { uint32 count = 1; }
}
enum Kind { NEW = 0; OLD = 1; }
"""


def message_of(schema: Any, **fields: Any) -> Any:
    return GetMessageClass(schema.descriptor)(**fields)


def reasons(schema: Schema, *payloads: bytes | None) -> list[str]:
    return [failure.reason for failure in schema.validator().failures(payloads)]


def test_messages_become_typed_columns() -> None:
    schema = parse("protobuf", ORDER)
    message = message_of(schema, id=-1, customer="Ada", amount=0.5, kind=1, tags=["x"], left=0)
    message.at.seconds, message.at.nanos = 1_700_000_000, 5_000
    message.lines["k"].count = 3
    message.big = (1 << 64) - 1
    message.wrapped.value = 0
    message.parent.id = 2
    message.kinds.extend([0, 9])
    message.free.update({"a": 1})
    (row,) = schema.decode([message.SerializeToString()]).values.to_pylist()
    assert row == {
        "id": -1,
        "customer": "Ada",
        "amount": 0.5,
        "kind": "OLD",
        "tags": ["x"],
        "note": None,
        "at": datetime.datetime(2023, 11, 14, 22, 13, 20, 5, tzinfo=datetime.UTC),
        "lines": [("k", {"count": 3})],
        "big": Decimal((1 << 64) - 1),
        "left": 0,
        "right": None,
        "wrapped": 0,
        "parent": '{"id": 2}',
        "kinds": ["NEW", "9"],
        "free": '{"a": 1.0}',
    }
    assert schema.spark_ddl().startswith("STRUCT<`id`: BIGINT, `customer`: STRING, `amount`: DOU")


def test_an_empty_payload_is_a_message_of_defaults() -> None:
    schema = parse("protobuf", ORDER)
    assert reasons(schema, b"") == []
    (row,) = schema.decode([b""]).values.to_pylist()
    assert row["id"] == 0
    assert row["at"] is None


def test_bad_rows_are_null_and_named() -> None:
    decoded = parse("protobuf", ORDER).decode([b"\xff", None, b""])
    assert [value is None for value in decoded.values.to_pylist()] == [True, True, False]
    assert [failure.row for failure in decoded.failures] == [0, 1]


def test_known_numbers_must_come_as_their_type() -> None:
    schema = parse("protobuf", ORDER)
    assert reasons(schema, b"\x0a\x01x") == ["field id = 1 has wire type 2"]
    assert reasons(schema, b"\x6a\x03\x0a\x01x") == ["field id = 1 has wire type 2"]
    in_a_map = b"\x42\x08\x0a\x01k\x12\x03\x0a\x01x"
    assert reasons(schema, in_a_map) == ["field count = 1 has wire type 2"]
    assert "corrupt" in reasons(schema, b"\xff")[0]
    assert reasons(schema, None) == ["the payload is absent"]


def test_unknown_numbers_and_unusual_spellings_are_allowed() -> None:
    schema = parse("protobuf", ORDER)
    newer = b"\xa0\x06\x01"
    spelled_default = b"\x08\x00"
    assert reasons(schema, newer, spelled_default, spelled_default + newer) == []


def test_required_fields_must_be_there() -> None:
    schema = parse(
        "protobuf",
        'syntax = "proto2"; message A { optional B b = 1; } message B { required int32 x = 1; }',
    )
    assert reasons(schema, b"", b"\x0a\x02\x08\x01") == []
    assert reasons(schema, b"\x0a\x00") != []


def test_a_closed_enumeration_may_get_numbers_it_does_not_list() -> None:
    schema = parse(
        "protobuf", 'syntax = "proto2"; message A { optional E e = 1; } enum E { X = 0; }'
    )
    assert reasons(schema, b"\x08\x05") == []


def test_text_and_its_descriptors_are_one_schema() -> None:
    text = parse("protobuf", ORDER)
    compiled = QuickCompiler().compile(ORDER)
    without_compiler = load_format("protobuf", SchemaTools())
    assert without_compiler.parse(compiled).fingerprint == text.fingerprint
    assert without_compiler.parse(text.canonical).fingerprint == text.fingerprint
    assert parse("protobuf", ORDER + "// words").fingerprint == text.fingerprint


def test_a_set_of_several_files_is_taken_and_its_last_file_counts() -> None:
    files = FileDescriptorSet()
    inner = files.file.add(name="inner.proto", syntax="proto3")
    inner.message_type.add(name="Inner").field.add(name="x", number=1, type=5, label=1)
    outer = files.file.add(name="outer.proto", syntax="proto3", dependency=["inner.proto"])
    outer.message_type.add(name="Outer").field.add(
        name="i", number=1, type=11, type_name=".Inner", label=1
    )
    schema = load_format("protobuf", SchemaTools()).parse(files.SerializeToString())
    assert schema.spark_ddl() == "STRUCT<`i`: STRUCT<`x`: BIGINT>>"


def test_schemas_do_not_see_each_other() -> None:
    one = parse("protobuf", 'syntax = "proto3"; message A { int32 x = 1; }')
    other = parse("protobuf", 'syntax = "proto3"; message A { string x = 1; }')
    assert one.spark_ddl() != other.spark_ddl()


def test_text_needs_a_compiler() -> None:
    with pytest.raises(SchemaCompilerUnavailable, match="descriptor_set_out"):
        load_format("protobuf", SchemaTools()).parse(ORDER.encode())


def descriptors(**message: Any) -> bytes:
    files = FileDescriptorSet()
    files.file.add(name="a.proto", syntax="proto3").message_type.add(name="A", **message)
    return files.SerializeToString()


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (b"", "the definition is empty"),
        (b"\xff\xfe", "neither Protobuf text in UTF-8 nor a FileDescriptorSet"),
        (b'syntax = "proto3"; enum E { A = 0; }', "declares no message"),
        (
            descriptors(
                field=[{"name": "x", "number": 1, "type": 11, "type_name": ".B", "label": 1}]
            ),
            "do not fit together",
        ),
        (
            FileDescriptorSet(
                file=[{"name": "a.proto", "dependency": ["../secret.proto"]}]  # type: ignore[list-item]
            ).SerializeToString(),
            "neither part of the definition nor one of google/protobuf",
        ),
    ],
)
def test_what_is_not_protobuf_is_refused_with_the_reason(definition: bytes, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        load_format("protobuf", SchemaTools(protobuf_compiler=QuickCompiler())).parse(definition)


@pytest.mark.parametrize(
    ("definition", "limit"),
    [
        (
            descriptors(field=[{"name": f"f{n}", "number": n, "type": 5} for n in range(1, 2_002)]),
            "fields_max",
        ),
        (
            descriptors(
                enum_type=[
                    {"name": "E", "value": [{"name": f"V{n}", "number": n} for n in range(2_001)]}
                ]
            ),
            "enum_values_max",
        ),
        (descriptors(field=[{"name": "x" * 600, "number": 1, "type": 5}]), "name_chars_max"),
        (
            descriptors(nested_type=[{"name": f"N{n}"} for n in range(10_001)]),
            "nodes_max",
        ),
        (b"// " + b"x" * 300_000, "definition_bytes_max"),
    ],
)
def test_a_hostile_schema_is_refused_by_the_limit_it_exceeds(definition: bytes, limit: str) -> None:
    with pytest.raises(SchemaTooComplex, match=limit):
        load_format("protobuf", SchemaTools(protobuf_compiler=QuickCompiler())).parse(definition)


def test_a_value_that_nests_too_deep_is_refused() -> None:
    schema = parse("protobuf", "M next = 1; }")
    payload = b""
    for _ in range(150):
        size = len(payload)
        length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
        payload = b"\x0a" + length + payload
    assert reasons(schema, payload) != []


def test_the_difference_is_told_in_words() -> None:
    old = parse("protobuf", "int32 a = 1; E e = 2; string gone = 3; } enum E { X = 0; Y = 1; }")
    new = parse(
        "protobuf",
        "oneof o { int64 a = 1; } E e = 2; I i = 4; reserved 3; } enum E { X = 0; Z = 1; W = 2; } "
        "message I { int32 x = 1; }",
    )
    assert [str(each) for each in difference(old, new)] == [
        "a: int32 a = 1 became int64 a = 1",
        "a: oneof none became o",
        "e: value Y = 1 renamed to Z",
        "e: value W = 2 added",
        "i: field added: I i = 4",
        "gone: field removed: string gone = 3 (number reserved)",
    ]
