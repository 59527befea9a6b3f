"""Avro values as Arrow columns."""

import io
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import fastavro
import orjson
import pyarrow as pa

from pydanube.schemas.avro.canonical import to_json
from pydanube.schemas.avro.defaults import whole_default
from pydanube.schemas.avro.types import (
    Array,
    AvroType,
    Enumeration,
    Fixed,
    Logical,
    Map,
    Primitive,
    Record,
    Union,
)
from pydanube.schemas.fitting import fit

Datum: TypeAlias = Any
"""A value as the decoder gives it, or a schema as it takes one; it has no types of its own."""
_Convert: TypeAlias = Callable[[Any], Any]
_DECIMAL_DIGITS_MAX = 38
"""What Spark's and Arrow's 128 bits hold; larger decimals become text."""

_PRIMITIVE_TYPES = {
    "null": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}


class Columns:
    """How values of one reader's type become a column.

    Values are read with the decoder's own logical types off: as numbers, they become a column of
    the stored unit at once, which one cast then brings to microseconds.
    """

    def __init__(self, reader: AvroType) -> None:
        self.arrow_type = _arrow_type(reader, ())
        self._stored_type = _stored_type(reader, ())
        self._convert = _converter(reader, ())
        self._reader = decoder_schema(reader)

    def build(self, values: list[Any]) -> pa.Array:
        """Return decoded values, None for failed ones, as a column."""
        convert = self._convert
        if convert is not None:
            values = [None if value is None else convert(value) for value in values]
        return fit(pa.array(values, self._stored_type), self.arrow_type, safe=False)

    def read(self, datum: bytes, writer: Datum | None) -> Datum:
        """Return the value of a datum that has been walked, resolved to the reader's type.

        `writer` is the `decoder_schema` of the schema the datum was written with, None for the
        reader's own, which takes half the time.
        """
        if writer is None:
            return fastavro.schemaless_reader(io.BytesIO(datum), self._reader, None)
        return fastavro.schemaless_reader(io.BytesIO(datum), writer, self._reader)


def decoder_schema(avro_type: AvroType) -> Datum:
    """Return the type as the decoder wants it: defaults in full, and without logical types."""
    spec = to_json(avro_type, logical=False)
    _put_defaults(avro_type, spec, set())
    return fastavro.parse_schema(spec)


def _put_defaults(avro_type: AvroType, parsed: Datum, seen: set[str]) -> None:
    match avro_type:
        case Record() if avro_type.name not in seen:
            seen.add(avro_type.name)
            for each, spec in zip(avro_type.fields, parsed["fields"], strict=True):
                if each.has_default:
                    spec["default"] = whole_default(each.type, each.default)
                _put_defaults(each.type, spec["type"], seen)
        case Array(items=items):
            _put_defaults(items, parsed["items"], seen)
        case Map(values=values):
            _put_defaults(values, parsed["values"], seen)
        case Union(branches=branches):
            for branch, spec in zip(branches, parsed, strict=True):
                _put_defaults(branch, spec, seen)
        case _:
            pass


def _arrow_type(avro_type: AvroType, within: tuple[Record, ...]) -> pa.DataType:
    return _type(avro_type, within, stored=False)


def _stored_type(avro_type: AvroType, within: tuple[Record, ...]) -> pa.DataType:
    return _type(avro_type, within, stored=True)


def _type(avro_type: AvroType, within: tuple[Record, ...], *, stored: bool) -> pa.DataType:
    match avro_type:
        case Primitive(kind=kind, logical=logical):
            return _primitive_type(kind, logical, stored=stored)
        case Fixed(logical=logical):
            return _primitive_type("bytes", logical, stored=stored)
        case Enumeration():
            return pa.string()
        case Array(items=items):
            return pa.list_(_type(items, within, stored=stored))
        case Map(values=values):
            return pa.map_(pa.string(), _type(values, within, stored=stored))
        case Union():
            only = _nullable(avro_type)
            return pa.string() if only is None else _type(only, within, stored=stored)
        case Record():
            if avro_type in within:
                return pa.string()
            inner = (*within, avro_type)
            return pa.struct(
                [(each.name, _type(each.type, inner, stored=stored)) for each in avro_type.fields]
            )


