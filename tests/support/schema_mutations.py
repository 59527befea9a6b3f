"""Schemas drawn at random, successors of them by mutation, and data they allow."""

import copy
from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "c", "d")
Draw = Any

AVRO_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


@st.composite
def avro_types(draw: Draw, depth: int = 2, *, counter: list[int] | None = None) -> Any:
    """Avro schemas whose named types have numbered names."""
    numbers = counter if counter is not None else [0]
    kinds = ["primitive", "enum", "fixed", "record", "array", "map", "union"]
    kind = draw(st.sampled_from(kinds if depth else kinds[:3]))
    numbers[0] += 1
    name = f"N{numbers[0]}"
    inner = avro_types(depth - 1, counter=numbers) if depth else st.just("int")
    match kind:
        case "enum":
            count = draw(st.integers(1, 3))
            return {"type": "enum", "name": name, "symbols": list("XYZ"[:count])}
        case "fixed":
            return {"type": "fixed", "name": name, "size": draw(st.integers(1, 3))}
        case "record":
            fields = [
                {"name": each, "type": draw(inner)} for each in NAMES[: draw(st.integers(1, 3))]
            ]
            return {"type": "record", "name": name, "fields": fields}
        case "array":
            return {"type": "array", "items": _one_byte_at_least(draw(inner))}
        case "map":
            return {"type": "map", "values": draw(inner)}
        case "union":
            branches = draw(
                st.lists(st.sampled_from(AVRO_PRIMITIVES), min_size=1, max_size=3, unique=True)
            )
            return branches
        case _:
            return draw(st.sampled_from(AVRO_PRIMITIVES))


def _one_byte_at_least(avro_type: Any) -> Any:
    return "int" if avro_type == "null" or isinstance(avro_type, dict) else avro_type


@st.composite
def avro_successors(draw: Draw, old: Any) -> Any:
    """What somebody might make of an Avro schema, wise or not."""
    new = copy.deepcopy(old)
    for _ in range(draw(st.integers(1, 3))):
        new = _mutated_avro(draw, new)
    return new


def _mutated_avro(draw: Draw, schema: Any) -> Any:
    if isinstance(schema, list):
        change = draw(st.sampled_from(("add", "drop", "single")))
        if change == "add":
            extra = draw(st.sampled_from(AVRO_PRIMITIVES))
            return schema if extra in schema else [*schema, extra]
        if change == "drop" and len(schema) > 1:
            return schema[1:]
        return schema[0]
    if isinstance(schema, str):
        other = draw(st.sampled_from(AVRO_PRIMITIVES))
        return draw(st.sampled_from((other, ["null", schema] if schema != "null" else other)))
    schema = dict(schema)
    match schema["type"]:
        case "record":
            _mutate_record(draw, schema)
        case "enum":
            symbols = draw(st.sampled_from((["X"], ["X", "Y"], ["Z", "Y", "X"])))
            schema["symbols"] = symbols
            schema.pop("default", None)
            if draw(st.booleans()):
                schema["default"] = symbols[0]
        case "fixed":
            schema["size"] = draw(st.integers(1, 3))
        case "array":
            schema["items"] = _one_byte_at_least(_mutated_avro(draw, schema["items"]))
        case "map":
            schema["values"] = _mutated_avro(draw, schema["values"])
        case _:
            pass
    return schema


def _mutate_record(draw: Draw, schema: dict[str, Any]) -> None:
    fields = [dict(each) for each in schema["fields"]]
    match draw(st.sampled_from(("change", "add", "add default", "drop", "rename", "reverse"))):
        case "change":
            fields[0]["type"] = _mutated_avro(draw, fields[0]["type"])
            fields[0].pop("default", None)
        case "add":
            fields.append({"name": f"n{len(fields)}", "type": "int"})
        case "add default":
            fields.append({"name": f"n{len(fields)}", "type": "bytes", "default": "\u00ff"})
        case "drop" if len(fields) > 1:
            fields.pop(0)
        case "rename":
            fields[0]["aliases"] = [fields[0]["name"]]
            fields[0]["name"] = "renamed"
        case _:
            fields.reverse()
    names = [each["name"] for each in fields]
    if len(set(names)) == len(names):
        schema["fields"] = fields


