"""Avro types as a graph. Named types may refer to themselves, so records are filled in late."""

from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field

PRIMITIVES: Final = (
    "null",
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "bytes",
    "string",
)


class Missing:
    """Stands for a default that was not given; `null` is a default."""


MISSING: Final = Missing()


class Logical(Struct, frozen=True):
    """What a type means beyond its bytes; precision and scale are those of decimals."""

    kind: str
    precision: int = 0
    scale: int = 0

    def text(self) -> str:
        """Return the logical type as a person would write it."""
        if self.kind == "decimal":
            return f"decimal({self.precision}, {self.scale})"
        return self.kind


class Primitive(Struct, frozen=True):
    """A type without parts."""

    kind: Literal["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
    logical: Logical | None = None


class Fixed(Struct, frozen=True):
    """A named number of bytes."""

    name: str
    aliases: tuple[str, ...]
    size: int
    logical: Logical | None = None
    kind: Literal["fixed"] = "fixed"


class Enumeration(Struct, frozen=True):
    """A named set of symbols; readers take the default for symbols they do not know."""

    name: str
    aliases: tuple[str, ...]
    symbols: tuple[str, ...]
    default: str | None
    doc: str | None
    kind: Literal["enum"] = "enum"


class Array(Struct, frozen=True, eq=False):
    """Any number of one type."""

    items: "AvroType"
    kind: Literal["array"] = "array"


class Map(Struct, frozen=True, eq=False):
    """Strings to values of one type."""

    values: "AvroType"
    kind: Literal["map"] = "map"


class Union(Struct, frozen=True, eq=False):
    """One of several types; never directly inside another union."""

    branches: tuple["AvroType", ...]
    kind: Literal["union"] = "union"


class Field(Struct, frozen=True, eq=False):
    """A field of a record."""

    name: str
    aliases: tuple[str, ...]
    type: "AvroType"
    default: Any
    order: str
    doc: str | None

    @property
    def has_default(self) -> bool:
        """Tell whether readers know what to take if the writer has no such field."""
        return self.default is not MISSING


class Record(Struct, eq=False):
    """Named fields. Filled while it is parsed, never changed afterwards."""

    name: str
    aliases: tuple[str, ...]
    doc: str | None
    fields: list[Field] = field(default_factory=list)
    recursive: bool = False
    kind: Literal["record"] = "record"


AvroType: TypeAlias = Primitive | Fixed | Enumeration | Array | Map | Union | Record
Named: TypeAlias = Fixed | Enumeration | Record


def describe(avro_type: AvroType) -> str:
    """Return a type in a few words, for messages."""
    match avro_type:
        case Primitive(kind=kind, logical=logical):
            return f"{kind} ({logical.text()})" if logical else kind
        case Array(items=items):
            return f"array of {_short(items)}"
        case Map(values=values):
            return f"map of {_short(values)}"
        case Union(branches=branches):
            return "union of " + ", ".join(_short(branch) for branch in branches[:8])
        case Fixed(name=name, size=size):
            return f"fixed {name} of {size} bytes"
        case Enumeration(name=name):
            return f"enum {name}"
        case Record(name=name):
            return f"record {name}"


def _short(avro_type: AvroType) -> str:
    match avro_type:
        case Primitive(kind=kind):
            return kind
        case Array() | Map() | Union():
            return avro_type.kind
        case Fixed() | Enumeration() | Record():
            return f"{avro_type.kind} {avro_type.name}"
