"""Brings a journal back after a stop of any kind, or refuses and changes nothing."""

import msgspec
from msgspec import Struct

from pydanube.errors import InvalidRequest
from pydanube.model.ids import JournalPosition
from pydanube.runtime.files import Files, read_whole
from pydanube.storage.errors import JournalDamaged
from pydanube.storage.journal.contents import JournalContents, JournalFile, index_name
from pydanube.storage.journal.survey import Survey, list_journal, survey

LOCK_NAME = "journal.lock"
STOPPED_NAME = "journal.stopped"
_BEGINNINGS = (b"DNK1", bytes(4))


class Stopped(Struct, frozen=True):
    """Left behind by a writer whose file failed: what it had not synced must not be trusted.

    After a failed sync the operating system may show bytes that never reach the disk, and call
    the next sync a success. Nothing behind `durable` was acknowledged as synced, so it is cut off.
    """

    durable: JournalPosition
    cause: str


class Recovered(Struct, frozen=True, kw_only=True):
    """A journal that is whole, and durable as far as it reaches."""

    files: list[JournalFile]
    """Oldest first; the last one may be continued. Empty if there is no journal yet."""
    contents: JournalContents


async def recover(files: Files, directory: str, identity: str) -> Recovered:
    """Read the journal in a directory, cut a torn tail off, and make what is left durable.

    Raises JournalDamaged when synced bytes are bad, and InvalidRequest when the files belong to
    another broker, another journal or a later version; the directory is then left as it is.
    """
    found = await _survey_carefully(files, directory)
    _check_owner(found, directory, identity)
    if found.damaged:
        raise JournalDamaged(directory, found.damaged, found.contents.lost_offsets())
    while found.files and not _was_used(found.files[-1]):
        await _remove_unused(files, directory, found.files[-1])
        found = await _survey_carefully(files, directory)
    if found.files:
        await _cut_and_sync(files, directory, found)
    await _remove_leftovers(files, directory, found.files)
    # Also when nothing was removed: the newest file's name may not be durable yet.
    await files.sync_directory(directory)
    return Recovered(files=found.files, contents=found.contents)


async def _survey_carefully(files: Files, directory: str) -> Survey:
    found = await _survey(files, directory, use_indexes=True)
    # An index speaks for a file only as long as nothing is wrong with the files behind it: the
    # newest one holds the progress of all, and its being there is what makes the others finished.
    if found.damaged or (found.files and not found.files[-1].prologue_whole):
        found = await survey_all(files, directory)
    return found


async def survey_all(files: Files, directory: str) -> Survey:
    """Read every byte that may be trusted, without any index; change nothing."""
    return await _survey(files, directory, use_indexes=False)


async def _survey(files: Files, directory: str, *, use_indexes: bool) -> Survey:
    listing = await list_journal(files, directory)
    stopped = await _read_stopped(files, directory)
    if stopped is not None and listing and stopped.durable < listing[-1].end:
        listing[-1].end = max(stopped.durable, listing[-1].start)
    return await survey(files, directory, listing, use_indexes=use_indexes)


async def _read_stopped(files: Files, directory: str) -> Stopped | None:
    path = f"{directory}/{STOPPED_NAME}"
    if not await files.exists(path):
        return None
    try:
        return msgspec.json.decode(await read_whole(files, path), type=Stopped)
    except msgspec.MsgspecError:
        return None  # Its writer did not get that far.


def _check_owner(found: Survey, directory: str, identity: str) -> None:
    header = found.contents.header
    if header is not None and identity and header.identity and header.identity != identity:
        raise InvalidRequest(
            f"the journal in {directory} belongs to {header.identity}, this broker is {identity}; "
            "give the broker its own directory (storage.local_wal_root)"
        )


def _was_used(file: JournalFile) -> bool:
    """Tell whether anything but a prologue can have been written to the newest file."""
    return file.prologue_whole or file.has_hole


async def _remove_unused(files: Files, directory: str, file: JournalFile) -> None:
    path = f"{directory}/{file.name}"
    beginning = await files.read(path, 0, 4)
    if not any(known.startswith(beginning) for known in _BEGINNINGS):
        raise InvalidRequest(
            f"{path} is not a journal file, though it has the name of one; move it elsewhere"
        )
    await files.remove(path)
    await files.sync_directory(directory)


async def _cut_and_sync(files: Files, directory: str, found: Survey) -> None:
    newest = found.files[-1]
    path = f"{directory}/{newest.name}"
    if found.torn is not None:
        newest.end = found.torn.position
    length = newest.end - newest.start
    if await files.size(path) > length:
        await files.truncate(path, length)
    # A process that was killed may have left bytes that are readable and not on disk yet.
    file = await files.open_append(path)
    try:
        await file.sync()
    finally:
        await file.close()


async def _remove_leftovers(files: Files, directory: str, listing: list[JournalFile]) -> None:
    indexes = {index_name(file.start) for file in listing}
    for name in await files.list_names(directory):
        orphaned = name.startswith("journal-") and name.endswith(".index") and name not in indexes
        if orphaned or name.endswith(".tmp") or name == STOPPED_NAME:
            await files.remove(f"{directory}/{name}")
