"""The file of a backup: what the metadata were at one revision, as docs/formats/backup.md has it.

Pure. Messages are not in it; the manifest says how far the segments reach that it names.
"""

from typing import Final

import msgspec
from msgspec import Struct

from pydanube.errors import Corruption, NotSupported
from pydanube.metadata import keys
from pydanube.metadata.commands import MIB, Leap, RevokeLease, Transact
from pydanube.metadata.restores import BLOCKS, REVISIONS, Restore, encode_restore
from pydanube.metadata.state_machine import StateMachine
from pydanube.metadata.store import Put
from pydanube.storage.frames import FrameScan, Stop, encode_frame

BACKUP_FORMAT: Final = 1
_MANIFEST, _PIECE = 1, 2
_PIECE_BYTES = 16 * MIB


class TopicHistory(Struct, frozen=True, kw_only=True):
    """A reliable topic, and which of its messages the backup knows to be in segments."""

    topic: str
    id: int
    start: int
    end: int
    """Offsets [start, end); what is newer is in journals alone."""


class Manifest(Struct, frozen=True, kw_only=True):
    """What a backup is of."""

    format: int = BACKUP_FORMAT
    cluster: str
    broker: int
    """Who made it."""
    shared_by: str = ""
    """`raft` if a cluster agreed on it; empty for a broker alone."""
    revision: int
    created_ms: int
    segments: str
    """Where the segments lie that it names."""
    topics: list[TopicHistory]
    subscriptions: int
    best_effort_topics: int
    state_bytes: int


def encode_backup(manifest: Manifest, state: bytes) -> bytes:
    """Return the bytes of a backup's file."""
    file = bytearray(b"".join(encode_frame(_MANIFEST, 0, 0, [msgspec.json.encode(manifest)])))
    for start in range(0, len(state), _PIECE_BYTES):
        piece = state[start : start + _PIECE_BYTES]
        file += b"".join(encode_frame(_PIECE, len(file), 0, [piece]))
    return bytes(file)


def decode_backup(data: bytes, path: str) -> tuple[Manifest, bytes]:
    """Read a backup and check every byte; Corruption if it is damaged or none."""
    scan = FrameScan(data, 0)
    manifest: Manifest | None = None
    pieces = []
    for frame in scan:
        payload = data[frame.start : frame.end]
        if frame.kind == _MANIFEST and manifest is None:
            manifest = decode_manifest(payload, path)
        elif frame.kind == _PIECE and manifest is not None:
            pieces.append(payload)
        else:
            raise Corruption(f"{path} is no backup: it holds a frame of kind {frame.kind}")
    if manifest is None:
        raise Corruption(f"{path} is no backup of PyDanube's metadata, or its beginning is damaged")
    state = b"".join(pieces)
    if scan.stop is not Stop.END or len(state) != manifest.state_bytes:
        raise Corruption(
            f"the backup {path} is damaged or cut at byte {scan.at}; use another one. Nothing was "
            "changed"
        )
    machine = StateMachine()
    machine.restore(state)
    if machine.revision != manifest.revision:
        raise Corruption(f"the backup {path} contradicts itself; use another one")
    return manifest, state


def decode_manifest(payload: bytes, path: str) -> Manifest:
    """Read a manifest; NotSupported if a later version wrote it."""
    try:
        manifest = msgspec.json.decode(payload, type=Manifest)
    except msgspec.MsgspecError as error:
        raise Corruption(f"{path} is no backup: {error}") from error
    if manifest.format > BACKUP_FORMAT:
        raise NotSupported(
            f"{path} has backup format {manifest.format}, this version reads {BACKUP_FORMAT}; use "
            "the version that wrote it, or a later one"
        )
    return manifest


def restored_state(state: bytes, now_ms: int) -> bytes:
    """Return the state to go on with: far behind everything that was given since the copy.

    Nobody holds a lease of it any more. Whoever opens it compares journals and segments first.
    """
    machine = StateMachine()
    machine.restore(state)
    present = machine.revision
    for lease in machine.leases():
        machine.apply(RevokeLease(lease))
    note = Restore(revision=present, goes_on_behind=present + REVISIONS, time_ms=now_ms)
    machine.apply(Transact((), (Put(keys.restore(present), encode_restore(note)),)))
    counters = tuple((key, number + BLOCKS) for key, number in machine.counters().items())
    machine.apply(Leap(note.goes_on_behind, counters))
    return machine.snapshot()
