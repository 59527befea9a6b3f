"""Rules for single keywords: whether the reader's is within the writer's."""

from collections.abc import Callable

import orjson

from pydanube.schemas.bounds import Json
from pydanube.schemas.format import Incompatibility
from pydanube.schemas.json_schema.reading import shortened, values_of


def value_faults(
    writer: dict[str, Json], reader: dict[str, Json], path: str
) -> list[Incompatibility]:
    """Compare enumerations and constants; they are values, not types."""
    found: list[Incompatibility] = []
    written = values_of(writer)
    for keyword in ("enum", "const"):
        if keyword not in reader:
            continue
        allowed = _keys(reader["enum"] if keyword == "enum" else [reader["const"]])
        given = shortened(reader[keyword])
        if written is None:
            found.append(Incompatibility(path, f"{keyword}_added", "any value", given))
            continue
        lost = [value for value in written if orjson.dumps(value) not in allowed]
        if lost and keyword == "const" and "const" in writer:
            found.append(Incompatibility(path, "const_changed", shortened(writer["const"]), given))
        elif lost:
            found.append(Incompatibility(path, "enum_values_removed", shortened(lost), given))
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
                        path, f"{keyword}_narrowed", written, shortened(reader[keyword])
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


def _keys(values: list[Json]) -> set[bytes]:
    return {orjson.dumps(value) for value in values}


def _nearest(writer: dict[str, Json], keyword: str) -> str:
    return shortened(writer[keyword]) if keyword in writer else "no bound"


KEYWORD_RULES = (
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
"""Types, and the rule for values of them."""
