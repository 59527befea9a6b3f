"""The laws of schemas are worth something: each of these wrong rules breaks one."""

from collections.abc import Callable
from typing import Any

import pytest
from fastavro.read import SchemaResolutionError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pydanube.schemas.avro import resolution, walking
from pydanube.schemas.json_schema import comparing
from pydanube.schemas.json_schema import format as json_format
from pydanube.schemas.protobuf import rules
from tests.property.test_schema_laws import avro_law, json_law, protobuf_law
from tests.support.schema_mutations import json_schemas, protobuf_fields

pytestmark = pytest.mark.slow

Law = Callable[[st.DataObject, st.SearchStrategy[Any]], None]
Plant = Callable[[pytest.MonkeyPatch], None]

SEARCH = settings(
    deadline=None,
    max_examples=1_000,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def nothing(*_: Any) -> list[Any]:
    return []


def long_reads_as_int(plant: pytest.MonkeyPatch) -> None:
    plant.setitem(resolution.PROMOTIONS, "long", ("int", "float", "double"))


def string_reads_as_long(plant: pytest.MonkeyPatch) -> None:
    plant.setitem(resolution.PROMOTIONS, "string", ("bytes", "long"))


def fields_need_no_default(plant: pytest.MonkeyPatch) -> None:
    real = resolution._Resolution._fields

    def fields(*arguments: Any) -> list[Any]:
        return [fault for fault in real(*arguments) if fault.rule != "field_without_default"]

    plant.setattr(resolution._Resolution, "_fields", fields)


def symbols_may_go(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(resolution, "_symbols", nothing)


def sizes_of_fixed_may_change(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(resolution, "_fixed", nothing)


def branches_may_go(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(resolution._Resolution, "_into_union", nothing)


def enumerations_are_walked_too_far(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(walking, "_enumeration", lambda count: walking._PRIMITIVES["double"])


def the_unknown_counts_as_contained(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(json_format, "contains", lambda *_: ("yes", ""))
    plant.setattr(comparing._Comparer, "evolve", nothing)


def every_writer_is_closed(plant: pytest.MonkeyPatch) -> None:
    real = json_format.close

    def close(document: Any) -> Any:
        schema = real(document)
        if isinstance(schema, dict) and "properties" in schema:
            schema["additionalProperties"] = False
        return schema

    plant.setattr(json_format, "close", close)


def bounds_are_not_compared(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(comparing, "KEYWORD_RULES", ())
    plant.setattr(json_format, "contains", lambda *_: ("unknown", ""))


def required_properties_are_not_compared(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(comparing, "required_of", lambda schema: set())
    plant.setattr(json_format, "contains", lambda *_: ("unknown", ""))


def int64_reads_as_int32(plant: pytest.MonkeyPatch) -> None:
    plant.setitem(rules.WIDENING, "int64", ("int32",))


def uint32_reads_as_int32(plant: pytest.MonkeyPatch) -> None:
    plant.setitem(rules.WIDENING, "uint32", ("int32",))


def bytes_read_as_string(plant: pytest.MonkeyPatch) -> None:
    plant.setitem(rules.WIDENING, "bytes", ("string",))


def oneofs_do_not_matter(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(rules, "_oneof_faults", nothing)


def nothing_about_fields_matters(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(rules, "_field_faults", nothing)


RECORD = {"type": "record", "name": "N1", "fields": [{"name": "a", "type": "int"}]}
ENUM = {"type": "enum", "name": "N1", "symbols": ["X", "Y", "Z"]}
FIXED = {"type": "fixed", "name": "N1", "size": 2}
OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}}
OPEN_OBJECT = {**OBJECT, "additionalProperties": True}
NUMBER = {"type": "number", "minimum": 0}

# Each bug is looked for where it lives: in successors of a schema that has what it is about.
BUGS: list[tuple[Law, Plant, st.SearchStrategy[Any]]] = [
    (avro_law, long_reads_as_int, st.just("long")),
    (avro_law, string_reads_as_long, st.just("string")),
    (avro_law, fields_need_no_default, st.just(RECORD)),
    (avro_law, symbols_may_go, st.just(ENUM)),
    (avro_law, sizes_of_fixed_may_change, st.just(FIXED)),
    (avro_law, branches_may_go, st.just(["int", "string"])),
    (avro_law, enumerations_are_walked_too_far, st.just(ENUM)),
    (json_law, the_unknown_counts_as_contained, json_schemas(1)),
    (json_law, every_writer_is_closed, st.just(OPEN_OBJECT)),
    (json_law, bounds_are_not_compared, st.just(NUMBER)),
    (json_law, required_properties_are_not_compared, st.just(OBJECT)),
    (protobuf_law, int64_reads_as_int32, protobuf_fields(("int64",))),
    (protobuf_law, uint32_reads_as_int32, protobuf_fields(("uint32",))),
    (protobuf_law, bytes_read_as_string, protobuf_fields(("bytes",))),
    (protobuf_law, oneofs_do_not_matter, protobuf_fields(("bool",), 2)),
    (protobuf_law, nothing_about_fields_matters, protobuf_fields(("float",))),
]


@pytest.mark.parametrize(
    ("law", "bug", "olds"), [pytest.param(*each, id=each[1].__name__) for each in BUGS]
)
def test_the_bug_is_found(
    law: Law, bug: Plant, olds: st.SearchStrategy[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    search = SEARCH(given(st.data())(lambda data: law(data, olds)))
    # A wrong rule shows as a broken law, or as a decoder that stumbles over what it was promised.
    with pytest.raises((AssertionError, SchemaResolutionError, EOFError, LookupError)):
        search()


@pytest.mark.parametrize(
    ("law", "olds"), [pytest.param(each[0], each[2], id=each[1].__name__) for each in BUGS]
)
def test_without_the_bug_nothing_is_found(law: Law, olds: st.SearchStrategy[Any]) -> None:
    settings(SEARCH, max_examples=60)(given(st.data())(lambda data: law(data, olds)))()
