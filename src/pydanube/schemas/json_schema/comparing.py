"""Compares two JSON Schemas part by part, to explain and, for recursive ones, to prove.

Containment of whole schemas is decided elsewhere (`containment`), without a reason. Here each
place that lets the writer write what the reader refuses is found and named.
"""

from msgspec import Struct, field

from pydanube.schemas.bounds import Json
from pydanube.schemas.format import Incompatibility
from pydanube.schemas.json_schema.document import Document, Subschema
from pydanube.schemas.json_schema.keyword_rules import KEYWORD_RULES, value_faults
from pydanube.schemas.json_schema.reading import (
    ALL_TYPES,
    ANNOTATIONS,
    declared_types,
    followed,
    is_alone,
    path_below,
    properties_of,
    required_of,
    shortened,
    types_of,
    types_text,
    values_of,
)

FAULTS_MAX = 100
_PAIRS_MAX = 20_000
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

_STEP = {"items": "[]", "additionalProperties": "{}"}


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
        writer, reader = followed(writer, self._writer), followed(reader, self._reader)
        if not isinstance(writer, dict) or not isinstance(reader, dict):
            return
        pair = id(writer), id(reader)
        if pair in self._evolved or len(self._evolved) > _PAIRS_MAX:
            return
        self._evolved.add(pair)
        read = properties_of(reader)
        for name, written in properties_of(writer).items():
            here = path_below(path, name)
            if name in read:
                self._type_rule(written, read[name], here)
                self.evolve(written, read[name], here)
            elif name in required_of(writer) and not any(word in reader for word in _COMPOSING):
                self._broken(here, "required_property_removed", "required", "not declared")
        for keyword in ("items", "additionalProperties"):
            self.evolve(writer.get(keyword), reader.get(keyword), path + _STEP[keyword])

    def _type_rule(self, writer: Subschema, reader: Subschema, path: str) -> None:
        writer, reader = followed(writer, self._writer), followed(reader, self._reader)
        if not isinstance(writer, dict) or not isinstance(reader, dict):
            return
        before, after = declared_types(writer), declared_types(reader)
        if before and after and before != after:
            self._broken(path, "type_changed", types_text(before), types_text(after))

    def _broken(self, path: str, rule: str, writer: str, reader: str) -> None:
        if len(self.result.broken) < FAULTS_MAX:
            self.result.broken.append(Incompatibility(path, rule, writer, reader))

    def faults(self, writer: Subschema, reader: Subschema, path: str) -> list[Incompatibility]:
        """Return where `reader` may refuse what `writer` allows."""
        if reader is True or reader == {} or writer is False:
            return []
        if reader is False:
            return [Incompatibility(path, "nothing_allowed", shortened(writer), "false")]
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
        if "$ref" in writer and is_alone(writer, "$ref"):
            return self.faults(self._writer.resolve(writer["$ref"]), reader, path)
        if "$ref" in reader and is_alone(reader, "$ref"):
            return self.faults(writer, self._reader.resolve(reader["$ref"]), path)
        if "anyOf" in writer and is_alone(writer, "anyOf"):
            return [
                fault for branch in writer["anyOf"] for fault in self.faults(branch, reader, path)
            ]
        if "allOf" in reader and is_alone(reader, "allOf"):
            return [
                fault for branch in reader["allOf"] for fault in self.faults(writer, branch, path)
            ]
        if "allOf" in writer and is_alone(writer, "allOf"):
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
        known = _COMPARED | ANNOTATIONS
        for keyword in reader.keys() - known:
            if writer.get(keyword) != reader[keyword]:
                self.result.complete = False
        if _WIDENING & writer.keys() or isinstance(writer.get("items"), list):
            self.result.complete = False
        if values_of(writer) is not None and reader.keys() - ANNOTATIONS - _VALUE_KEYWORDS:
            self.result.complete = False

    def _into_any(
        self, writer: dict[str, Json], branches: list[Subschema], path: str
    ) -> list[Incompatibility]:
        for branch in branches:
            if not self.faults(writer, branch, path):
                return []
        types = types_of(writer, self._writer)
        parts = [self._make({**writer, "type": each}) for each in sorted(types)]
        if (
            len(parts) > 1
            and types != ALL_TYPES
            and all(
                any(not self.faults(part, branch, path) for branch in branches) for part in parts
            )
        ):
            return []
        wanted = f"one of {len(branches)} alternatives"
        return [Incompatibility(path, "no_alternative", shortened(writer), wanted)]

    def _own_keywords(
        self, writer: dict[str, Json], reader: dict[str, Json], path: str
    ) -> list[Incompatibility]:
        found = self._type_faults(writer, reader, path)
        if found:
            return found
        allowed = types_of(writer, self._writer)
        found += value_faults(writer, reader, path)
        for kind, rule in KEYWORD_RULES:
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
        written, read = types_of(writer, self._writer), declared_types(reader)
        if not read:
            return []
        refused = {
            each
            for each in written
            if each not in read and not (each == "integer" and "number" in read)
        }
        if not refused:
            return []
        before = types_text(written) if written != ALL_TYPES else "any type"
        return [Incompatibility(path, "type_narrowed", before, types_text(read))]

    def _object_faults(
        self, writer: dict[str, Json], reader: dict[str, Json], path: str
    ) -> list[Incompatibility]:
        written, read = properties_of(writer), properties_of(reader)
        rest_written = writer.get("additionalProperties", True)
        rest_read = reader.get("additionalProperties", True)
        found: list[Incompatibility] = []
        for name in required_of(reader) - required_of(writer):
            side = "optional" if name in written else "not declared"
            found.append(
                Incompatibility(path_below(path, name), "required_property_added", side, "required")
            )
        for name, schema in written.items():
            here = path_below(path, name)
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
                found += self._undeclared(rest_written, schema, path_below(path, name))
        return found + self._rest_faults(rest_written, rest_read, path)

    def _undeclared(self, rest: Subschema, reader: Subschema, path: str) -> list[Incompatibility]:
        if not self.faults(rest, reader, path):
            return []
        written = "any value, by additionalProperties"
        return [Incompatibility(path, "property_constrained", written, shortened(reader))]

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
