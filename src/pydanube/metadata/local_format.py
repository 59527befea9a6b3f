"""The bytes of the single-node metadata, as docs/formats/metadata-log.md specifies them. Pure."""

import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from pydanube.errors import Corruption, NotSupported
from pydanube.metadata.commands import MIB, Command, decode_command
from pydanube.storage.frames import (
    FORMAT_VERSION,
    Frame,
    FrameScan,
    Stop,
    encode_frame,
    find_frame,
)

SNAPSHOT_NAME = "metadata.snapshot"
LOCK_NAME = "metadata.lock"

_LOG_NAME = re.compile(r"metadata-([0-9]{20})\.log", re.ASCII)
_COMMAND = 1
_CLOSED = 2
_HEADER = 3
_PIECE = 4
_PIECE_BYTES_MAX = 16 * MIB
_FORMAT = "pydanube-metadata"

_NEXT_STEP = "Nothing was changed. Copy the directory aside, then restore it from a backup"


class LogContents(Struct, frozen=True):
    """What a log holds, up to its end or its torn tail."""

    commands: list[Command]
    end: int
    """The position after the last good frame."""


class _Header(Struct, frozen=True, array_like=True):
    format: str
    log_position: int
    size: int


def log_name(position: int) -> str:
    """Return the name of the log that begins at this position."""
    return f"metadata-{position:020}.log"


def log_position(name: str) -> int | None:
    """Return where the log of this name begins, None if it is not a log's name."""
    match = _LOG_NAME.fullmatch(name)
    return int(match[1]) if match else None


def encode_commands(payloads: Sequence[bytes], position: int) -> list[bytes]:
    """Return the frames of one group of encoded commands, which is synced as a whole."""
    parts: list[bytes] = []
    at = position
    for payload in payloads:
        frame = encode_frame(_COMMAND, at, position, [payload])
        at += sum(map(len, frame))
        parts += frame
    return parts


def encode_closed(position: int) -> list[bytes]:
    """Return the frame that says that everything before it was synced."""
    return encode_frame(_CLOSED, position, position, [])


def read_log(data: bytes, start: int, path: str) -> LogContents:
    """Return the commands of a log that starts at that position; a torn tail is left out.

    Corruption if bytes that had been synced are bad.
    """
    scan = FrameScan(data, start)
    commands = []
    for frame in scan:
        check_version(frame, path)
        if frame.kind == _COMMAND:
            commands.append(_decode_command(data, frame, path))
        elif frame.kind != _CLOSED:
            raise Corruption(_damage(path, frame.position, frame.kind, "holds a frame of kind"))
    if scan.stop is not Stop.END and was_synced(data, start, scan.at):
        raise Corruption(
            f"{path} is damaged at position {start + scan.at} (byte {scan.at} of the file), and "
            f"frames behind it show that it had been written whole. {_NEXT_STEP}, or cut the file "
            f"to {scan.at} bytes to go on without the changes from there on."
        )
    return LogContents(commands, start + scan.at)


def encode_snapshot_file(log_end: int, state: bytes) -> bytes:
    """Return the snapshot file of a state that covers the log up to `log_end`."""
    header = msgspec.msgpack.encode(_Header(_FORMAT, log_end, len(state)))
    file = bytearray(b"".join(encode_frame(_HEADER, 0, 0, [header])))
    for start in range(0, len(state), _PIECE_BYTES_MAX):
        piece = state[start : start + _PIECE_BYTES_MAX]
        file += b"".join(encode_frame(_PIECE, len(file), 0, [piece]))
    return bytes(file)


def read_snapshot_file(data: bytes, path: str) -> tuple[int, bytes]:
    """Return the log position that a snapshot file covers, and the state; Corruption if bad."""
    scan = FrameScan(data, 0)
    header: _Header | None = None
    pieces = []
    for frame in scan:
        check_version(frame, path)
        payload = data[frame.start : frame.end]
        if frame.kind == _HEADER and header is None:
            header = _decode_header(payload, path)
        elif frame.kind == _PIECE and header is not None:
            pieces.append(payload)
        else:
            raise Corruption(_damage(path, frame.position, frame.kind, "holds a frame of kind"))
    state = b"".join(pieces)
    if header is None or scan.stop is not Stop.END or len(state) != header.size:
        raise Corruption(_damage(path, scan.at, scan.stop.value, "is cut or damaged:"))
    return header.log_position, state


def was_synced(data: bytes, start: int, bad_at: int) -> bool:
    """Tell whether a frame behind the bad place says that it had been synced before."""
    at = bad_at
    while (sighting := find_frame(data, start, at + 1)) is not None:
        at = sighting.at
        if sighting.complete:
            frame = next(iter(FrameScan(data, start, at)))
            if frame.durable > start + bad_at:
                return True
    return False


def check_version(frame: Frame, path: str) -> None:
    """Refuse what a newer version has written."""
    if frame.version > FORMAT_VERSION:
        raise NotSupported(
            f"{path} was written by a newer PyDanube (format {frame.version}, this one reads "
            f"{FORMAT_VERSION}): start that version, or choose another directory"
        )


def _decode_command(data: bytes, frame: Frame, path: str) -> Command:
    try:
        return decode_command(data[frame.start : frame.end])
    except Corruption as error:
        raise Corruption(_damage(path, frame.position, error, "holds what is")) from error


def _decode_header(payload: bytes, path: str) -> _Header:
    try:
        header = msgspec.msgpack.decode(payload, type=_Header)
    except msgspec.DecodeError as error:
        raise Corruption(_damage(path, 0, error, "has a bad header:")) from error
    if header.format != _FORMAT:
        raise Corruption(_damage(path, 0, header.format, "is no metadata snapshot but"))
    return header


def _damage(path: str, position: int, what: object, how: str) -> str:
    return f"{path} {how} {what}, at position {position}. {_NEXT_STEP}."
