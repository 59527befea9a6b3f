"""What changed between two Avro schemas, for people to read."""

from collections.abc import Iterator

from pydanube.schemas.avro.types import (
    Array,
    AvroType,
    Enumeration,
    Field,
    Fixed,
    Map,
    Primitive,
    Record,
    Union,
    describe,
)
from pydanube.schemas.format import Change


def changes(old: AvroType, new: AvroType) -> list[Change]:
    """Return the changes from `old` to `new`, in the order of the new schema."""
    return list(_changes(old, new, "", set()))


def _changes(
    old: AvroType, new: AvroType, path: str, seen: set[tuple[int, int]]
) -> Iterator[Change]:
    match old, new:
        case Record(), Record():
            if (id(old), id(new)) not in seen:
                seen.add((id(old), id(new)))
                yield from _record_changes(old, new, path, seen)
        case Array(), Array():
            yield from _changes(old.items, new.items, path + "[]", seen)
        case Map(), Map():
            yield from _changes(old.values, new.values, path + "{}", seen)
        case Union(), Union():
            yield from _union_changes(old, new, path, seen)
        case Enumeration(), Enumeration():
            yield from _renamed(old, new, path)
            yield from _listed("symbol", old.symbols, new.symbols, path)
            if old.default != new.default:
                yield Change(path, f"default symbol {old.default} became {new.default}")
        case Primitive(), Primitive():
            if old != new:
                yield Change(path, f"type {describe(old)} became {describe(new)}")
        case Fixed(), Fixed():
            yield from _renamed(old, new, path)
            if (old.size, old.logical) != (new.size, new.logical):
                yield Change(path, f"{describe(old)} became {describe(new)}")
        case _:
            yield Change(path, f"type {describe(old)} became {describe(new)}")


def _record_changes(
    old: Record, new: Record, path: str, seen: set[tuple[int, int]]
) -> Iterator[Change]:
    yield from _renamed(old, new, path)
    before = {each.name: each for each in old.fields}
    known: set[str] = set()
    for each in new.fields:
        here = f"{path}.{each.name}" if path else each.name
        source = next((n for n in (each.name, *each.aliases) if n in before), None)
        if source is None:
            suffix = f" with default {each.default!r}" if each.has_default else ", no default"
            yield Change(here, f"field added: {describe(each.type)}{suffix}")
            continue
        known.add(source)
        if source != each.name:
            yield Change(here, f"field renamed from {source}")
        yield from _field_changes(before[source], each, here)
        yield from _changes(before[source].type, each.type, here, seen)
    for name, each in before.items():
        if name not in known:
            yield Change(
                f"{path}.{name}" if path else name, f"field removed: {describe(each.type)}"
            )


def _field_changes(old: Field, new: Field, path: str) -> Iterator[Change]:
    if old.has_default != new.has_default:
        yield Change(
            path, f"default {new.default!r} added" if new.has_default else "default removed"
        )
    elif old.has_default and old.default != new.default:
        yield Change(path, f"default {old.default!r} became {new.default!r}")
    if old.doc != new.doc:
        yield Change(path, "documentation changed")


def _union_changes(
    old: Union, new: Union, path: str, seen: set[tuple[int, int]]
) -> Iterator[Change]:
    before = {_key(branch): branch for branch in old.branches}
    after = {_key(branch): branch for branch in new.branches}
    yield from _listed("branch", tuple(before), tuple(after), path)
    for key in after:
        if key in before:
            yield from _changes(before[key], after[key], path, seen)


def _key(branch: AvroType) -> str:
    return branch.name if isinstance(branch, Record | Enumeration | Fixed) else branch.kind


def _renamed(
    old: Record | Enumeration | Fixed, new: Record | Enumeration | Fixed, path: str
) -> Iterator[Change]:
    if old.name != new.name:
        yield Change(path, f"{old.kind} {old.name} renamed to {new.name}")


def _listed(what: str, old: tuple[str, ...], new: tuple[str, ...], path: str) -> Iterator[Change]:
    for each in new:
        if each not in old:
            yield Change(path, f"{what} {each} added")
    for each in old:
        if each not in new:
            yield Change(path, f"{what} {each} removed")
