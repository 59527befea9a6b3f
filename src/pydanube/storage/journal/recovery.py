"""Brings a journal back after a stop of any kind, or refuses and changes nothing."""

from msgspec import Struct

from pydanube.errors import InvalidRequest
from pydanube.runtime.files import Files
from pydanube.storage.errors import JournalDamaged, ways_apart
from pydanube.storage.journal.contents import JournalContents, JournalFile, index_name
from pydanube.storage.journal.records import Kind
from pydanube.storage.journal.survey import Survey, list_journal, survey
from pydanube.storage.journal.tail_rewrite import finish_rewrite, rewrite_tail

LOCK_NAME = "journal.lock"
_BEGINNINGS = (b"DNK1", bytes(4))


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
    await finish_rewrite(files, directory)
    found = await _survey_carefully(files, directory)
    _check_owner(found, directory, identity)
    if found.damaged:
        raise JournalDamaged(directory, found.damaged, found.contents.lost_offsets())
    while found.files and not _was_used(found.files[-1]):
        await _remove_unused(files, directory, found.files[-1])
        found = await _survey_carefully(files, directory)
    if found.files:
        await _make_durable(files, directory, found)
    await _remove_leftovers(files, directory, found.files)
    return Recovered(files=found.files, contents=found.contents)


async def _survey_carefully(files: Files, directory: str) -> Survey:
    found = await _survey(files, directory, use_indexes=True)
    # An index speaks for a file only as long as nothing is wrong with the files behind it: the
    # newest one holds the progress of all, and its being there is what makes the others finished.
    if found.damaged or (found.files and not found.files[-1].prologue_whole):
        found = await survey_all(files, directory)
    return found


async def survey_all(files: Files, directory: str, *, tells_apart: bool = False) -> Survey:
    """Read every byte that may be trusted, without any index; change nothing."""
    return await _survey(files, directory, use_indexes=False, tells_apart=tells_apart)


async def _survey(
    files: Files, directory: str, *, use_indexes: bool, tells_apart: bool = False
) -> Survey:
    listing = await list_journal(files, directory)
    return await survey(files, directory, listing, use_indexes=use_indexes, tells_apart=tells_apart)


def _check_owner(found: Survey, directory: str, identity: str) -> None:
    header = found.contents.header
    if header is not None and identity and header.identity and header.identity != identity:
        raise InvalidRequest(
            f"the journal in {directory} belongs to {header.identity}, this broker is {identity}; "
            f"{ways_apart(directory)}"
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


async def _make_durable(files: Files, directory: str, found: Survey) -> None:
    """Cut off what is torn, and write again what no frame proves to be synced."""
    newest = found.files[-1]
    if found.torn is not None:
        newest.end = found.torn.position
    if newest.last_kind == Kind.CLOSED:
        newest.end = newest.synced  # It has done its service; what was before it is synced.
    path = f"{directory}/{newest.name}"
    if await files.size(path) > newest.end - newest.start:
        await files.truncate(path, newest.end - newest.start)
    if newest.synced < newest.end:
        await rewrite_tail(files, directory, newest, newest.synced)


async def _remove_leftovers(files: Files, directory: str, listing: list[JournalFile]) -> None:
    indexes = {index_name(file.start) for file in listing}
    for name in await files.list_names(directory):
        orphaned = name.startswith("journal-") and name.endswith(".index") and name not in indexes
        if orphaned or name.endswith(".tmp"):
            await files.remove(f"{directory}/{name}")
