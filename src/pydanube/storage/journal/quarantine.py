"""Gives damaged bytes of a stopped broker's journal up, on an operator's explicit order."""

from collections.abc import Iterator

from msgspec import Struct

from pydanube.errors import Conflict
from pydanube.model.ids import JournalPosition
from pydanube.runtime.clock import Clock
from pydanube.runtime.files import AppendFile, Files
from pydanube.storage.errors import DamagedRange, LostOffsets
from pydanube.storage.frames import PAYLOAD_BYTES_MAX, PREFIX_BYTES, encode_frame
from pydanube.storage.journal.contents import JournalFile, index_name
from pydanube.storage.journal.records import Kind
from pydanube.storage.journal.recovery import LOCK_NAME, survey_all
from pydanube.storage.journal.survey import CHUNK_BYTES, Survey
from pydanube.storage.journal.tail_rewrite import finish_rewrite

QUARANTINE_DIRECTORY = "quarantine"


class QuarantineReport(Struct, frozen=True, kw_only=True):
    """What was given up, and where the untouched copies are."""

    damaged: tuple[DamagedRange, ...]
    lost: tuple[LostOffsets, ...]
    copies: tuple[str, ...]


async def quarantine(files: Files, directory: str, clock: Clock) -> QuarantineReport:
    """Copy each damaged file aside and replace its damaged bytes by holes.

    Afterwards the broker starts again, without the messages that were there; no offset is ever
    given twice. Nothing is done to a journal without damage. A crash at any point leaves a
    journal on which this can be repeated.
    """
    lock = await files.lock(f"{directory}/{LOCK_NAME}")
    if lock is None:
        raise Conflict(f"the journal in {directory} is in use; stop the broker first")
    try:
        await finish_rewrite(files, directory)
        found = await survey_all(files, directory, tells_apart=True)
        copies = []
        for number, file in enumerate(found.files):
            damaged = [part for part in found.damaged if part.file_name == file.name]
            if damaged:
                copies.append(await copy_aside(files, directory, file, clock.now_ms()))
                await _rewrite(files, directory, file, damaged, _end_of(found, number))
        return QuarantineReport(
            damaged=tuple(found.damaged),
            lost=tuple(found.contents.lost_offsets()) if found.damaged else (),
            copies=tuple(copies),
        )
    finally:
        await lock.release()


def _end_of(found: Survey, number: int) -> JournalPosition:
    """Return where a file must end: where the next one starts, or as it is."""
    if number + 1 < len(found.files):
        return found.files[number + 1].start
    return found.files[number].end


async def copy_aside(files: Files, directory: str, file: JournalFile, now_ms: int) -> str:
    """Keep a file as it is, in the directory `quarantine`; return where."""
    aside = f"{directory}/{QUARANTINE_DIRECTORY}"
    await files.make_directory(aside)
    path = f"{aside}/{file.name}.{now_ms}"
    while await files.exists(path):
        now_ms += 1
        path = f"{aside}/{file.name}.{now_ms}"
    copy = await files.create(path)
    try:
        size = await files.size(f"{directory}/{file.name}")
        await _copy(files, f"{directory}/{file.name}", 0, size, copy)
        await copy.sync()
    finally:
        await copy.close()
    await files.sync_directory(aside)
    return path


async def _rewrite(
    files: Files,
    directory: str,
    file: JournalFile,
    damaged: list[DamagedRange],
    end: JournalPosition,
) -> None:
    """Put a file in place that has every good frame where it was, and holes between them."""
    path = f"{directory}/{file.name}"
    await remove_index(files, directory, file)
    temporary = f"{path}.tmp"
    if await files.exists(temporary):
        await files.remove(temporary)  # Left behind by a crash before the rename.
    target = await files.create(temporary)
    try:
        at = file.start
        for part in damaged:
            await _copy(files, path, at - file.start, part.start - file.start, target)
            at = min(part.end, end)
            for hole in _holes(part.start, at):
                await target.append(hole)
        await _copy(files, path, at - file.start, end - file.start, target)
        await target.sync()
    finally:
        await target.close()
    await files.rename(temporary, path)
    await files.sync_directory(directory)


async def remove_index(files: Files, directory: str, file: JournalFile) -> None:
    """Remove a file's index durably, before another file takes its name.

    The new file has the old one's size, but not its batches.
    """
    path = f"{directory}/{index_name(file.start)}"
    if await files.exists(path):
        await files.remove(path)
        await files.sync_directory(directory)


async def _copy(files: Files, path: str, start: int, end: int, target: AppendFile) -> None:
    while start < end:
        data = await files.read(path, start, min(CHUNK_BYTES, end - start))
        if not data:
            return
        await target.append([data])
        start += len(data)


def _holes(start: int, end: int) -> Iterator[list[bytes]]:
    """Yield frames that fill [start, end) exactly."""
    while start < end:
        size = min(end - start, PREFIX_BYTES + PAYLOAD_BYTES_MAX)
        if 0 < end - start - size < PREFIX_BYTES:
            size -= PREFIX_BYTES  # What is left must have room for a frame of its own.
        yield encode_frame(Kind.HOLE, start, start, [bytes(size - PREFIX_BYTES)])
        start += size
