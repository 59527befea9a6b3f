"""Payloads as values of the application's own types. Pure.

`codec_for(Order)` encodes an Order into a payload, and decodes and checks what comes. Bytes and
text travel as they are, everything else as JSON. Libraries that define types are not imported here
before a type of theirs is given.
"""

import sys
from typing import Any, Generic, Literal, Protocol, get_args, overload

import msgspec
from typing_extensions import TypeVar, override

from pydanube.client.errors import UndecodablePayload
from pydanube.errors import InvalidRequest

SchemaType = Literal["bytes", "string", "json_schema"]
"""As schema registries name them."""

Value = TypeVar("Value", default=bytes)


class Codec(Protocol[Value]):
    """Turns values of one type into payloads and back; safe to share between threads."""

    @property
    def schema_type(self) -> SchemaType:
        """What a schema registry would call such payloads."""

    def encode(self, value: Value) -> bytes:
        """Return the payload; InvalidRequest if the value is of another type."""

    def decode(self, payload: bytes) -> Value:
        """Return the value; UndecodablePayload says what is wrong with the payload, and where."""

    def json_schema(self) -> dict[str, Any] | None:
        """Return the JSON Schema that payloads follow; None where they are no JSON."""


@overload
def codec_for(kind: type[Value]) -> Codec[Value]: ...
@overload
def codec_for(kind: object) -> Codec[Any]: ...
def codec_for(kind: object) -> Codec[Any]:
    """Return the codec of a type; InvalidRequest if there cannot be one.

    Types are bytes, str, dataclasses, msgspec Structs, pydantic models, typed dicts, dict, and
    whatever msgspec or pydantic make of these: lists, unions, optional values.
    """
    if kind is bytes:
        return BYTES
    if kind is str:
        return TEXT
    try:
        return PydanticCodec(kind) if _is_of_pydantic(kind) else JsonCodec(kind)
    except TypeError as error:
        raise InvalidRequest(
            f"payloads cannot be {_name(kind)}: {error}; use bytes, str, dict, a dataclass, a "
            "msgspec.Struct or a pydantic model"
        ) from None


class BytesCodec:
    """Payloads as they are."""

    schema_type: SchemaType = "bytes"

    def encode(self, value: bytes) -> bytes:
        """Return the bytes."""
        if isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise InvalidRequest(
            f"a payload is bytes, not {_name(type(value))}; encode it, or name its type when "
            "opening the producer: client.producer(topic, type=…)"
        )

    def decode(self, payload: bytes) -> bytes:
        """Return the bytes."""
        return payload

    def json_schema(self) -> dict[str, Any] | None:
        """Return None: bytes may be anything."""
        return None


class TextCodec:
    """Payloads of UTF-8."""

    schema_type: SchemaType = "string"

    def encode(self, value: str) -> bytes:
        """Return the text as UTF-8."""
        if not isinstance(value, str):
            raise InvalidRequest(f"the payload is a str, not {_name(type(value))}")
        return value.encode()

    def decode(self, payload: bytes) -> str:
        """Return the text."""
        try:
            return payload.decode()
        except UnicodeDecodeError as error:
            raise UndecodablePayload(f"the payload is not UTF-8: {error}") from None

    def json_schema(self) -> dict[str, Any] | None:
        """Return None: texts are not JSON."""
        return None


class JsonCodec(Generic[Value]):
    """Payloads of JSON, for dataclasses, Structs and what msgspec knows beside them."""

    schema_type: SchemaType = "json_schema"

    def __init__(self, kind: object) -> None:
        self._kind = kind
        # What Any stands for here is the type that was given, which need not be a class.
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
        self._encoder = msgspec.json.Encoder()
        # A decoder alone would take any class, and fail at the first message.
        self._schema = msgspec.json.schema(kind)

    def encode(self, value: Value) -> bytes:
        """Return the value as JSON."""
        if isinstance(self._kind, type) and not isinstance(value, self._plain_class()):
            raise InvalidRequest(f"the payload is {_name(self._kind)}, not {_name(type(value))}")
        try:
            return self._encoder.encode(value)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise InvalidRequest(f"a value cannot be written as JSON: {error}") from None

    def decode(self, payload: bytes) -> Value:
        """Return the value that the JSON holds."""
        try:
            value: Value = self._decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UndecodablePayload(f"the payload is no {_name(self._kind)}: {error}") from None
        return value

    def json_schema(self) -> dict[str, Any] | None:
        """Return the schema that msgspec writes."""
        return self._schema

    def _plain_class(self) -> type:
        kind = self._kind
        assert isinstance(kind, type)
        # Typed dicts are dicts at run time, and refuse to be asked.
        return dict if hasattr(kind, "__total__") and issubclass(kind, dict) else kind

    @override
    def __repr__(self) -> str:
        return f"JsonCodec({_name(self._kind)})"


class PydanticCodec(Generic[Value]):
    """Payloads of JSON, checked by pydantic."""

    schema_type: SchemaType = "json_schema"

    def __init__(self, kind: object) -> None:
        from pydantic import TypeAdapter

        self._kind = kind
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)  # type: ignore[arg-type]  # Judged at run time.

    def encode(self, value: Value) -> bytes:
        """Return the value as JSON."""
        from pydantic import ValidationError
        from pydantic_core import PydanticSerializationError

        try:
            # Writing alone takes whatever looks alike; this also checks its type.
            self._adapter.validate_python(value, strict=True)
            return self._adapter.dump_json(value, by_alias=True)
        except (ValidationError, PydanticSerializationError) as error:
            raise InvalidRequest(f"the payload is no {_name(self._kind)}: {error}") from None

    def decode(self, payload: bytes) -> Value:
        """Return the value that the JSON holds."""
        from pydantic import ValidationError

        try:
            value: Value = self._adapter.validate_json(payload)
        except ValidationError as error:
            raise UndecodablePayload(f"the payload is no {_name(self._kind)}: {error}") from None
        return value

    def json_schema(self) -> dict[str, Any] | None:
        """Return the schema that pydantic writes."""
        return self._adapter.json_schema()

    @override
    def __repr__(self) -> str:
        return f"PydanticCodec({_name(self._kind)})"


BYTES: Codec[bytes] = BytesCodec()
TEXT: Codec[str] = TextCodec()


def _is_of_pydantic(kind: object) -> bool:
    """Tell whether a type is one of pydantic's, or is made of such; does not load pydantic."""
    if "pydantic" not in sys.modules:
        return False
    if isinstance(kind, type) and hasattr(kind, "__pydantic_validator__"):
        return True
    return any(_is_of_pydantic(part) for part in get_args(kind))


def _name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)
