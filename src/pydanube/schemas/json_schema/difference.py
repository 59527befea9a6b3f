"""What changed between two JSON Schemas, for people to read."""

from collections.abc import Iterator

import orjson

from pydanube.schemas.bounds import Json
from pydanube.schemas.format import Change
from pydanube.schemas.json_schema.document import Subschema

_CHANGES_MAX = 1_000


def changes(old: Subschema, new: Subschema) -> list[Change]:
    """Return the changes from `old` to `new`, definitions included."""
    found: list[Change] = []
    for change in _changes(old, new, ""):
        found.append(change)
        if len(found) == _CHANGES_MAX:
            break
    return found


def _changes(old: Subschema, new: Subschema, path: str) -> Iterator[Change]:
    if not isinstance(old, dict) or not isinstance(new, dict):
        if old != new:
            yield Change(path, f"{_short(old)} became {_short(new)}")
        return
    yield from _property_changes(old, new, path)
    for keyword in ("$defs", "definitions", "patternProperties"):
        before, after = old.get(keyword), new.get(keyword)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _named_changes(before, after, f"{path}#{keyword}/")
    for keyword, step in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(old.get(keyword), dict) and isinstance(new.get(keyword), dict):
            yield from _changes(old[keyword], new[keyword], path + step)
    for keyword in sorted(old.keys() | new.keys()):
        yield from _keyword_change(keyword, old, new, path)


def _property_changes(old: dict[str, Json], new: dict[str, Json], path: str) -> Iterator[Change]:
    before, after = old.get("properties", {}), new.get("properties", {})
    if not isinstance(before, dict) or not isinstance(after, dict):
        return
    needed_before, needed_after = _required(old), _required(new)
    for name, schema in after.items():
        here = f"{path}.{name}" if path else name
        need = "required" if name in needed_after else "optional"
        if name not in before:
            yield Change(here, f"{need} property added: {_short(schema)}")
            continue
        if (name in needed_before) != (name in needed_after):
            yield Change(here, f"became {need}")
        yield from _changes(before[name], schema, here)
    for name in before:
        if name not in after:
            need = "required" if name in needed_before else "optional"
            yield Change(f"{path}.{name}" if path else name, f"{need} property removed")


def _named_changes(old: dict[str, Json], new: dict[str, Json], path: str) -> Iterator[Change]:
    for name, schema in new.items():
        if name in old:
            yield from _changes(old[name], schema, path + name)
        else:
            yield Change(path + name, "added")
    for name in old:
        if name not in new:
            yield Change(path + name, "removed")


def _keyword_change(
    keyword: str, old: dict[str, Json], new: dict[str, Json], path: str
) -> Iterator[Change]:
    before, after = old.get(keyword), new.get(keyword)
    if keyword in ("properties", "required") or old.get(keyword) == new.get(keyword):
        return
    if isinstance(before, dict) and isinstance(after, dict):
        return
    if keyword not in old:
        yield Change(path, f"{keyword} {_short(after)} added")
    elif keyword not in new:
        yield Change(path, f"{keyword} {_short(before)} removed")
    else:
        yield Change(path, f"{keyword} {_short(before)} became {_short(after)}")


def _required(schema: dict[str, Json]) -> set[str]:
    value = schema.get("required")
    return set(value) if isinstance(value, list) else set()


def _short(value: Json) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 80 else text[:79] + "…"
