"""Compares two JSON Schemas part by part, to explain and, for recursive ones, to prove.

Containment of whole schemas is decided elsewhere (`containment`), without a reason. Here each
place that lets the writer write what the reader refuses is found and named.
"""

from collections.abc import Callable

import orjson
from msgspec import Struct, field

from pydanube.schemas.bounds import Json
from pydanube.schemas.format import Incompatibility
from pydanube.schemas.json_schema.document import Document, Subschema

FAULTS_MAX = 100
_PAIRS_MAX = 20_000
_ALL_TYPES = frozenset(("null", "boolean", "object", "array", "number", "integer", "string"))
_ANNOTATIONS = frozenset(
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
_COMPARED = frozenset(
    (
        "$ref",
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "const",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "pattern",
        "format",
        "uniqueItems",
        "anyOf",
        "allOf",
    )
)
_WIDENING = frozenset(("$ref", "patternProperties", "prefixItems"))
_VALUE_KEYWORDS = frozenset(("type", "enum", "const"))
_COMPOSING = ("anyOf", "oneOf", "allOf", "if")


class Comparison(Struct):
    """What was found.

    `broken` are rules of evolution, which hold whatever containment says. `faults` are places
    where containment could not be shown. `complete` tells that every keyword was understood, so
    that no faults mean containment.
    """

    broken: list[Incompatibility] = field(default_factory=list)
    faults: list[Incompatibility] = field(default_factory=list)
    complete: bool = True


def compare(writer: Document, reader: Document) -> Comparison:
    """Compare a writer's schema, closed already, with a reader's."""
    comparer = _Comparer(writer, reader)
    try:
        comparer.evolve(writer.root, reader.root, "")
        comparer.result.faults = comparer.faults(writer.root, reader.root, "")
    except RecursionError:
        comparer.result.complete = False
    return comparer.result


class _Comparer:
    def __init__(self, writer: Document, reader: Document) -> None:
        self._writer = writer
        self._reader = reader
        # Pairs taken for sound, as they were met: one that fails takes back all after it.
        self._assumed: dict[tuple[int, int], None] = {}
        # Schemas made here stay alive, since pairs know schemas by their identity.
        self._made: list[Subschema] = []
        self._evolved: set[tuple[int, int]] = set()
        self._pairs = 0
        self.result = Comparison()

    def evolve(self, writer: Subschema, reader: Subschema, path: str) -> None:
        """Find broken rules of evolution wherever both sides describe the same property."""
        writer, reader = _followed(writer, self._writer), _followed(reader, self._reader)
        if not isinstance(writer, dict) or not isinstance(reader, dict):
            return
        pair = id(writer), id(reader)
        if pair in self._evolved or len(self._evolved) > _PAIRS_MAX:
            return
        self._evolved.add(pair)
        read = _properties(reader)
        for name, written in _properties(writer).items():
            here = _below(path, name)
            if name in read:
                self._type_rule(written, read[name], here)
                self.evolve(written, read[name], here)
            elif name in _required(writer) and not any(word in reader for word in _COMPOSING):
                self._broken(here, "required_property_removed", "required", "not declared")
        for keyword in ("items", "additionalProperties"):
            self.evolve(writer.get(keyword), reader.get(keyword), path + _STEP[keyword])

    def _type_rule(self, writer: Subschema, reader: Subschema, path: str) -> None:
        writer, reader = _followed(writer, self._writer), _followed(reader, self._reader)
        if not isinstance(writer, dict) or not isinstance(reader, dict):
            return
        before, after = _declared_types(writer), _declared_types(reader)
        if before and after and before != after:
            self._broken(path, "type_changed", _listed(before), _listed(after))

    def _broken(self, path: str, rule: str, writer: str, reader: str) -> None:
        if len(self.result.broken) < FAULTS_MAX:
            self.result.broken.append(Incompatibility(path, rule, writer, reader))

    def faults(self, writer: Subschema, reader: Subschema, path: str) -> list[Incompatibility]:
        """Return where `reader` may refuse what `writer` allows."""
        if reader is True or reader == {} or writer is False:
            return []
        if reader is False:
            return [Incompatibility(path, "nothing_allowed", _short(writer), "false")]
        if writer is True:
            writer = self._make({})
        pair = id(writer), id(reader)
        self._pairs += 1
        if pair in self._assumed:
            return []
        if self._pairs > _PAIRS_MAX:
            self.result.complete = False
            return []
        self._assumed[pair] = None
        found = self._compared(writer, reader, path)
        if found:
            while self._assumed.popitem()[0] != pair:
                pass
        return found[:FAULTS_MAX]

    def _make(self, schema: dict[str, Json]) -> dict[str, Json]:
        self._made.append(schema)
        return schema

    def _compared(
        self, writer: dict[str, Json], reader: dict[str, Json], path: str
    ) -> list[Incompatibility]:
        if "$ref" in writer and _is_alone(writer, "$ref"):
            return self.faults(self._writer.resolve(writer["$ref"]), reader, path)
        if "$ref" in reader and _is_alone(reader, "$ref"):
            return self.faults(writer, self._reader.resolve(reader["$ref"]), path)
        if "anyOf" in writer and _is_alone(writer, "anyOf"):
            return [
                fault for branch in writer["anyOf"] for fault in self.faults(branch, reader, path)
            ]
        if "allOf" in reader and _is_alone(reader, "allOf"):
            return [
                fault for branch in reader["allOf"] for fault in self.faults(writer, branch, path)
            ]
        if "allOf" in writer and _is_alone(writer, "allOf"):
            # What one part of it keeps to, the whole keeps to.
            return min((self.faults(part, reader, path) for part in writer["allOf"]), key=len)
        self._note_unknown(writer, reader)
        found = self._own_keywords(writer, reader, path)
        if "$ref" in reader:
            found += self.faults(writer, self._reader.resolve(reader["$ref"]), path)
        for branch in reader.get("allOf", ()):
            found += self.faults(writer, branch, path)
        if "anyOf" in reader:
            found += self._into_any(writer, reader["anyOf"], path)
        return found

    def _note_unknown(self, writer: dict[str, Json], reader: dict[str, Json]) -> None:
        """Remember keywords of the reader that nothing here looks at.

        Unknown ones of the writer only narrow what it writes, except those that widen others.
        """
        known = _COMPARED | _ANNOTATIONS
        for keyword in reader.keys() - known:
            if writer.get(keyword) != reader[keyword]:
                self.result.complete = False
        if _WIDENING & writer.keys() or isinstance(writer.get("items"), list):
            self.result.complete = False
        if _values(writer) is not None and reader.keys() - _ANNOTATIONS - _VALUE_KEYWORDS:
            self.result.complete = False

    def _into_any(
        self, writer: dict[str, Json], branches: list[Subschema], path: str
    ) -> list[Incompatibility]:
        for branch in branches:
            if not self.faults(writer, branch, path):
                return []
        types = _types(writer, self._writer)
        parts = [self._make({**writer, "type": each}) for each in sorted(types)]
        if (
            len(parts) > 1
            and types != _ALL_TYPES
            and all(
                any(not self.faults(part, branch, path) for branch in branches) for part in parts
            )
        ):
            return []
        wanted = f"one of {len(branches)} alternatives"
        return [Incompatibility(path, "no_alternative", _short(writer), wanted)]

    def _own_keywords(
        self, writer: dict[str, Json], reader: dict[str, Json], path: str
    ) -> list[Incompatibility]:
        found = self._type_faults(writer, reader, path)
        if found:
            return found
        allowed = _types(writer, self._writer)
        found += _value_faults(writer, reader, path)
        for kind, rule in _RULES:
            if kind & allowed and "enum" not in writer and "const" not in writer:
                found += rule(writer, reader, path)
        if "object" in allowed:
            found += self._object_faults(writer, reader, path)
        if "array" in allowed and "items" in reader:
            items = writer.get("items", True)
            if isinstance(items, list) or isinstance(reader["items"], list):
                self.result.complete &= items == reader["items"]
            else:
                found += self.faults(items, reader["items"], path + "[]")
        return found

    def _type_faults(
        self, writer: dict[str, Json], reader: dict[str, Json], path: str
    ) -> list[Incompatibility]:
        written, read = _types(writer, self._writer), _types(reader, self._reader)
        if "type" not in reader:
            return []
        refused = {
            each
            for each in written
            if each not in read and not (each == "integer" and "number" in read)
        }
        if not refused:
            return []
        before = _listed(written) if written != _ALL_TYPES else "any type"
        return [Incompatibility(path, "type_narrowed", before, _listed(read))]

    def _object_faults(
        self, writer: dict[str, Json], reader: dict[str, Json], path: str
    ) -> list[Incompatibility]:
        written, read = _properties(writer), _properties(reader)
        rest_written = writer.get("additionalProperties", True)
        rest_read = reader.get("additionalProperties", True)
        found: list[Incompatibility] = []
        for name in _required(reader) - _required(writer):
            side = "optional" if name in written else "not declared"
            found.append(
                Incompatibility(_below(path, name), "required_property_added", side, "required")
            )
        for name, schema in written.items():
            here = _below(path, name)
            if name in read:
                found += self.faults(schema, read[name], here)
            elif rest_read is False and schema is not False:
                found.append(
                    Incompatibility(here, "property_not_allowed", "allowed", "not declared")
                )
            else:
                found += self.faults(schema, rest_read, here)
        for name, schema in read.items():
            if name not in written:
                found += self._undeclared(rest_written, schema, _below(path, name))
        return found + self._rest_faults(rest_written, rest_read, path)

    def _undeclared(self, rest: Subschema, reader: Subschema, path: str) -> list[Incompatibility]:
        if not self.faults(rest, reader, path):
            return []
        written = "any value, by additionalProperties"
        return [Incompatibility(path, "property_constrained", written, _short(reader))]

    def _rest_faults(
        self, writer: Subschema, reader: Subschema, path: str
    ) -> list[Incompatibility]:
        if writer is not False and reader is False:
            return [
                Incompatibility(
                    path, "other_properties_forbidden", "additionalProperties allowed", "false"
                )
            ]
        return self.faults(writer, reader, path + "{}")


def _value_faults(
    writer: dict[str, Json], reader: dict[str, Json], path: str
) -> list[Incompatibility]:
    """Compare enumerations and constants; they are values, not types."""
    found: list[Incompatibility] = []
    written = _values(writer)
    for keyword in ("enum", "const"):
        if keyword not in reader:
            continue
        allowed = _keys(reader["enum"] if keyword == "enum" else [reader["const"]])
        if written is None:
            found.append(
                Incompatibility(path, "enum_added", "any value", _short_value(reader[keyword]))
            )
            continue
        lost = [value for value in written if orjson.dumps(value) not in allowed]
        if lost:
            found.append(
                Incompatibility(
                    path, "enum_values_removed", _short_value(lost), _short_value(reader[keyword])
                )
            )
    return found


def _range_faults(
    keywords: tuple[str, ...],
) -> Callable[[dict[str, Json], dict[str, Json], str], list[Incompatibility]]:
    def rule(writer: dict[str, Json], reader: dict[str, Json], path: str) -> list[Incompatibility]:
        found: list[Incompatibility] = []
        for keyword in keywords:
            if keyword in reader and not _within(writer, keyword, reader[keyword]):
                written = _nearest(writer, keyword)
                found.append(
                    Incompatibility(
                        path, f"{keyword}_narrowed", written, _short_value(reader[keyword])
                    )
                )
        return found

    return rule


def _within(writer: dict[str, Json], keyword: str, bound: Json) -> bool:
    """Tell whether the writer's own bound keeps within the reader's."""
    if isinstance(bound, bool) or not isinstance(bound, int | float):
        return bool(writer.get(keyword) == bound)
    exclusive = keyword.startswith("exclusive")
    plain = keyword.removeprefix("exclusive")
    plain = plain[0].lower() + plain[1:]
    strict = "exclusive" + plain[0].upper() + plain[1:]
    lower = plain.startswith("min")
    for name, is_strict in ((plain, False), (strict, True)):
        own = writer.get(name)
        if isinstance(own, bool) or not isinstance(own, int | float):
            continue
        inside = own > bound if lower else own < bound
        if inside or (own == bound and (is_strict or not exclusive)):
            return True
    return lower and not exclusive and plain != "minimum" and bound <= 0


def _pattern_faults(
    writer: dict[str, Json], reader: dict[str, Json], path: str
) -> list[Incompatibility]:
    return [
        Incompatibility(
            path,
            f"{keyword}_changed",
            str(writer.get(keyword, "any")),
            str(reader[keyword]),
        )
        for keyword in ("pattern", "format")
        if keyword in reader and writer.get(keyword) != reader[keyword]
    ]


def _multiple_faults(
    writer: dict[str, Json], reader: dict[str, Json], path: str
) -> list[Incompatibility]:
    factor, own = reader.get("multipleOf"), writer.get("multipleOf")
    if factor is None or own == factor:
        return []
    if isinstance(own, int) and isinstance(factor, int) and own % factor == 0:
        return []
    return [Incompatibility(path, "multipleOf_changed", str(own or "any number"), str(factor))]


def _unique_faults(
    writer: dict[str, Json], reader: dict[str, Json], path: str
) -> list[Incompatibility]:
    if not reader.get("uniqueItems") or writer.get("uniqueItems"):
        return []
    return [Incompatibility(path, "uniqueItems_added", "items may repeat", "items are unique")]


_RULES = (
    (
        frozenset(("number", "integer")),
        _range_faults(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    ),
    (frozenset(("number", "integer")), _multiple_faults),
    (frozenset(("string",)), _range_faults(("minLength", "maxLength"))),
    (frozenset(("string",)), _pattern_faults),
    (frozenset(("array",)), _range_faults(("minItems", "maxItems"))),
    (frozenset(("array",)), _unique_faults),
    (frozenset(("object",)), _range_faults(("minProperties", "maxProperties"))),
)
_STEP = {"items": "[]", "additionalProperties": "{}"}


def _followed(schema: Subschema, document: Document) -> Subschema:
    """Return what a chain of plain references leads to."""
    for _ in range(32):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        schema = document.resolve(schema["$ref"])
    return schema


def _is_alone(schema: dict[str, Json], keyword: str) -> bool:
    return not (schema.keys() - _ANNOTATIONS - {keyword})


def _declared_types(schema: dict[str, Json]) -> frozenset[str]:
    value = schema.get("type")
    if isinstance(value, str):
        return frozenset((value,))
    return frozenset(value) if isinstance(value, list) else frozenset()


def _types(schema: dict[str, Json], document: Document) -> frozenset[str]:
    """Return the types a schema allows; those of its values if it lists values."""
    values = _values(schema)
    if values is not None:
        return frozenset(_type_of(value) for value in values)
    declared = _declared_types(schema)
    if declared:
        return declared | {"integer"} if "number" in declared else declared
    followed = _followed(schema, document)
    if followed is not schema and isinstance(followed, dict):
        return _types(followed, document) if "$ref" not in followed else _ALL_TYPES
    return _ALL_TYPES


def _type_of(value: Json) -> str:
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


def _values(schema: dict[str, Json]) -> list[Json] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _keys(values: list[Json]) -> set[bytes]:
    return {orjson.dumps(value) for value in values}


def _properties(schema: dict[str, Json]) -> dict[str, Subschema]:
    value = schema.get("properties")
    return value if isinstance(value, dict) else {}


def _required(schema: dict[str, Json]) -> set[str]:
    value = schema.get("required")
    return set(value) if isinstance(value, list) else set()


def _nearest(writer: dict[str, Json], keyword: str) -> str:
    return _short_value(writer[keyword]) if keyword in writer else "no bound"


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _listed(types: frozenset[str]) -> str:
    shown = types - {"integer"} if "number" in types else types
    return " or ".join(sorted(shown))


def _short(schema: Subschema) -> str:
    return _short_value(schema)


def _short_value(value: Json) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 80 else text[:79] + "…"
