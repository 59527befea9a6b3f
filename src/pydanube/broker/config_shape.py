"""What a tree of configuration Structs looks like: its settings, their paths and types."""

import functools
import operator
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, TypeAlias, Union, get_args, get_origin

import msgspec
from msgspec import Struct

Annotation: TypeAlias = object
"""A type as it stands in an annotation: `int`, `str | None`, `Annotated[int, Meta(ge=1)]` …"""
Path = tuple[str, ...]


def dotted(path: Path) -> str:
    """Name a setting as people write it: broker.ports.client."""
    return ".".join(path)


def variants(kind: Annotation) -> list[Annotation]:
    """Return the plain types an annotation allows, without Annotated and unions."""
    if get_origin(kind) is Annotated:
        return variants(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [inner for variant in get_args(kind) for inner in variants(variant)]
    return [kind]


def without_limits(kind: Annotation) -> Annotation:
    """Return the same types in any size."""
    return functools.reduce(operator.or_, variants(kind))


def section_of(kind: Annotation) -> type[Struct] | None:
    """Return the Struct behind a section; None for a plain setting."""
    for variant in variants(kind):
        if isinstance(variant, type) and issubclass(variant, Struct):
            return variant
    return None


def is_list(kind: Annotation) -> bool:
    """Tell whether the setting holds several values."""
    return any(get_origin(variant) in (list, tuple) for variant in variants(kind))


def type_at(struct: type[Struct], path: Path) -> Annotation | None:
    """Return the annotation of the setting at `path`, or None if there is no such setting."""
    kind: Annotation = struct
    for name in path:
        section = section_of(kind)
        inner = _field_types(section).get(name) if section else _dict_value(kind)
        if inner is None:
            return None
        kind = inner
    return kind


def all_paths(struct: type[Struct], above: Path = ()) -> Iterator[Path]:
    """Name every section and setting, in the order of their declaration."""
    for name, kind in _field_types(struct).items():
        path = (*above, name)
        yield path
        section = section_of(kind)
        if section is not None:
            yield from all_paths(section, path)


def _field_types(struct: type[Struct]) -> dict[str, Annotation]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}


def _dict_value(kind: Annotation) -> Annotation | None:
    for variant in variants(kind):
        if get_origin(variant) is dict:
            value: Annotation = get_args(variant)[1]
            return value
    return None