def _primitive_type(kind: str, logical: Logical | None, *, stored: bool) -> pa.DataType:
    if logical is None:
        return _PRIMITIVE_TYPES[kind]
    name, _, unit = logical.kind.rpartition("-")
    match name:
        case "timestamp":
            return pa.timestamp(_UNITS[unit] if stored else "us", "UTC")
        case "local-timestamp":
            return pa.timestamp(_UNITS[unit] if stored else "us")
        case _:
            return _other_logical_type(kind, logical)


def _other_logical_type(kind: str, logical: Logical) -> pa.DataType:
    match logical.kind:
        case "date":
            return pa.date32()
        case "uuid":
            return pa.string()
        case "decimal" if logical.precision <= _DECIMAL_DIGITS_MAX:
            return pa.decimal128(logical.precision, logical.scale)
        case "decimal":
            return pa.string()
        case _:
            return _PRIMITIVE_TYPES[kind]


def _nullable(union: Union) -> AvroType | None:
    """Return the one branch beside null, or None if the union has no type of its own."""
    others = [branch for branch in union.branches if branch.kind != "null"]
    return others[0] if len(others) == 1 else None


def _converter(avro_type: AvroType, within: tuple[Record, ...]) -> _Convert | None:
    """Return what to do with each value before Arrow takes it, or None if that is nothing."""
    match avro_type:
        case Primitive(kind=kind, logical=logical):
            return _decimal_converter(logical) or (_as_bytes if kind == "bytes" else None)
        case Fixed(logical=logical):
            if logical is not None and logical.kind == "uuid":
                return lambda value: str(UUID(bytes=_as_bytes(value)))
            return _decimal_converter(logical) or _as_bytes
        case Enumeration():
            return None
        case Array(items=items):
            item = _converter(items, within)
            return None if item is None else lambda value: [_or_none(item, each) for each in value]
        case Map(values=values):
            each_value = _converter(values, within)
            if each_value is None:
                return None
            return lambda value: {key: _or_none(each_value, each) for key, each in value.items()}
        case Union():
            only = _nullable(avro_type)
            return _json_text if only is None else _converter(only, within)
        case Record():
            if avro_type in within:
                return _json_text
            return _record_converter(avro_type, within)


def _record_converter(record: Record, within: tuple[Record, ...]) -> _Convert | None:
    inner = (*within, record)
    converters = [
        (each.name, convert)
        for each in record.fields
        if (convert := _converter(each.type, inner)) is not None
    ]
    if not converters:
        return None

    def convert_fields(value: Datum) -> Datum:
        # Defaults are shared between rows, so the value is not changed in place.
        changed = dict(value)
        for name, convert in converters:
            changed[name] = _or_none(convert, changed[name])
        return changed

    return convert_fields


def _decimal_converter(logical: Logical | None) -> _Convert | None:
    if logical is None or logical.kind != "decimal":
        return None
    scale, precision = logical.scale, logical.precision
    as_text = precision > _DECIMAL_DIGITS_MAX

    def convert(value: Datum) -> Datum:
        unscaled = int.from_bytes(_as_bytes(value), "big", signed=True)
        if abs(unscaled) >= 10**precision:
            return None
        digits = tuple(int(digit) for digit in str(abs(unscaled)))
        number = Decimal((int(unscaled < 0), digits, -scale))
        return str(number) if as_text else number

    return convert


def _as_bytes(value: Datum) -> Datum:
    """Return bytes: the decoder hands out defaults as they are written, in JSON."""
    return value.encode("latin-1") if isinstance(value, str) else value


def _or_none(convert: _Convert, value: Datum) -> Datum:
    return None if value is None else convert(value)


def _json_text(value: Datum) -> str | None:
    if value is None:
        return None
    return orjson.dumps(value, default=_bytes_as_text, option=orjson.OPT_NON_STR_KEYS).decode()


def _bytes_as_text(value: Datum) -> str:
    assert isinstance(value, bytes), value
    return value.decode("latin-1")
