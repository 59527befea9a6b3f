"""The messages of Arrow Flight as bytes: protobuf fields, read and written by hand.

Nothing here knows what a topic is. Bytes that carry data are never parsed, and copied once: into
the message that is sent, or out of the parts in which one came.
"""

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct as Layout

from msgspec import Struct

from pydanube.errors import InvalidRequest
from pydanube.wire.calls import Body, whole
from pydanube.wire.memory import put_before

Field = tuple[int, int | memoryview]
"""A field's number, and its value: a number, or the bytes of a string or message."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}

# FlightData
_DESCRIPTOR, _HEADER, _APP_METADATA, _BODY = 1, 2, 3, 1000
_HEADER_TAG, _APP_METADATA_TAG, _BODY_TAG = b"\x12", b"\x1a", b"\xc2\x3e"

PATH, COMMAND = 1, 2
"""The kinds of descriptor; 0 is unknown."""

_CONTINUATION = b"\xff\xff\xff\xff"
_PREFIX = Layout("<4si")
"""What an encapsulated IPC message begins with: a marker, and the length of its metadata."""


BodyParts = tuple[bytes | memoryview, ...]


class FlightData(Struct, frozen=True):
    """One message of a stream: an Arrow IPC message cut in two, and what the caller says of it."""

    descriptor: bytes | None
    header: memoryview
    app_metadata: bytes
    body: BodyParts


class Descriptor(Struct, frozen=True):
    """What a call is about: a path, or a command whose meaning the two ends agree on."""

    kind: int
    command: bytes = b""
    path: tuple[str, ...] = ()


class Endpoint(Struct, frozen=True, kw_only=True):
    """Where one part of a flight is read."""

    ticket: bytes
    locations: Sequence[str] = ()
    app_metadata: bytes = b""


class FlightInfo(Struct, frozen=True, kw_only=True):
    """What can be read, and where. A total of -1 is unknown."""

    schema: bytes
    """An encapsulated IPC schema message."""
    descriptor: Descriptor
    endpoints: Sequence[Endpoint]
    total_records: int = -1
    total_bytes: int = -1
    ordered: bool = False
    app_metadata: bytes = b""


# What arrives.


def read_flight_data(message: Body) -> FlightData:
    """Cut a FlightData into its fields; header and body share the memory of `message`."""
    if isinstance(message, bytes):
        return _flight_data(fields(message))
    first, *others = message
    try:
        found = list(fields(first, beyond=sum(map(len, others))))
    except InvalidRequest:
        found = []
    if not found or found[-1][0] != _BODY:
        # It is not cut within its body alone, and must be put together.
        return read_flight_data(whole(message))
    *before, (_, body) = found
    # Of bodies that are given twice, the last counts.
    return _flight_data((each for each in before if each[0] != _BODY), (_view(body), *others))


def _flight_data(found: Iterable[Field], body: BodyParts = ()) -> FlightData:
    descriptor: bytes | None = None
    header = memoryview(b"")
    app_metadata = b""
    for number, value in found:
        if number == _HEADER:
            header = _view(value)
        elif number == _BODY:
            only = _view(value)
            body = (only,) if only else ()
        elif number == _APP_METADATA:
            app_metadata = bytes(_view(value))
        elif number == _DESCRIPTOR:
            # Protobuf merges what is given twice, which for bytes means one after the other.
            descriptor = (descriptor or b"") + bytes(_view(value))
    return FlightData(descriptor, header, app_metadata, body)


def encapsulate(header: memoryview, body: BodyParts) -> bytes | memoryview:
    """Return the IPC message as files and streams hold it, and as the journal stores it.

    A body in memory of its own stays there, and `header` may be overwritten.
    """
    padding = -len(header) % 8
    prefix = _PREFIX.pack(_CONTINUATION, len(header) + padding)
    head = b"".join((prefix, header, bytes(padding)))
    in_place = put_before(head, body[0]) if len(body) == 1 else None
    return in_place or b"".join((head, *body))


def cut_in_two(ipc_message: memoryview) -> tuple[memoryview, BodyParts]:
    """Return header and body of an encapsulated IPC message of 8 bytes or more, sharing memory."""
    marker, length = _PREFIX.unpack_from(ipc_message)
    body_at = _PREFIX.size + length
    if marker != _CONTINUATION or length <= 0 or body_at > len(ipc_message):
        raise InvalidRequest("there is no Arrow message where one is said to be")
    return ipc_message[_PREFIX.size : body_at], (ipc_message[body_at:],)


def read_descriptor(message: bytes) -> Descriptor:
    """Read a FlightDescriptor."""
    kind, command = 0, b""
    path: list[str] = []
    for number, value in fields(message):
        if number == 1:
            kind = _number(value)
        elif number == 2:
            command = bytes(_view(value))
        elif number == 3:
            path.append(_text(value))
    return Descriptor(kind, command, tuple(path))


def read_ticket(message: bytes) -> bytes:
    """Return what a Ticket holds."""
    return _last_bytes(message, 1)


def read_criteria(message: bytes) -> bytes:
    """Return the expression of a Criteria."""
    return _last_bytes(message, 1)


def read_action(message: bytes) -> tuple[str, bytes]:
    """Return the type and the body of an Action."""
    kind, body = "", b""
    for number, value in fields(message):
        if number == 1:
            kind = _text(value)
        elif number == 2:
            body = bytes(_view(value))
    return kind, body


def fields(message: bytes | memoryview, *, beyond: int = 0) -> Iterator[Field]:
    """Yield every field in its order; InvalidRequest where the bytes are no protobuf message.

    When so many bytes `beyond` these belong to the message, they must be the end of its last
    field, of which only the beginning is here.
    """
    view = memoryview(message)
    at, size = 0, len(message)
    while at < size:
        tag, at = _read_varint(message, at)
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise _malformed()
        if wire_type == _BYTES:
            length, at = _read_varint(message, at)
            if beyond and length == size - at + beyond:
                yield number, view[at:]
                return
            if length > size - at:
                raise _malformed()
            yield number, view[at : at + length]
            at += length
        elif wire_type == _VARINT:
            value, at = _read_varint(message, at)
            yield number, value
        elif wire_type in _FIXED_BYTES:
            length = _FIXED_BYTES[wire_type]
            if length > size - at:
                raise _malformed()
            yield number, int.from_bytes(view[at : at + length], "little")
            at += length
        else:
            raise _malformed()
    if beyond:
        raise _malformed()


def _read_varint(message: bytes | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(at, min(at + _VARINT_BYTES_MAX, len(message))):
        byte = message[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place + 1
        shift += 7
    raise _malformed()


def _view(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise _malformed()
    return value


def _number(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise _malformed()
    return value


def _text(value: int | memoryview) -> str:
    try:
        return str(_view(value), "utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest("the request holds a text that is not UTF-8") from None


def _last_bytes(message: bytes, wanted: int) -> bytes:
    found = b""
    for number, value in fields(message):
        if number == wanted:
            found = bytes(_view(value))
    return found


def _malformed() -> InvalidRequest:
    return InvalidRequest("the request is not a valid Arrow Flight message")


# What is sent.


def flight_data(ipc_message: bytes | memoryview, app_metadata: bytes = b"") -> Body:
    """Return the FlightData of one encapsulated IPC message of our own, sharing its memory."""
    marker, length = _PREFIX.unpack_from(ipc_message)
    assert marker == _CONTINUATION, "messages of our own begin with a marker"
    view = memoryview(ipc_message)
    body_at = _PREFIX.size + length
    parts: list[bytes | memoryview] = [
        _HEADER_TAG,
        write_varint(length),
        view[_PREFIX.size : body_at],
    ]
    if app_metadata:
        parts += (_APP_METADATA_TAG, write_varint(len(app_metadata)), app_metadata)
    if body_at < len(ipc_message):
        parts += (_BODY_TAG, write_varint(len(ipc_message) - body_at), view[body_at:])
    return tuple(parts)


def metadata_only(app_metadata: bytes) -> bytes:
    """Return a FlightData that carries no data."""
    return bytes_field(_APP_METADATA, app_metadata)


def write_descriptor(descriptor: Descriptor) -> bytes:
    """Return a FlightDescriptor."""
    path = [_message_field(3, part.encode()) for part in descriptor.path]
    return b"".join((number_field(1, descriptor.kind), bytes_field(2, descriptor.command), *path))


def write_flight_info(info: FlightInfo) -> bytes:
    """Return a FlightInfo."""
    return b"".join(
        (
            bytes_field(1, info.schema),
            _message_field(2, write_descriptor(info.descriptor)),
            *(_message_field(3, _endpoint(each)) for each in info.endpoints),
            number_field(4, info.total_records),
            number_field(5, info.total_bytes),
            number_field(6, info.ordered),
            bytes_field(7, info.app_metadata),
        )
    )


def _endpoint(endpoint: Endpoint) -> bytes:
    ticket = bytes_field(1, endpoint.ticket)
    locations = (_message_field(2, text_field(1, uri)) for uri in endpoint.locations)
    return b"".join((_message_field(1, ticket), *locations, bytes_field(4, endpoint.app_metadata)))


def write_schema_result(schema: bytes) -> bytes:
    """Return a SchemaResult of an encapsulated IPC schema message."""
    return bytes_field(1, schema)


def write_put_result(app_metadata: bytes) -> bytes:
    """Return a PutResult."""
    return bytes_field(1, app_metadata)


def write_result(body: bytes) -> bytes:
    """Return the Result of an action."""
    return bytes_field(1, body)


def write_action_type(name: str, description: str) -> bytes:
    """Return an ActionType."""
    return text_field(1, name) + text_field(2, description)


def bytes_field(number: int, value: bytes) -> bytes:
    """Return a field of bytes; nothing for none, as protobuf writes defaults."""
    return _message_field(number, value) if value else b""


def text_field(number: int, value: str) -> bytes:
    """Return a field of text."""
    return bytes_field(number, value.encode())


def number_field(number: int, value: int) -> bytes:
    """Return a field of an integer, enumeration or truth; negative ones as int64."""
    if not value:
        return b""
    return write_varint(number << 3 | _VARINT) + write_varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def _message_field(number: int, value: bytes) -> bytes:
    return b"".join((write_varint(number << 3 | _BYTES), write_varint(len(value)), value))


def write_varint(value: int) -> bytes:
    """Return a number of 64 bits, seven at a time, the lowest first."""
    if value < 0x80:
        return value.to_bytes(1, "little")
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
