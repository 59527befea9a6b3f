"""The format `protobuf`."""

from collections.abc import Iterator

import pyarrow as pa
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet
from typing_extensions import override

from pydanube.schemas.format import (
    ABSENT,
    Change,
    Decoded,
    Failure,
    Incompatibility,
    Payloads,
    Schema,
    SchemaFormat,
    SchemaTools,
    payload_list,
)
from pydanube.schemas.kept import Kept
from pydanube.schemas.protobuf.columns import Columns
from pydanube.schemas.protobuf.descriptors import load_files, payload_message
from pydanube.schemas.protobuf.difference import changes
from pydanube.schemas.protobuf.model import build_message, has_required, is_map
from pydanube.schemas.protobuf.rows import RowEncoder
from pydanube.schemas.protobuf.rules import evolution_faults, read_faults

_ENUM_WIRE_TYPES = (0, 2)
"""A number, or packed numbers."""

_validators: Kept[str, "ProtobufValidator"] = Kept(256)
_columns: Kept[str, Columns] = Kept(64)


class ProtobufSchema(Schema):
    """The first message of a definition; its canonical form is a FileDescriptorSet."""

    format = "protobuf"

    def __init__(self, definition: bytes, canonical: bytes, descriptor: Descriptor) -> None:
        super().__init__(definition, canonical)
        self.descriptor = descriptor
        self.message = build_message(descriptor)

    @override
    def validator(self) -> "ProtobufValidator":
        return _validators.get(self.fingerprint, lambda: ProtobufValidator(self))

    @override
    def arrow_type(self) -> pa.DataType:
        return self.columns().arrow_type

    @override
    def decode(self, payloads: Payloads, writer: Schema | None = None) -> Decoded:
        return self.columns().decode(payload_list(payloads))

    def columns(self) -> Columns:
        """Return how messages become columns; made once for equal schemas."""
        return _columns.get(self.fingerprint, lambda: Columns(self.descriptor))

    def row_encoder(self) -> RowEncoder:
        """Return how rows become messages."""
        return RowEncoder(self.descriptor)


class ProtobufValidator:
    """Parses every payload.

    Fields with numbers that the schema does not know are allowed, since newer writers have them. A
    number it knows must come as its type is written, and required fields must be there.
    """

    def __init__(self, schema: ProtobufSchema) -> None:
        self._parse = GetMessageClass(schema.descriptor).FromString
        self._has_required = has_required(schema.message)

    def failures(self, payloads: Payloads) -> list[Failure]:
        """Return the rows that are not such a message."""
        parse, has_required = self._parse, self._has_required
        failures: list[Failure] = []
        for row, payload in enumerate(payload_list(payloads)):
            try:
                message = parse(payload)  # type: ignore[arg-type]  # None is refused below.
            except (DecodeError, TypeError) as error:
                failures.append(Failure(row, ABSENT if payload is None else str(error)))
                continue
            if has_required and not message.IsInitialized():
                failures.append(Failure(row, "a required field is missing"))
                continue
            # Two calls that look everywhere tell whether there is something to look for: without
            # unknown fields, what writers write has the size it came with.
            message.DiscardUnknownFields()
            if message.ByteSize() != len(payload):  # type: ignore[arg-type]  # It was parsed.
                reason = _misfit(parse(payload))  # type: ignore[arg-type]
                if reason is not None:
                    failures.append(Failure(row, reason))
        return failures


class ProtobufFormat(SchemaFormat):
    """Protobuf, as text or as a FileDescriptorSet."""

    name = "protobuf"

    def __init__(self, tools: SchemaTools) -> None:
        self._tools = tools

    @override
    def parse(self, definition: bytes) -> ProtobufSchema:
        files = load_files(definition, self._tools.protobuf_compiler, self._tools.limits)
        descriptor = payload_message(files)
        return ProtobufSchema(definition, files.SerializeToString(deterministic=True), descriptor)

    @override
    def incompatibilities(self, writer: Schema, reader: Schema) -> list[Incompatibility]:
        assert isinstance(writer, ProtobufSchema)
        assert isinstance(reader, ProtobufSchema)
        return read_faults(writer.message, reader.message)

    @override
    def evolution_faults(self, old: Schema, new: Schema) -> list[Incompatibility]:
        assert isinstance(old, ProtobufSchema)
        assert isinstance(new, ProtobufSchema)
        return evolution_faults(old.message, new.message)

    @override
    def difference(self, old: Schema, new: Schema) -> list[Change]:
        assert isinstance(old, ProtobufSchema)
        assert isinstance(new, ProtobufSchema)
        return changes(old.message, new.message)


def _misfit(message: Message) -> str | None:
    """Return which known field came in the form of another type, if one did."""
    fields = message.DESCRIPTOR.fields_by_number
    unknown = UnknownFieldSet(message)
    for index in range(len(unknown)):
        each = unknown[index]
        field = fields.get(each.field_number)
        # A closed enumeration makes numbers it does not list unknown, which is no fault of theirs.
        if field is None or (field.enum_type and each.wire_type in _ENUM_WIRE_TYPES):
            continue
        return f"field {field.name} = {field.number} has wire type {each.wire_type}"
    for inner in _inner_messages(message):
        reason = _misfit(inner)
        if reason is not None:
            return reason
    return None


def _inner_messages(message: Message) -> Iterator[Message]:
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if is_map(field):
            if field.message_type.fields_by_name["value"].message_type is not None:
                yield from value.values()
        elif field.is_repeated:
            yield from value
        else:
            yield value
