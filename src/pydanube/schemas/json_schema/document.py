"""A JSON Schema as a document of subschemas that refer to each other."""

from collections.abc import Iterator
from typing import TypeAlias
from urllib.parse import unquote

from pydanube.schemas.bounds import Json
from pydanube.schemas.errors import InvalidSchema

Subschema: TypeAlias = Json
"""A boolean or an object."""

IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
IN_PLACE = ("not", "if", "then", "else")
IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
BELOW = (
    "additionalProperties",
    "additionalItems",
    "contains",
    "contentSchema",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)
BELOW_MAPS = ("properties", "patternProperties")
DEFINITIONS = ("$defs", "definitions")
MAPS_OF_SCHEMAS = (*BELOW_MAPS, *IN_PLACE_MAPS, *DEFINITIONS)
LISTS_OF_SCHEMAS = (*IN_PLACE_LISTS, "prefixItems", "items")
SINGLE_SCHEMAS = (*BELOW, *IN_PLACE, "items")


class Document:
    """Resolves references within one definition; there are no others."""

    def __init__(self, root: Subschema) -> None:
        self.root = root
        self._own_id = root.get("$id", "").rstrip("#") if isinstance(root, dict) else ""
        self._anchors: dict[str, Subschema] = {}
        self.references: list[str] = []
        self._collect(root)

    def resolve(self, reference: str) -> Subschema:
        """Return the subschema a reference names; raise InvalidSchema if it is not in here."""
        before, _, fragment = reference.partition("#")
        if before and before != self._own_id:
            raise InvalidSchema(
                f"reference {reference!r} points outside the definition, and the broker "
                "never fetches one; put its target under $defs and refer to #/$defs/…"
            )
        if not fragment:
            return self.root
        if not fragment.startswith("/"):
            if fragment not in self._anchors:
                raise InvalidSchema(f"reference {reference!r} names no $anchor")
            return self._anchors[fragment]
        return self._at(fragment, reference)

    def _at(self, pointer: str, reference: str) -> Subschema:
        node = self.root
        for token in unquote(pointer).split("/")[1:]:
            key = token.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
                node = node[int(key)]
            else:
                raise InvalidSchema(f"reference {reference!r} names nothing in the definition")
        if not isinstance(node, dict | bool):
            raise InvalidSchema(f"reference {reference!r} does not name a schema")
        return node

    def _collect(self, root: Subschema) -> None:
        pending = [root]
        while pending:
            schema = pending.pop()
            if not isinstance(schema, dict):
                continue
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(schema.get(keyword), str):
                    self._anchors[schema[keyword]] = schema
            for keyword in REFERENCES:
                if isinstance(schema.get(keyword), str):
                    self.references.append(schema[keyword])
            pending.extend(child for _, _, child in children(schema))

    def in_place(self, schema: Subschema) -> Iterator[Subschema]:
        """Yield what else is applied to the value `schema` is applied to."""
        if not isinstance(schema, dict):
            return
        for keyword, _, child in children(schema):
            if keyword in IN_PLACE_LISTS or keyword in IN_PLACE or keyword in IN_PLACE_MAPS:
                yield child
        for keyword in REFERENCES:
            if isinstance(schema.get(keyword), str):
                yield self.resolve(schema[keyword])


def children(schema: dict[str, Json]) -> Iterator[tuple[str, str, Subschema]]:
    """Yield the direct subschemas: the keyword, the name or number below it, and the schema."""
    for keyword, value in schema.items():
        if keyword in MAPS_OF_SCHEMAS and isinstance(value, dict):
            for name, child in value.items():
                if isinstance(child, dict | bool):
                    yield keyword, name, child
        elif keyword in LISTS_OF_SCHEMAS and isinstance(value, list):
            for index, child in enumerate(value):
                yield keyword, str(index), child
        elif keyword in SINGLE_SCHEMAS and isinstance(value, dict | bool):
            yield keyword, "", value
