"""The bytes of a Raft node's log and snapshot, as docs/formats/raft-log.md specifies them. Pure."""

import re
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from pydanube.errors import Corruption
from pydanube.metadata.commands import MIB
from pydanube.metadata.local_format import check_version, was_synced
from pydanube.metadata.raft.entries import HardState, LogEntry, Snapshot, Stored
from pydanube.metadata.raft.membership import Membership
from pydanube.storage.frames import Frame, FrameScan, Stop, encode_frame

SNAPSHOT_NAME = "raft.snapshot"
LOCK_NAME = "raft.lock"
NODE_ID_NAME = "node_id"

_LOG_NAME = re.compile(r"raft-([0-9]{20})\.log", re.ASCII)
_ENTRY, _CLOSED, _HARD_STATE, _LOG_START, _HEADER, _PIECE = range(1, 7)
_PIECE_BYTES_MAX = 16 * MIB
_FORMAT = "pydanube-raft"

_Kind = TypeVar("_Kind")

NEXT_STEP = (
    "Nothing was changed. A node that has forgotten what it promised must not vote: remove it "
    "from the cluster, empty its directory, and add it anew; a node that is alone is restored "
    "from a backup"
)


class LogContents(Struct, frozen=True):
    """What a log file holds, up to its end or its torn tail."""

    node: int
    base_index: int
    base_term: int
    hard_state: HardState
    entries: tuple[LogEntry, ...]
    end: int
    """The position after the last good frame."""


class _LogStart(Struct, frozen=True, array_like=True):
    node: int
    base_index: int
    base_term: int


class _Header(Struct, frozen=True, array_like=True):
    format: str
    index: int
    term: int
    membership: Membership
    size: int


def log_name(position: int) -> str:
    """Return the name of the log that begins at this position."""
    return f"raft-{position:020}.log"


def log_position(name: str) -> int | None:
    """Return where the log of this name begins, None if it is not a log's name."""
    match = _LOG_NAME.fullmatch(name)
    return int(match[1]) if match else None


def encode_group(
    hard_state: HardState | None, entries: Sequence[LogEntry], position: int
) -> list[bytes]:
    """Return the frames of one group, which is synced as a whole."""
    payloads = [] if hard_state is None else [(_HARD_STATE, msgspec.msgpack.encode(hard_state))]
    payloads += [(_ENTRY, msgspec.msgpack.encode(entry)) for entry in entries]
    return _frames(payloads, position, position)


def encode_log_start(node: int, stored: Stored, position: int) -> list[bytes]:
    """Return how a log file begins: its base, the hard state, and the entries that are kept."""
    start = _LogStart(node, stored.base_index, stored.base_term)
    payloads = [
        (_LOG_START, msgspec.msgpack.encode(start)),
        (_HARD_STATE, msgspec.msgpack.encode(stored.hard_state)),
        *((_ENTRY, msgspec.msgpack.encode(entry)) for entry in stored.entries),
    ]
    return _frames(payloads, position, position)


def encode_closed(position: int) -> list[bytes]:
    """Return the frame that says that everything before it was synced."""
    return encode_frame(_CLOSED, position, position, [])


def _frames(payloads: Sequence[tuple[int, bytes]], position: int, durable: int) -> list[bytes]:
    parts: list[bytes] = []
    for kind, payload in payloads:
        frame = encode_frame(kind, position, durable, [payload])
        position += sum(map(len, frame))
        parts += frame
    return parts


