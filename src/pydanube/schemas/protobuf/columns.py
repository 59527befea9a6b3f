"""Protobuf messages as Arrow columns."""

from collections.abc import Callable, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any, TypeAlias

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import Error as JsonFormatError
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from pydanube.schemas.format import ABSENT, Decoded, Failure
from pydanube.schemas.protobuf.model import is_map

_Get: TypeAlias = Callable[[Any], Any]
_COLUMNS_MAX = 10_000
_UNSIGNED_64 = pa.decimal128(20, 0)
WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
FREE_FORM = frozenset(
    f"google.protobuf.{kind}" for kind in ("Struct", "Value", "ListValue", "FieldMask")
)
_SCALARS = {
    FieldDescriptor.CPPTYPE_INT32: pa.int64(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: _UNSIGNED_64,
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float64(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}


class Columns:
    """How messages become a column.

    A field without presence is its default when absent; one with presence is null. Messages that
    contain themselves, and those of free form, become JSON text.
    """

    def __init__(self, descriptor: Descriptor) -> None:
        shapes = _Shapes()
        self.arrow_type, self._get = shapes.message(descriptor, ())
        self._parse = GetMessageClass(descriptor).FromString

    def decode(self, payloads: Sequence[bytes | None]) -> Decoded:
        """Return the column; rows that are not such a message are null in it."""
        values: list[Any] = []
        failures: list[Failure] = []
        for row, payload in enumerate(payloads):
            try:
                values.append(None if payload is None else self._get(self._parse(payload)))
            except (DecodeError, JsonFormatError, ValueError) as error:
                values.append(None)
                failures.append(Failure(row, str(error)))
                continue
            if payload is None:
                failures.append(Failure(row, ABSENT))
        return Decoded(pa.array(values, self.arrow_type), failures)


class _Shapes:
    def __init__(self) -> None:
        self._left = _COLUMNS_MAX

    def message(self, descriptor: Descriptor, within: tuple[str, ...]) -> tuple[pa.DataType, _Get]:
        name = descriptor.full_name
        if name == "google.protobuf.Timestamp":
            return pa.timestamp("us", "UTC"), _microseconds
        if name in WRAPPERS:
            return self._scalar(descriptor.fields_by_name["value"], "value")
        if name in within or name in FREE_FORM or self._left < 0 or not descriptor.fields:
            return pa.string(), _json_text
        inner = (*within, name)
        parts = [(each.name, *self._field(each, inner)) for each in descriptor.fields]
        getters = [(field_name, get) for field_name, _, get in parts]

        def get_fields(message: Message) -> dict[str, Any]:
            return {field_name: get(message) for field_name, get in getters}

        return pa.struct([(field_name, kind) for field_name, kind, _ in parts]), get_fields

    def _field(self, each: FieldDescriptor, within: tuple[str, ...]) -> tuple[pa.DataType, _Get]:
        self._left -= 1
        name = each.name
        if is_map(each):
            return self._map(each, within)
        if each.is_repeated:
            kind, get = self._element(each, within)
            return pa.list_(kind), lambda message: [get(item) for item in getattr(message, name)]
        if each.message_type is not None:
            kind, inner = self.message(each.message_type, within)
            return (
                kind,
                lambda message: inner(getattr(message, name)) if message.HasField(name) else None,
            )
        kind, get = self._scalar(each, name)
        if each.has_presence:
            return kind, lambda message: get(message) if message.HasField(name) else None
        return kind, get

    def _map(self, each: FieldDescriptor, within: tuple[str, ...]) -> tuple[pa.DataType, _Get]:
        name = each.name
        entry = each.message_type
        assert entry is not None, "a map is a repeated message"
        key, value = entry.fields
        key_type, get_key = self._element(key, within)
        value_type, get_value = self._element(value, within)

        def get(message: Message) -> list[tuple[Any, Any]]:
            entries = getattr(message, name)
            return [(get_key(each_key), get_value(entries[each_key])) for each_key in entries]

        return pa.map_(key_type, value_type), get

    def _element(self, each: FieldDescriptor, within: tuple[str, ...]) -> tuple[pa.DataType, _Get]:
        """Return how one element of a repeated field, or of a map, becomes a value."""
        if each.message_type is not None:
            return self.message(each.message_type, within)
        return _scalar_type(each), _scalar_converter(each) or _unchanged

    def _scalar(self, each: FieldDescriptor, name: str) -> tuple[pa.DataType, _Get]:
        read, convert = attrgetter(name), _scalar_converter(each)
        if convert is None:
            return _scalar_type(each), read
        return _scalar_type(each), lambda message: convert(read(message))


def _scalar_type(each: FieldDescriptor) -> pa.DataType:
    if each.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.string() if each.type == FieldDescriptor.TYPE_STRING else pa.binary()
    return _SCALARS[each.cpp_type]


def _scalar_converter(each: FieldDescriptor) -> _Get | None:
    if each.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return Decimal
    if each.enum_type is not None:
        names = {number: value.name for number, value in each.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    return None


def _unchanged(value: Any) -> Any:  # noqa: ANN401 - a scalar of any kind
    return value


def _microseconds(message: Any) -> int:  # noqa: ANN401 - a class made at run time
    seconds: int = message.seconds
    return seconds * 1_000_000 + int(message.nanos) // 1_000


def _json_text(message: Message) -> str:
    return MessageToJson(message, indent=None)