@st.composite
def avro_values(draw: Draw, schema: Any) -> Any:
    """Values of an Avro schema without references."""
    match schema:
        case list():
            return draw(avro_values(draw(st.sampled_from(schema))))
        case "null":
            return None
        case "boolean":
            return draw(st.booleans())
        case "int":
            return draw(st.integers(-(1 << 31), (1 << 31) - 1))
        case "long":
            return draw(st.integers(-(1 << 63), (1 << 63) - 1))
        case "float":
            return draw(st.floats(width=32, allow_nan=False))
        case "double":
            return draw(st.floats(allow_nan=False))
        case "bytes":
            # Bytes that are read as a string are text by agreement.
            return draw(st.text(max_size=4)).encode()
        case "string":
            return draw(st.text(max_size=4))
    match schema["type"]:
        case "enum":
            return draw(st.sampled_from(schema["symbols"]))
        case "fixed":
            return draw(st.binary(min_size=schema["size"], max_size=schema["size"]))
        case "array":
            return draw(st.lists(avro_values(schema["items"]), max_size=2))
        case "map":
            return draw(
                st.dictionaries(st.text(max_size=2), avro_values(schema["values"]), max_size=2)
            )
        case "record":
            return {each["name"]: draw(avro_values(each["type"])) for each in schema["fields"]}
        case other:
            return draw(avro_values(other))


