"""What an Arrow IPC message says of itself, read before Arrow is asked to take it in.

Arrow allocates what a compressed buffer claims to hold. So claims are added up here first, from
bytes that nobody has checked: whatever they are, reading them ends in an answer or InvalidRequest.
"""

from enum import IntEnum
from struct import Struct as Layout
from struct import error as OutOfBytes

from msgspec import Struct

from pydanube.errors import InvalidRequest


class IpcKind(IntEnum):
    """What a message holds, by the numbers of Arrow's format."""

    SCHEMA = 1
    DICTIONARY = 2
    RECORDS = 3


class IpcHead(Struct, frozen=True):
    """What the header of a message says, as far as we must know before we trust Arrow with it."""

    kind: IpcKind
    body_bytes: int
    dictionary_id: int = 0
    is_delta: bool = False
    """Whether a dictionary is added to the one before."""
    row_count: int = 0
    compressed: bool = False
    buffers: tuple[tuple[int, int], ...] = ()
    """Where the buffers of a compressed body lie: offset and length."""


_UINT16, _UINT32, _INT32, _INT64 = Layout("<H"), Layout("<I"), Layout("<i"), Layout("<q")
_UINT8 = Layout("<B")
_BUFFER = Layout("<qq")

# Numbers of the fields in Arrow's flatbuffers tables.
_MESSAGE_KIND, _MESSAGE_HEADER, _MESSAGE_BODY_BYTES = 1, 2, 3
_DICTIONARY_ID, _DICTIONARY_RECORDS, _DICTIONARY_IS_DELTA = 0, 1, 2
_RECORDS_LENGTH, _RECORDS_BUFFERS, _RECORDS_COMPRESSION = 0, 2, 3

_NOT_COMPRESSED = -1


def read_head(header: bytes) -> IpcHead:
    """Read the header of one message."""
    try:
        return _read_head(header)
    except (OutOfBytes, ValueError):
        raise InvalidRequest("the batch's header is not that of an Arrow IPC message") from None


def _read_head(header: bytes) -> IpcHead:
    message = _follow(header, 0)
    kind_at = _field(header, message, _MESSAGE_KIND)
    content_at = _field(header, message, _MESSAGE_HEADER)
    if kind_at is None or content_at is None:
        raise ValueError
    kind = IpcKind(_UINT8.unpack_from(header, kind_at)[0])
    content = _follow(header, content_at)
    body_bytes = _int64(header, message, _MESSAGE_BODY_BYTES)
    if kind is IpcKind.SCHEMA:
        return IpcHead(kind, body_bytes)
    if kind is IpcKind.RECORDS:
        return _read_records(header, content, kind, body_bytes)
    records_at = _field(header, content, _DICTIONARY_RECORDS)
    if records_at is None:
        raise ValueError
    delta_at = _field(header, content, _DICTIONARY_IS_DELTA)
    return _read_records(
        header,
        _follow(header, records_at),
        kind,
        body_bytes,
        dictionary_id=_int64(header, content, _DICTIONARY_ID),
        is_delta=delta_at is not None and bool(_UINT8.unpack_from(header, delta_at)[0]),
    )


def _read_records(
    header: bytes,
    table: int,
    kind: IpcKind,
    body_bytes: int,
    *,
    dictionary_id: int = 0,
    is_delta: bool = False,
) -> IpcHead:
    compressed = _field(header, table, _RECORDS_COMPRESSION) is not None
    return IpcHead(
        kind,
        body_bytes,
        dictionary_id,
        is_delta,
        _int64(header, table, _RECORDS_LENGTH),
        compressed,
        _read_buffers(header, table) if compressed else (),
    )


def _read_buffers(header: bytes, table: int) -> tuple[tuple[int, int], ...]:
    buffers_at = _field(header, table, _RECORDS_BUFFERS)
    if buffers_at is None:
        return ()
    vector = _follow(header, buffers_at)
    count: int = _UINT32.unpack_from(header, vector)[0]
    start = vector + _UINT32.size
    end = start + count * _BUFFER.size
    if end > len(header):
        raise ValueError
    return tuple(_BUFFER.iter_unpack(header[start:end]))


def unpacked_bytes(head: IpcHead, body: memoryview) -> int:
    """Return how many bytes the buffers of a compressed body claim to hold together."""
    total = 0
    for offset, length in head.buffers:
        if length == 0:
            continue
        if offset < 0 or length < _INT64.size or offset + length > len(body):
            raise InvalidRequest("the batch has a compressed buffer outside of its body")
        claimed: int = _INT64.unpack_from(body, offset)[0]
        if claimed < _NOT_COMPRESSED:
            raise InvalidRequest("the batch has a compressed buffer of negative size")
        total += length - _INT64.size if claimed == _NOT_COMPRESSED else claimed
    return total


def _int64(header: bytes, table: int, number: int) -> int:
    at = _field(header, table, number)
    value: int = 0 if at is None else _INT64.unpack_from(header, at)[0]
    return value


def _follow(header: bytes, at: int) -> int:
    """Return where an offset stored at `at` leads."""
    target: int = at + _UINT32.unpack_from(header, at)[0]
    return target


def _field(header: bytes, table: int, number: int) -> int | None:
    """Return where a table's field lies, or None if it has its default."""
    vtable: int = table - _INT32.unpack_from(header, table)[0]
    if vtable < 0:
        raise ValueError
    entry = 4 + 2 * number
    if entry + 2 > _UINT16.unpack_from(header, vtable)[0]:
        return None
    offset: int = _UINT16.unpack_from(header, vtable + entry)[0]
    return table + offset if offset else None
