"""What one JSON Schema says by itself: its types, values and properties."""

import orjson

from pydanube.schemas.bounds import Json
from pydanube.schemas.json_schema.document import (
    LISTS_OF_SCHEMAS,
    MAPS_OF_SCHEMAS,
    SINGLE_SCHEMAS,
    Document,
    Subschema,
)

ALL_TYPES = frozenset(("null", "boolean", "object", "array", "number", "integer", "string"))
ANNOTATIONS = frozenset(
    (
        "$schema",
        "$id",
        "$anchor",
        "$comment",
        "$defs",
        "definitions",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
    )
)


_WORDS = frozenset(
    (
        "$comment",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
    )
)


def meaning(schema: Subschema) -> Subschema:
    """Return a copy without the words that do not change what is allowed."""
    if not isinstance(schema, dict):
        return schema
    return {
        keyword: _meaning_of(keyword, value)
        for keyword, value in schema.items()
        if keyword not in _WORDS
    }


def _meaning_of(keyword: str, value: Json) -> Json:
    if keyword in MAPS_OF_SCHEMAS and isinstance(value, dict):
        return {name: meaning(child) for name, child in value.items()}
    if keyword in LISTS_OF_SCHEMAS and isinstance(value, list):
        return [meaning(child) for child in value]
    return meaning(value) if keyword in SINGLE_SCHEMAS else value


def followed(schema: Subschema, document: Document) -> Subschema:
    """Return what a chain of plain references leads to."""
    for _ in range(32):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        schema = document.resolve(schema["$ref"])
    return schema


def is_alone(schema: dict[str, Json], keyword: str) -> bool:
    """Tell whether a schema has this keyword and otherwise only annotations."""
    return not (schema.keys() - ANNOTATIONS - {keyword})


def declared_types(schema: dict[str, Json]) -> frozenset[str]:
    """Return what `type` lists; nothing if it is absent."""
    value = schema.get("type")
    if isinstance(value, str):
        return frozenset((value,))
    return frozenset(value) if isinstance(value, list) else frozenset()


def types_of(schema: dict[str, Json], document: Document) -> frozenset[str]:
    """Return the types a schema allows; those of its values if it lists values."""
    values = values_of(schema)
    if values is not None:
        return frozenset(type_of(value) for value in values)
    declared = declared_types(schema)
    if declared:
        return declared | {"integer"} if "number" in declared else declared
    target = followed(schema, document)
    if target is not schema and isinstance(target, dict) and "$ref" not in target:
        return types_of(target, document)
    return ALL_TYPES


def type_of(value: Json) -> str:
    """Return the narrowest type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def values_of(schema: dict[str, Json]) -> list[Json] | None:
    """Return the values of `const` or `enum`, or None if there is neither."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def properties_of(schema: dict[str, Json]) -> dict[str, Subschema]:
    """Return the declared properties."""
    value = schema.get("properties")
    return value if isinstance(value, dict) else {}


def required_of(schema: dict[str, Json]) -> set[str]:
    """Return the names of required properties."""
    value = schema.get("required")
    return set(value) if isinstance(value, list) else set()


def path_below(path: str, name: str) -> str:
    """Return the path of a property."""
    return f"{path}.{name}" if path else name


def types_text(types: frozenset[str]) -> str:
    """Return types as a person would list them."""
    shown = types - {"integer"} if "number" in types else types
    return " or ".join(sorted(shown))


def shortened(value: Json) -> str:
    """Return a value as JSON that fits into a message."""
    text = orjson.dumps(value).decode()
    return text if len(text) <= 80 else text[:79] + "…"
