"""How many cases a JSON Schema falls apart into when alternatives are multiplied out.

Containment is decided on such cases. A handful of alternatives that must all hold makes hundreds of
them, and comparing those takes seconds in one step that cannot be ended, so they are counted first.
"""

from math import prod

from pydanube.schemas.json_schema.document import Document, Subschema, children

_CEILING = 1 << 20


def combination_work(document: Document) -> int:
    """Return a measure of the work: each place's number of cases, squared, summed up.

    Places with nothing to multiply do not count; a long list of alternatives is one of them.
    """
    counter = _Cases(document)
    work = 0
    pending, seen = [document.root], set()
    while pending:
        schema = pending.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        work += counter.multiplied(schema) ** 2
        pending += [child for _, _, child in children(schema)]
    return work


class _Cases:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._known: dict[tuple[int, bool], int] = {}

    def multiplied(self, schema: dict[str, Subschema]) -> int:
        """Return the number of cases if they come from multiplying, else 0."""
        listed, others = self._factors(schema)
        several = [factor for factor in (*listed, *others) if factor > 1]
        if len(several) > 1 or any(factor > 1 for factor in others):
            return min(_CEILING, prod(several))
        return 0

    def _cases(self, schema: Subschema) -> int:
        return self._counted(schema, negated=False)

    def _cases_against(self, schema: Subschema) -> int:
        return self._counted(schema, negated=True)

    def _counted(self, schema: Subschema, *, negated: bool) -> int:
        if not isinstance(schema, dict):
            return 1
        key = id(schema), negated
        if key not in self._known:
            self._known[key] = 1  # A schema within itself adds no cases of its own.
            count = (
                self._against(schema)
                if negated
                else prod(factor for factors in self._factors(schema) for factor in factors)
            )
            self._known[key] = min(_CEILING, max(1, count))
        return self._known[key]

    def _factors(self, schema: dict[str, Subschema]) -> tuple[list[int], list[int]]:
        """Return the cases of plain lists of alternatives, and those of everything else."""
        listed = [
            sum(self._cases(branch) for branch in schema[keyword])
            for keyword in ("anyOf", "oneOf")
            if isinstance(schema.get(keyword), list)
        ]
        listed += [self._cases(branch) for branch in _listed(schema, "allOf")]
        if isinstance(schema.get("$ref"), str):
            listed.append(self._cases(self._document.resolve(schema["$ref"])))
        others = []
        if "not" in schema:
            others.append(self._cases_against(schema["not"]))
        if "if" in schema:
            branches = self._cases(schema.get("then")) + self._cases(schema.get("else"))
            others.append(self._cases_against(schema["if"]) + branches)
        for keyword in ("dependentSchemas", "dependentRequired", "dependencies"):
            entries = schema.get(keyword)
            if isinstance(entries, dict):
                others += [1 + self._cases(entry) for entry in entries.values()]
        return listed, others

    def _against(self, schema: dict[str, Subschema]) -> int:
        """Count the ways to violate a schema: one keyword of it, or all of its alternatives."""
        ways = 0
        for keyword, value in schema.items():
            if keyword in ("anyOf", "oneOf") and isinstance(value, list):
                ways += prod(self._cases_against(branch) for branch in value)
            elif keyword == "allOf":
                ways += sum(self._cases_against(part) for part in _listed(schema, keyword))
            elif keyword == "not":
                ways += self._cases(value)
            elif keyword == "$ref" and isinstance(value, str):
                ways += self._cases_against(self._document.resolve(value))
            else:
                ways += len(value) if isinstance(value, list | dict) else 1
        return min(_CEILING, ways)


def _listed(schema: dict[str, Subschema], keyword: str) -> list[Subschema]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []
