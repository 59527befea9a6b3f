"""Avro's schema resolution: can a reader's schema read what a writer's schema wrote?"""

from pydanube.schemas.avro.types import (
    Array,
    AvroType,
    Enumeration,
    Field,
    Fixed,
    Logical,
    Map,
    Named,
    Primitive,
    Record,
    Union,
    describe,
)
from pydanube.schemas.format import Incompatibility

PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}

FAULTS_MAX = 100
"""Reasons named in one answer; nobody mends more at a time."""


def resolve(writer: AvroType, reader: AvroType) -> list[Incompatibility]:
    """Return why the reader's schema cannot read the writer's data; empty if it can."""
    return _Resolution().resolve(writer, reader, "")[:FAULTS_MAX]


class _Resolution:
    """Remembers pairs of records, so that recursive ones end and shared ones are judged once."""

    def __init__(self) -> None:
        self._records: set[tuple[int, int]] = set()
        self._failed: dict[tuple[int, int], list[Incompatibility]] = {}

    def resolve(self, writer: AvroType, reader: AvroType, path: str) -> list[Incompatibility]:
        if isinstance(writer, Union):
            return [
                fault for branch in writer.branches for fault in self.resolve(branch, reader, path)
            ]
        if isinstance(reader, Union):
            return self._into_union(writer, reader, path)
        match writer, reader:
            case Array(), Array():
                return self.resolve(writer.items, reader.items, path + "[]")
            case Map(), Map():
                return self.resolve(writer.values, reader.values, path + "{}")
            case Record(), Record():
                return _name_faults(writer, reader, path) or self._record(writer, reader, path)
            case Enumeration(), Enumeration():
                return _name_faults(writer, reader, path) or _symbols(writer, reader, path)
            case Fixed(), Fixed():
                return _name_faults(writer, reader, path) or _fixed(writer, reader, path)
            case Primitive(), Primitive() if _promotes(writer.kind, reader.kind):
                return _logical_faults(writer, reader, path)
            case _:
                return [_fault(path, "type_changed", writer, reader)]

    def _into_union(self, writer: AvroType, reader: Union, path: str) -> list[Incompatibility]:
        """A reader's union takes the first branch that resolves."""
        nearest: list[Incompatibility] | None = None
        for branch in reader.branches:
            faults = self._tried(writer, branch, path)
            if not faults:
                return []
            if nearest is None and _same_kind(writer, branch):
                nearest = faults
        return nearest or [_fault(path, "no_union_branch", writer, reader)]

    def _tried(self, writer: AvroType, branch: AvroType, path: str) -> list[Incompatibility]:
        """Resolve as an attempt: pairs assumed sound within a failed one are forgotten.

        A pair that failed stays failed, since it did so although pairs above it were assumed sound.
        """
        before = set(self._records)
        faults = self.resolve(writer, branch, path)
        if faults:
            self._records = before | self._failed.keys()
        return faults

    def _record(self, writer: Record, reader: Record, path: str) -> list[Incompatibility]:
        pair = id(writer), id(reader)
        if pair in self._records:
            return self._failed.get(pair, [])
        self._records.add(pair)
        faults = self._fields(writer, reader, path)
        if faults:
            self._failed[pair] = faults
        return faults

    def _fields(self, writer: Record, reader: Record, path: str) -> list[Incompatibility]:
        written = {each.name: each for each in writer.fields}
        faults: list[Incompatibility] = []
        for each in reader.fields:
            source = _source_of(each, written)
            here = f"{path}.{each.name}" if path else each.name
            if source is not None:
                faults += self.resolve(source.type, each.type, here)
            elif not each.has_default:
                faults.append(
                    Incompatibility(
                        here,
                        "field_without_default",
                        "no such field",
                        f"{describe(each.type)} without a default",
                    )
                )
        return faults


def _source_of(reader: Field, written: dict[str, Field]) -> Field | None:
    """Return the writer's field a reader's field takes its value from, by name, then by alias."""
    for name in (reader.name, *reader.aliases):
        if name in written:
            return written[name]
    return None


def _promotes(writer: str, reader: str) -> bool:
    return writer == reader or reader in PROMOTIONS.get(writer, ())


def _name_faults(writer: Named, reader: Named, path: str) -> list[Incompatibility]:
    """Names match without their namespaces; a reader's aliases are full names."""
    same = writer.name.rpartition(".")[2] == reader.name.rpartition(".")[2]
    if same or writer.name in reader.aliases:
        return []
    return [_fault(path, "name_changed", writer, reader)]


def _symbols(writer: Enumeration, reader: Enumeration, path: str) -> list[Incompatibility]:
    unknown = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
    if not unknown or reader.default is not None:
        return []
    return [
        Incompatibility(
            path,
            "enum_symbols_missing",
            f"symbols {', '.join(unknown[:10])}",
            "neither these symbols nor a default",
        )
    ]


def _fixed(writer: Fixed, reader: Fixed, path: str) -> list[Incompatibility]:
    if writer.size != reader.size:
        return [_fault(path, "fixed_size_changed", writer, reader)]
    return _logical_faults(writer, reader, path)


def _logical_faults(
    writer: Primitive | Fixed, reader: Primitive | Fixed, path: str
) -> list[Incompatibility]:
    """Both sides give the bytes a meaning, and not the same: numbers would silently be wrong."""
    if writer.logical is None or reader.logical is None or writer.logical == reader.logical:
        return []
    return [_fault(path, _logical_rule(writer.logical, reader.logical), writer, reader)]


def _logical_rule(writer: Logical, reader: Logical) -> str:
    if writer.kind == reader.kind == "decimal":
        return "decimal_changed"
    return "logical_type_changed"


def _same_kind(writer: AvroType, branch: AvroType) -> bool:
    if isinstance(writer, Primitive) and isinstance(branch, Primitive):
        return _promotes(writer.kind, branch.kind)
    if isinstance(writer, Record | Enumeration | Fixed) and type(branch) is type(writer):
        return not _name_faults(writer, branch, "")
    return writer.kind == branch.kind and not isinstance(writer, Primitive)


def _fault(path: str, rule: str, writer: AvroType, reader: AvroType) -> Incompatibility:
    writer_side, reader_side = describe(writer), describe(reader)
    if isinstance(writer, Fixed) and isinstance(reader, Fixed) and writer.logical != reader.logical:
        writer_side += f" ({writer.logical.text() if writer.logical else 'no logical type'})"
        reader_side += f" ({reader.logical.text() if reader.logical else 'no logical type'})"
    return Incompatibility(path, rule, writer_side, reader_side)
