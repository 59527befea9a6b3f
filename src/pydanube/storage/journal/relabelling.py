"""Gives topics of a journal ids of their own that shared one with a later topic.

The files are written anew beside the old ones, frame by frame at the same places; only ids differ.
"""

from collections.abc import Sequence
from struct import pack_into, unpack_from

from msgspec import Struct

from pydanube.model.ids import JournalPosition, TopicId
from pydanube.runtime.clock import Clock
from pydanube.runtime.files import AppendFile, Files
from pydanube.storage.frames import Frame, FrameScan, Stop, encode_frame
from pydanube.storage.journal.contents import JournalFile
from pydanube.storage.journal.quarantine import copy_aside, remove_index
from pydanube.storage.journal.records import WITH_PRODUCERS, Kind
from pydanube.storage.journal.survey import CHUNK_BYTES

_PRODUCER_BYTES, _OWNED_BYTES, _MIRRORED_BYTES = 64, 32, 48
"""Of entries that begin with a topic id."""
_SNAPSHOT_AT, _SNAPSHOT_ENTRY_BYTES = 16, 16


class Relabel(Struct, frozen=True):
    """Up to a position, a topic id stands for another topic, which gets another id."""

    topic_id: TopicId
    until: JournalPosition
    new_id: TopicId


async def relabel(
    files: Files,
    directory: str,
    listing: Sequence[JournalFile],
    relabels: Sequence[Relabel],
    clock: Clock,
) -> list[str]:
    """Write the files anew that hold such topics; return where the untouched copies are.

    `relabels` of one id are in the order of their positions. A crash at any point leaves a journal
    on which this can be repeated: a file has the old ids, or the new ones.
    """
    copies = []
    for file in listing:
        wanted = [each for each in relabels if each.until > file.start]
        temporary = f"{directory}/{file.name}.tmp"
        if await files.exists(temporary):
            await files.remove(temporary)
        target = await files.create(temporary)
        try:
            changed = await _copy_relabelled(files, directory, file, wanted, target)
            await target.sync()
        finally:
            await target.close()
        if not changed:
            await files.remove(temporary)
            continue
        copies.append(await copy_aside(files, directory, file, clock.now_ms()))
        await remove_index(files, directory, file)
        await files.rename(temporary, f"{directory}/{file.name}")
        await files.sync_directory(directory)
    return copies


async def _copy_relabelled(
    files: Files,
    directory: str,
    file: JournalFile,
    relabels: Sequence[Relabel],
    target: AppendFile,
) -> bool:
    path = f"{directory}/{file.name}"
    size = await files.size(path)
    changed = False
    at, needed = 0, 0
    while at < size:
        data = await files.read(path, at, min(max(CHUNK_BYTES, needed), size - at))
        scan = FrameScan(data, file.start + at) if needed >= 0 else None
        if scan is None:
            await target.append([data])  # Behind what is torn, nothing is a frame for certain.
            at += len(data)
            continue
        for frame in scan:
            payload = data[frame.start : frame.end]
            renamed = _renamed(payload, frame, relabels)
            changed = changed or renamed != payload
            await target.append(
                encode_frame(
                    frame.kind,
                    frame.position,
                    frame.durable,
                    [renamed],
                    version=frame.version,
                    flags=frame.flags,
                )
            )
        at += scan.at
        needed = scan.needed
        runs_on = scan.stop is Stop.INCOMPLETE and at + needed <= size
        if scan.stop is not Stop.END and not runs_on:
            needed = -1
    return changed


def _renamed(payload: bytes, frame: Frame, relabels: Sequence[Relabel]) -> bytes:
    places = _ids_in(payload, frame)
    if not places:
        return payload
    new: bytearray | None = None
    for place in places:
        (topic_id,) = unpack_from("<Q", payload, place)
        for each in relabels:
            if each.topic_id == topic_id and frame.position < each.until:
                new = new or bytearray(payload)
                pack_into("<Q", new, place, each.new_id)
                break
    return bytes(new) if new is not None else payload


def _ids_in(payload: bytes, frame: Frame) -> Sequence[int]:
    match frame.kind:
        case Kind.BATCH:
            return (0,)
        case Kind.SNAPSHOT:
            (count,) = unpack_from("<I", payload, 8)
            end = _SNAPSHOT_AT + count * _SNAPSHOT_ENTRY_BYTES
            return range(_SNAPSHOT_AT, end, _SNAPSHOT_ENTRY_BYTES)
        case Kind.PRODUCERS:
            return range(0, len(payload), _PRODUCER_BYTES)
        case Kind.OWNED:
            return range(0, len(payload), _OWNED_BYTES)
        case Kind.MIRRORED:
            if frame.flags & WITH_PRODUCERS:
                return (0, *range(_MIRRORED_BYTES, len(payload), _PRODUCER_BYTES))
            return range(0, len(payload), _MIRRORED_BYTES)
        case _:
            return ()
