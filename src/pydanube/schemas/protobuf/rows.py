"""Rows as Protobuf messages: the way back of `columns`. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import Error as JsonFormatError
from google.protobuf.json_format import Parse
from google.protobuf.message import EncodeError, Message
from google.protobuf.message_factory import GetMessageClass

from pydanube.errors import InvalidRequest
from pydanube.schemas.protobuf.columns import FREE_FORM, WRAPPERS
from pydanube.schemas.protobuf.model import is_map

_Make: TypeAlias = Callable[[Any], Any]
_TIMESTAMP = "google.protobuf.Timestamp"


class RowEncoder:
    """Turns rows, as dicts by field name, into payloads. Fields that a row lacks stay unset."""

    def __init__(self, descriptor: Descriptor) -> None:
        self._name = descriptor.full_name
        self._make = _message_maker(descriptor, {})
        self._fields = frozenset(descriptor.fields_by_name)

    def check_columns(self, names: tuple[str, ...]) -> None:
        """Refuse columns that the message has no field for."""
        unknown = sorted(set(names) - self._fields)
        if unknown:
            raise InvalidRequest(
                f"column {', '.join(unknown)} is no field of {self._name}, which has "
                f"{', '.join(sorted(self._fields))}; rename it, or leave it out"
            )

    def encode(self, row: Mapping[str, Any]) -> bytes:
        """Return one payload; InvalidRequest names what does not fit."""
        try:
            message: Message = self._make(row)
            payload: bytes = message.SerializeToString()
        except (TypeError, ValueError, EncodeError, JsonFormatError) as error:
            raise InvalidRequest(
                f"a row is not what {self._name} describes: {error}; give the frame the message's "
                "fields, with its types"
            ) from None
        return payload


def _message_maker(descriptor: Descriptor, known: dict[str, _Make]) -> _Make:
    name = descriptor.full_name
    if name in known:
        return known[name]
    kind = GetMessageClass(descriptor)
    if name == _TIMESTAMP:
        return lambda value: _timestamp(kind(), value)
    if name in WRAPPERS:
        inner = _scalar_maker(descriptor.fields_by_name["value"])
        return lambda value: kind(value=inner(value))
    if name in FREE_FORM or not descriptor.fields:
        return lambda value: Parse(value, kind())
    makers: dict[str, _Make] = {}

    def make(row: Any) -> Any:  # noqa: ANN401 - a value of any shape
        if isinstance(row, str):  # A message within itself was decoded as JSON text.
            return Parse(row, kind())
        given = {field: value for field, value in row.items() if value is not None}
        return kind(**{field: makers[field](value) for field, value in given.items()})

    known[name] = make
    makers.update({each.name: _field_maker(each, known) for each in descriptor.fields})
    return make


def _field_maker(each: FieldDescriptor, known: dict[str, _Make]) -> _Make:
    if is_map(each):
        entry = each.message_type
        assert entry is not None, "a map is a repeated message"
        key, value = (_value_maker(part, known) for part in entry.fields)
        return lambda pairs: {key(k): value(v) for k, v in _pairs(pairs)}
    make = _value_maker(each, known)
    if each.is_repeated:
        return lambda items: [make(item) for item in items]
    return make


def _value_maker(each: FieldDescriptor, known: dict[str, _Make]) -> _Make:
    if each.message_type is not None:
        return _message_maker(each.message_type, known)
    return _scalar_maker(each)


def _scalar_maker(each: FieldDescriptor) -> _Make:
    if each.enum_type is not None:
        numbers = {name: value.number for name, value in each.enum_type.values_by_name.items()}
        return lambda name: numbers[name] if name in numbers else int(name)
    if each.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return int
    return lambda value: value


def _pairs(pairs: Any) -> Any:  # noqa: ANN401 - a dict, or pairs as Arrow gives a map
    return pairs.items() if isinstance(pairs, Mapping) else pairs


def _timestamp(message: Any, value: Any) -> Any:  # noqa: ANN401 - a datetime, into what is made
    message.FromDatetime(value)
    return message