def read_log(data: bytes, start: int, path: str) -> LogContents:
    """Return what a log that starts at that position holds; a torn tail is left out.

    Corruption if bytes that had been synced are bad.
    """
    scan = FrameScan(data, start)
    begin: _LogStart | None = None
    hard_state: HardState | None = None
    entries: list[LogEntry] = []
    for frame in scan:
        check_version(frame, path)
        payload = data[frame.start : frame.end]
        if frame.kind == _LOG_START and begin is None:
            begin = _decode(payload, _LogStart, path, frame)
        elif frame.kind == _HARD_STATE and begin is not None:
            hard_state = _decode(payload, HardState, path, frame)
        elif frame.kind == _ENTRY and begin is not None:
            _take_entry(entries, begin, _decode(payload, LogEntry, path, frame), path)
        elif frame.kind != _CLOSED:
            raise Corruption(_damage(path, frame.position, f"holds a frame of kind {frame.kind}"))
    if scan.stop is not Stop.END and was_synced(data, start, scan.at):
        raise Corruption(_damage(path, start + scan.at, "is damaged, though it was written whole,"))
    if begin is None or hard_state is None:
        raise Corruption(_damage(path, start, "does not begin as a Raft log does,"))
    return LogContents(
        begin.node, begin.base_index, begin.base_term, hard_state, tuple(entries), start + scan.at
    )


def _take_entry(entries: list[LogEntry], begin: _LogStart, entry: LogEntry, path: str) -> None:
    """Add an entry in place of those from its index on: a later write replaces earlier ones."""
    place = entry.index - begin.base_index - 1
    if not 0 <= place <= len(entries):
        raise Corruption(_damage(path, 0, f"holds entry {entry.index} without the one before"))
    del entries[place:]
    entries.append(entry)


def encode_snapshot_file(snapshot: Snapshot) -> bytes:
    """Return the file of a snapshot."""
    header = _Header(
        _FORMAT, snapshot.index, snapshot.term, snapshot.membership, len(snapshot.state)
    )
    file = bytearray(b"".join(encode_frame(_HEADER, 0, 0, [msgspec.msgpack.encode(header)])))
    for start in range(0, len(snapshot.state), _PIECE_BYTES_MAX):
        piece = snapshot.state[start : start + _PIECE_BYTES_MAX]
        file += b"".join(encode_frame(_PIECE, len(file), 0, [piece]))
    return bytes(file)


def read_snapshot_file(data: bytes, path: str) -> Snapshot:
    """Return the snapshot that a file holds; Corruption if it is bad."""
    scan = FrameScan(data, 0)
    header: _Header | None = None
    pieces = []
    for frame in scan:
        check_version(frame, path)
        payload = data[frame.start : frame.end]
        if frame.kind == _HEADER and header is None:
            header = _decode(payload, _Header, path, frame)
        elif frame.kind == _PIECE and header is not None:
            pieces.append(payload)
        else:
            raise Corruption(_damage(path, frame.position, f"holds a frame of kind {frame.kind}"))
    state = b"".join(pieces)
    if header is None or scan.stop is not Stop.END or len(state) != header.size:
        raise Corruption(_damage(path, scan.at, f"is cut or damaged: {scan.stop.value},"))
    if header.format != _FORMAT:
        raise Corruption(_damage(path, 0, f"is no Raft snapshot but {header.format},"))
    return Snapshot(header.index, header.term, header.membership, state)


def join(snapshot: Snapshot, log: LogContents) -> Stored:
    """Return what snapshot and log say together, wherever a crash fell between the two.

    A log that does not hold the snapshot's last entry was to be replaced by it.
    """
    terms = {entry.index: entry.term for entry in log.entries} | {log.base_index: log.base_term}
    if terms.get(snapshot.index) == snapshot.term:
        return Stored(log.hard_state, snapshot, log.base_index, log.base_term, log.entries)
    return Stored(log.hard_state, snapshot, snapshot.index, snapshot.term, ())


def _decode(payload: bytes, kind: type[_Kind], path: str, frame: Frame) -> _Kind:
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except msgspec.DecodeError as error:
        raise Corruption(_damage(path, frame.position, f"holds what is not read: {error},")) from (
            error
        )


def _damage(path: str, position: int, what: str) -> str:
    return f"{path} {what} at position {position}. {NEXT_STEP}."
