"""Refuses JSON Schemas that could cost more than they look like.

References let a small definition stand for a very large one, and alternatives that recurse let a
small value be compared very often. Both are found here, before anything is compiled.
"""

import math

from pydanube.schemas.bounds import exceeded
from pydanube.schemas.json_schema.document import Document, Subschema, children
from pydanube.schemas.limits import SchemaLimits


def check_document(document: Document, limits: SchemaLimits) -> None:
    """Raise if a part of the document exceeds a limit."""
    if len(document.references) > limits.references_max:
        raise exceeded(
            f"the schema has {len(document.references)} references", "references_max", limits
        )
    for reference in document.references:
        document.resolve(reference)
    pending = [document.root]
    while pending:
        schema = pending.pop()
        if isinstance(schema, dict):
            _check_keywords(schema, limits)
            pending.extend(child for _, _, child in children(schema))
    _Expansion(document, limits).measure(document.root)


def expanded_size(document: Document, limits: SchemaLimits) -> int:
    """Return the number of parts of a checked document with its references replaced."""
    return _Expansion(document, limits).measure(document.root)


def value_depth_max(document: Document, limits: SchemaLimits) -> int | None:
    """Return how deep values may nest under this schema, or None if that does not matter."""
    ways = _Recursion(document, limits).ways()
    if ways == 0:
        return None
    if ways == 1:
        return limits.payload_depth_max
    return min(limits.payload_depth_max, max(1, int(math.log(limits.recursion_work_max, ways))))


def _check_keywords(schema: dict[str, Subschema], limits: SchemaLimits) -> None:
    for keyword, limit in (
        ("enum", "enum_values_max"),
        ("properties", "fields_max"),
        ("required", "fields_max"),
        ("anyOf", "fields_max"),
        ("oneOf", "fields_max"),
        ("allOf", "fields_max"),
    ):
        value = schema.get(keyword)
        if isinstance(value, dict | list) and len(value) > getattr(limits, limit):
            raise exceeded(f"{keyword} has {len(value)} entries", limit, limits)
    patterns = [schema.get("pattern")]
    if isinstance(schema.get("patternProperties"), dict):
        patterns += list(schema["patternProperties"])
    for pattern in patterns:
        if isinstance(pattern, str) and len(pattern) > limits.pattern_chars_max:
            raise exceeded(f"a pattern has {len(pattern)} characters", "pattern_chars_max", limits)


class _Expansion:
    """Counts the parts of the schema with references replaced; recursion counts once."""

    def __init__(self, document: Document, limits: SchemaLimits) -> None:
        self._document = document
        self._limits = limits
        self._sizes: dict[int, int] = {}
        self._open: set[int] = set()

    def measure(self, schema: Subschema) -> int:
        if not isinstance(schema, dict) or id(schema) in self._open:
            return 1
        if id(schema) not in self._sizes:
            if len(self._open) > self._limits.depth_max * 2:
                raise exceeded("references lead too deep", "depth_max", self._limits)
            self._open.add(id(schema))
            parts = [*_below(schema), *self._document.in_place(schema)]
            size = 1 + sum(self.measure(part) for part in parts)
            if size > self._limits.expansion_max:
                raise exceeded(f"the schema has {size} parts", "expansion_max", self._limits)
            self._open.discard(id(schema))
            self._sizes[id(schema)] = size
        return self._sizes[id(schema)]


class _Recursion:
    """Finds in how many ways one part of a value comes back to the schema it is below of."""

    def __init__(self, document: Document, limits: SchemaLimits) -> None:
        self._document = document
        self._budget = limits.expansion_max
        self._reaches: dict[int, set[int]] = {}

    def ways(self) -> int:
        schemas = self._all()
        return max((self._ways_at(schema) for schema in schemas), default=0)

    def _all(self) -> list[Subschema]:
        found: dict[int, Subschema] = {}
        pending = [self._document.root]
        while pending:
            schema = pending.pop()
            if isinstance(schema, dict) and id(schema) not in found:
                found[id(schema)] = schema
                pending += [*_below(schema), *self._document.in_place(schema)]
        return list(found.values())

    def _ways_at(self, schema: Subschema) -> int:
        """Count, for the busiest part of a value, the subschemas below that lead back here."""
        by_name: dict[str, int] = {}
        for keyword, name, child in self._applied(schema):
            if self._leads_to(child, schema):
                place = name if keyword == "properties" else "*"
                by_name[place] = by_name.get(place, 0) + 1
        everywhere = by_name.pop("*", 0)
        return everywhere + max(by_name.values(), default=0)

    def _applied(self, schema: Subschema) -> list[tuple[str, str, Subschema]]:
        """Return the subschemas below everything that is applied in one place."""
        found: list[tuple[str, str, Subschema]] = []
        pending, seen = [schema], set()
        while pending and len(found) < self._budget:
            each = pending.pop()
            if not isinstance(each, dict) or id(each) in seen:
                continue
            seen.add(id(each))
            found += [
                (keyword, name, child)
                for keyword, name, child in children(each)
                if _is_below(keyword)
            ]
            pending += self._document.in_place(each)
        return found

    def _leads_to(self, start: Subschema, goal: Subschema) -> bool:
        if id(start) not in self._reaches:
            seen: set[int] = set()
            pending = [start]
            while pending:
                schema = pending.pop()
                if isinstance(schema, dict) and id(schema) not in seen:
                    seen.add(id(schema))
                    pending += [*_below(schema), *self._document.in_place(schema)]
            self._reaches[id(start)] = seen
        return id(goal) in self._reaches[id(start)]


def _is_below(keyword: str) -> bool:
    return keyword in (
        "properties",
        "patternProperties",
        "additionalProperties",
        "additionalItems",
        "contains",
        "contentSchema",
        "items",
        "prefixItems",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
    )


def _below(schema: dict[str, Subschema]) -> list[Subschema]:
    return [child for keyword, _, child in children(schema) if _is_below(keyword)]
