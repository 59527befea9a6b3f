"""What was written by the old schema is read by the new one whenever we said that it would be."""

import io
import json
from typing import Any

import fastavro
import jsonschema_rs
import orjson
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pydanube.schemas.catalog import load_format
from pydanube.schemas.compatibility import check, compatibility, difference
from pydanube.schemas.format import Schema, SchemaTools
from tests.support.schema_cases import parse
from tests.support.schema_mutations import (
    avro_successors,
    avro_types,
    avro_values,
    json_schemas,
    json_successors,
    json_values,
    protobuf_fields,
    protobuf_successors,
    protobuf_text,
)

LAWS = settings(
    deadline=None,
    max_examples=250,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def assert_canonical_form_holds(schema: Schema) -> None:
    """The canonical form is a definition of the same schema, which needs no compiler."""
    again = load_format(schema.format, SchemaTools()).parse(schema.canonical)
    assert again.fingerprint == schema.fingerprint
    assert again.canonical == schema.canonical


@LAWS
@given(st.data())
def test_avro_data_of_a_compatible_writer_is_read(data: st.DataObject) -> None:
    avro_law(data, avro_types())


def avro_law(data: st.DataObject, olds: st.SearchStrategy[Any]) -> None:
    old_spec = data.draw(olds)
    new_spec = data.draw(avro_successors(old_spec))
    old, new = parse("avro", old_spec), parse("avro", new_spec)
    assert_canonical_form_holds(old)
    assert (difference(old, new) == []) >= (old.fingerprint == new.fingerprint)
    value = data.draw(avro_values(old_spec))
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(json.loads(old.canonical)), value)
    payload = buffer.getvalue()
    assert old.validator().failures([payload]) == []
    assert old.decode([payload]).failures == []
    if check("backward", new, [old]) == []:
        read = fastavro.schemaless_reader(
            io.BytesIO(payload),
            fastavro.parse_schema(json.loads(old.canonical)),
            fastavro.parse_schema(json.loads(new.canonical)),
        )
        assert read is not None or value is None or new_spec == "null"
        assert new.decode([payload], writer=old).failures == []


@LAWS
@given(st.binary(max_size=40), avro_types())
def test_no_bytes_break_the_avro_validator_and_valid_ones_are_decoded(
    payload: bytes, spec: Any
) -> None:
    schema = parse("avro", spec)
    if schema.validator().failures([payload]) == []:
        assert schema.decode([payload]).failures == []
    else:
        assert len(schema.decode([payload]).failures) == 1


@LAWS
@given(st.data())
def test_json_of_a_compatible_writer_is_read(data: st.DataObject) -> None:
    json_law(data, json_schemas())


def json_law(data: st.DataObject, olds: st.SearchStrategy[Any]) -> None:
    old_spec = data.draw(olds)
    new_spec = data.draw(json_successors(old_spec))
    old, new = parse("json_schema", old_spec), parse("json_schema", new_spec)
    assert_canonical_form_holds(old)
    assert (difference(old, new) == []) >= (old.fingerprint == new.fingerprint)
    values = [data.draw(json_values(old_spec)) for _ in range(4)]
    written = [value for value in values if jsonschema_rs.is_valid(old_spec, value)]
    payloads = [orjson.dumps(value) for value in written]
    assert old.validator().failures(payloads) == []
    if compatibility(old, new) == []:
        assert new.validator().failures(payloads) == []


@LAWS
@given(st.data())
def test_protobuf_of_a_compatible_writer_is_read(data: st.DataObject) -> None:
    protobuf_law(data, protobuf_fields())


def protobuf_law(data: st.DataObject, olds: st.SearchStrategy[Any]) -> None:
    old_fields = data.draw(olds)
    new_fields = data.draw(protobuf_successors(old_fields))
    old_text, new_text = protobuf_text(old_fields), protobuf_text(new_fields)
    old, new = parse("protobuf", old_text), parse("protobuf", new_text)
    assert_canonical_form_holds(old)
    message = data.draw(messages(GetMessageClass(old.descriptor), old_fields))  # type: ignore[attr-defined]
    payload = message.SerializeToString()
    assert old.validator().failures([payload]) == []
    assert old.decode([payload]).failures == []
    assume(compatibility(old, new) == [])
    assert new.validator().failures([payload]) == []
    read = GetMessageClass(new.descriptor).FromString(payload)  # type: ignore[attr-defined]
    kept = {each["number"] for each in new_fields if each["label"] != "reserved"}
    for field, value in message.ListFields():
        if field.number in kept:
            assert plain(getattr(read, field.name)) == plain(value), field.name


def plain(value: Any) -> Any:
    """Return a value as the widest type that may read it: bytes for text and messages."""
    match value:
        case str():
            return value.encode()
        case bytes() | int() | float():
            return value
        case Message():
            return value.SerializeToString()
        case _:
            return [plain(each) for each in value]


INTEGERS = {
    "int32": (-(1 << 31), (1 << 31) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "uint32": (0, (1 << 32) - 1),
    "uint64": (0, (1 << 64) - 1),
    "sint32": (-(1 << 31), (1 << 31) - 1),
    "sint64": (-(1 << 63), (1 << 63) - 1),
    "fixed32": (0, (1 << 32) - 1),
    "sfixed32": (-(1 << 31), (1 << 31) - 1),
    "fixed64": (0, (1 << 64) - 1),
    "E": (0, 1),
}


@st.composite
def messages(draw: Any, kind: Any, fields: list[dict[str, Any]]) -> Message:
    message: Message = kind()
    for each in fields:
        if draw(st.integers(0, 4)) == 0:
            continue
        values = [draw(scalars(each["type"])) for _ in range(2)]
        target = getattr(message, each["name"])
        if each["type"] == "I":
            inner = [target.add()] if each["label"] == "repeated" else [target]
            inner[0].x = values[0]
        elif each["label"] == "repeated":
            target.extend(values)
        else:
            setattr(message, each["name"], values[0])
    return message


def scalars(kind: str) -> st.SearchStrategy[Any]:
    if kind in INTEGERS:
        least, most = INTEGERS[kind]
        return st.integers(least, most) | st.sampled_from((least, most))
    match kind:
        case "bool":
            return st.booleans()
        case "string":
            return st.text(max_size=3)
        case "bytes":
            return st.binary(max_size=3)
        case "I":
            return st.integers(-5, 5)
        case "float":
            return st.floats(width=32, allow_nan=False)
        case _:
            return st.floats(allow_nan=False)
