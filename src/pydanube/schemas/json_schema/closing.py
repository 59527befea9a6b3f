"""Makes a writer's schema say what writers write: the properties it declares.

By the letter, a schema without `additionalProperties` allows any other property with any value, so
that every new property would contradict something somebody might have written. Writers are taken
by their word instead. `additionalProperties` that is present is left as it is.
"""

from collections.abc import Iterator

from pydanube.schemas.bounds import Json
from pydanube.schemas.json_schema.document import (
    IN_PLACE,
    IN_PLACE_LISTS,
    IN_PLACE_MAPS,
    REFERENCES,
    Document,
    Subschema,
    children,
)

_OPENING = (
    "additionalProperties",
    "unevaluatedProperties",
    "patternProperties",
    *IN_PLACE_LISTS,
    *IN_PLACE,
    *IN_PLACE_MAPS,
    *REFERENCES,
)
_IN_PLACE = (*IN_PLACE_LISTS, *IN_PLACE, *IN_PLACE_MAPS, *REFERENCES)
_SHAPES = ("properties", "patternProperties", "additionalProperties", "items", "prefixItems")
_COMPOSED = ("allOf", "not", "if", "then", "else", "dependentSchemas", "dependencies", "contains")


def close(document: Document) -> Subschema:
    """Return a copy of the document in which plain objects have only their own properties.

    What is composed with something else (`allOf`, a `$ref` beside other keywords) stays open: its
    parts would exclude each other's properties.
    """
    return _Closing(document).close(document.root)


class _Closing:
    def __init__(self, document: Document) -> None:
        self._kept_open = {id(schema) for schema in _composed(document)}

    def close(self, schema: Subschema) -> Subschema:
        if not isinstance(schema, dict) or id(schema) in self._kept_open:
            return schema
        closed = {keyword: self._keyword(keyword, value) for keyword, value in schema.items()}
        declares = isinstance(schema.get("properties"), dict) and schema["properties"]
        if declares and not any(keyword in schema for keyword in _OPENING):
            closed["additionalProperties"] = False
        return closed

    def _keyword(self, keyword: str, value: Json) -> Json:
        match keyword, value:
            case (("properties" | "patternProperties" | "$defs" | "definitions"), dict()):
                return {name: self.close(child) for name, child in value.items()}
            case (("anyOf" | "oneOf" | "prefixItems" | "items"), list()):
                return [self.close(child) for child in value]
            case (("items" | "additionalProperties" | "additionalItems"), dict()):
                return self.close(value)
            case _:
                return value


def _composed(document: Document) -> Iterator[Subschema]:
    """Yield every subschema that is applied together with another one, and all below it."""
    pending: list[Subschema] = []
    for schema in _everything(document.root):
        pending += _together(schema, document)
    seen: set[int] = set()
    while pending:
        schema = pending.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield schema
        pending += _values(schema)
        pending += document.in_place(schema)


def _together(schema: dict[str, Json], document: Document) -> Iterator[Subschema]:
    for keyword in _COMPOSED:
        value = schema.get(keyword)
        yield from value if isinstance(value, list) else [value]
    if any(keyword in schema for keyword in _IN_PLACE) and any(
        keyword in schema for keyword in _SHAPES
    ):
        # The value's parts are described here and there: neither place knows all of them.
        yield from document.in_place(schema)
        yield from (child for _, _, child in children(schema))


def _everything(root: Subschema) -> Iterator[dict[str, Json]]:
    pending = [root]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            yield value
            pending += value.values()
        elif isinstance(value, list):
            pending += value


def _values(schema: dict[str, Json]) -> Iterator[Subschema]:
    for value in schema.values():
        if isinstance(value, dict):
            yield value
            yield from (child for child in value.values() if isinstance(child, dict))
        elif isinstance(value, list):
            yield from (child for child in value if isinstance(child, dict))
