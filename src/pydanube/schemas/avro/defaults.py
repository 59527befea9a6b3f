"""Defaults of fields, which Avro writes in JSON."""

from pydanube.schemas.avro.types import (
    Array,
    AvroType,
    Enumeration,
    Fixed,
    Map,
    Primitive,
    Record,
    Union,
)
from pydanube.schemas.bounds import Json

_INT = range(-(1 << 31), 1 << 31)
_LONG = range(-(1 << 63), 1 << 63)


def is_default_of(avro_type: AvroType, value: Json) -> bool:
    """Tell whether a JSON value is a default of the type; for a union, of any branch."""
    match avro_type:
        case Primitive(kind=kind):
            return _is_primitive(kind, value)
        case Fixed(size=size):
            return _is_latin(value) and len(value) == size
        case Enumeration(symbols=symbols):
            return value in symbols
        case Array(items=items):
            return isinstance(value, list) and all(is_default_of(items, each) for each in value)
        case Map(values=values):
            return isinstance(value, dict) and all(
                is_default_of(values, each) for each in value.values()
            )
        case Union(branches=branches):
            return any(is_default_of(branch, value) for branch in branches)
        case Record(fields=fields):
            return isinstance(value, dict) and all(
                is_default_of(each.type, value[each.name])
                if each.name in value
                else each.has_default
                for each in fields
            )


def whole_default(avro_type: AvroType, value: Json) -> Json:
    """Return a default with the defaults of fields it leaves out, still in JSON."""
    match avro_type:
        case Array(items=items):
            return [whole_default(items, each) for each in value]
        case Map(values=values):
            return {key: whole_default(values, each) for key, each in value.items()}
        case Union(branches=branches):
            branch = next(branch for branch in branches if is_default_of(branch, value))
            return whole_default(branch, value)
        case Record(fields=fields):
            return {
                each.name: whole_default(each.type, value.get(each.name, each.default))
                for each in fields
            }
        case Primitive() | Enumeration() | Fixed():
            return value


def _is_primitive(kind: str, value: Json) -> bool:
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            numbers = _INT if kind == "int" else _LONG
            return isinstance(value, int) and not isinstance(value, bool) and value in numbers
        case "float" | "double":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "bytes":
            return _is_latin(value)
        case _:
            return isinstance(value, str)


def _is_latin(value: Json) -> bool:
    return isinstance(value, str) and all(ord(character) < 256 for character in value)