@st.composite
def json_schemas(draw: Draw, depth: int = 2) -> Any:
    """JSON Schemas with bounds that often meet."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "object", "array", "any"]
    kind = draw(st.sampled_from(kinds if depth else kinds[:6]))
    inner = json_schemas(depth - 1) if depth else st.just({"type": "string"})
    match kind:
        case "string":
            bounds = draw(st.sampled_from(({}, {"maxLength": 2}, {"minLength": 1})))
            return {"type": "string", **bounds}
        case "integer" | "number":
            bounds = draw(
                st.sampled_from(
                    ({}, {"minimum": 0}, {"exclusiveMinimum": 0}, {"maximum": 5}, {"multipleOf": 2})
                )
            )
            return {"type": kind, **bounds}
        case "enum":
            return {"enum": list(draw(st.sampled_from((("x",), ("x", "y"), (1, "x"), (1, 2)))))}
        case "object":
            names = NAMES[: draw(st.integers(1, 3))]
            schema: dict[str, Any] = {
                "type": "object",
                "properties": {name: draw(inner) for name in names},
                "required": [name for name in names if draw(st.booleans())],
            }
            extra = draw(st.sampled_from((None, None, False, True, {"type": "integer"})))
            if extra is not None:
                schema["additionalProperties"] = extra
            return schema
        case "array":
            bounds = draw(st.sampled_from(({}, {"maxItems": 1}, {"uniqueItems": True})))
            return {"type": "array", "items": draw(inner), **bounds}
        case "any":
            return {"anyOf": [draw(inner), draw(inner)]}
        case _:
            return {"type": kind}


@st.composite
def json_successors(draw: Draw, old: Any) -> Any:
    """What somebody might make of a JSON Schema, wise or not."""
    new = copy.deepcopy(old)
    for _ in range(draw(st.integers(1, 3))):
        new = _mutated_json(draw, new)
    return new


def _mutated_json(draw: Draw, schema: Any) -> Any:
    if not isinstance(schema, dict) or draw(st.integers(0, 9)) == 0:
        return draw(json_schemas(1))
    if "properties" in schema and draw(st.booleans()):
        return _mutated_object(draw, schema)
    if "items" in schema:
        return {**schema, "items": _mutated_json(draw, schema["items"])}
    match draw(st.sampled_from(("nullable", "loosen", "tighten", "wrap", "same"))):
        case "nullable":
            return {"anyOf": [schema, {"type": "null"}]}
        case "loosen":
            kept = ("type", "properties", "items", "required", "anyOf", "enum")
            return {key: value for key, value in schema.items() if key in kept}
        case "tighten":
            bound = draw(st.sampled_from(("minimum", "maximum", "minLength", "maxLength")))
            return {**schema, bound: draw(st.integers(0, 3))}
        case "wrap":
            return {"allOf": [schema]}
        case _:
            return schema


def _mutated_object(draw: Draw, schema: dict[str, Any]) -> dict[str, Any]:
    properties, required = dict(schema["properties"]), list(schema.get("required", []))
    name = draw(st.sampled_from(NAMES))
    match draw(st.sampled_from(("change", "add", "drop", "require", "release", "close", "open"))):
        case "change" if name in properties:
            properties[name] = _mutated_json(draw, properties[name])
        case "add" if name not in properties:
            properties[name] = draw(json_schemas(0))
        case "drop" if len(properties) > 1:
            properties.pop(name, None)
            required = [each for each in required if each != name]
        case "require" if name in properties and name not in required:
            required.append(name)
        case "release":
            required = [each for each in required if each != name]
        case "close":
            return {**schema, "additionalProperties": False}
        case "open":
            return {key: value for key, value in schema.items() if key != "additionalProperties"}
        case _:
            pass
    return {**schema, "properties": properties, "required": required}


@st.composite
def json_values(draw: Draw, schema: Any) -> Any:
    """Values a writer with this schema may write; some miss its bounds and must be sorted out."""
    if schema is True or schema == {}:
        return draw(st.sampled_from((1, "x", None, [1], {"z": 1})))
    if "allOf" in schema:
        return draw(json_values(schema["allOf"][0]))
    if "anyOf" in schema:
        return draw(json_values(draw(st.sampled_from(schema["anyOf"]))))
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    match schema.get("type"):
        case "string":
            return draw(st.text(max_size=3))
        case "integer":
            return draw(st.integers(-3, 8))
        case "number":
            return draw(st.sampled_from((-1, 0, 0.5, 1, 2, 2.5, 4, 6, 7)))
        case "boolean":
            return draw(st.booleans())
        case "array":
            return draw(st.lists(json_values(schema.get("items", True)), max_size=2))
        case "object":
            return _object_value(draw, schema)
        case _:
            return None


def _object_value(draw: Draw, schema: dict[str, Any]) -> dict[str, Any]:
    value = {
        name: draw(json_values(child))
        for name, child in schema.get("properties", {}).items()
        if name in schema.get("required", []) or draw(st.booleans())
    }
    rest = schema.get("additionalProperties", False)
    if rest is not False and draw(st.booleans()):
        value[draw(st.sampled_from((*NAMES, "z")))] = draw(json_values(rest))
    return value


PROTOBUF_SCALARS = (
    "int32",
    "int64",
    "uint32",
    "uint64",
    "sint32",
    "sint64",
    "fixed32",
    "sfixed32",
    "fixed64",
    "float",
    "double",
    "bool",
    "string",
    "bytes",
    "E",
    "I",
)
PROTOBUF_RELATED = {
    "int64": ("int32", "uint64"),
    "uint32": ("int32", "uint64", "int64"),
    "int32": ("uint32", "int64", "sint32"),
    "bytes": ("string",),
    "string": ("bytes",),
    "bool": ("int32", "uint64"),
    "E": ("int32", "bool"),
    "I": ("bytes", "string"),
}
"""What a type is most easily taken for."""


@st.composite
def protobuf_fields(
    draw: Draw, types: tuple[str, ...] = PROTOBUF_SCALARS, count: int = 1
) -> list[dict[str, Any]]:
    """The fields of message M: number, name, type, label and oneof."""
    count = draw(st.integers(count, 3))
    return [
        {
            "number": number,
            "name": f"f{number}",
            "type": draw(st.sampled_from(types)),
            "label": draw(st.sampled_from(("", "", "optional", "repeated", "oneof"))),
        }
        for number in range(1, count + 1)
    ]


@st.composite
def protobuf_successors(draw: Draw, old: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What somebody might make of a message, wise or not."""
    new = copy.deepcopy(old)
    for _ in range(draw(st.integers(1, 2))):
        each = draw(st.sampled_from([each for each in new if each["label"] != "reserved"] or new))
        match draw(st.sampled_from(("type", "type", "type", "label", "add", "reserve", "drop"))):
            case "type":
                related = PROTOBUF_RELATED.get(each["type"], PROTOBUF_SCALARS)
                each["type"] = draw(st.sampled_from(related) | st.sampled_from(PROTOBUF_SCALARS))
            case "label":
                each["label"] = draw(st.sampled_from(("", "optional", "repeated", "oneof")))
            case "add":
                number = len(new) + 10
                new.append({"number": number, "name": f"f{number}", "type": "int32", "label": ""})
            case "reserve" if each["label"] != "reserved" and len(new) > 1:
                each["label"] = "reserved"
            case "drop" if len(new) > 1:
                new.remove(each)
            case _:
                pass
    return new


def protobuf_text(fields: list[dict[str, Any]]) -> str:
    """Return the file that declares message M with these fields."""
    plain = "".join(
        f" {each['label']} {each['type']} {each['name']} = {each['number']};"
        for each in fields
        if each["label"] not in ("oneof", "reserved")
    )
    reserved = "".join(
        f' reserved {each["number"]}; reserved "{each["name"]}";'
        for each in fields
        if each["label"] == "reserved"
    )
    chosen = "".join(
        f" {each['type']} {each['name']} = {each['number']};"
        for each in fields
        if each["label"] == "oneof"
    )
    oneof = f" oneof choice {{{chosen} }}" if chosen else ""
    return (
        f'syntax = "proto3"; message M {{{plain}{oneof}{reserved} }}'
        " enum E { X = 0; Y = 1; } message I { int32 x = 1; }"
    )
