"""What `danube journal` finds in a stopped broker's journal, and does about it."""

from msgspec import Struct

from pydanube.errors import Conflict, NotFound
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.files import Files
from pydanube.runtime.system_files import SystemFiles
from pydanube.storage.errors import DamagedRange
from pydanube.storage.journal.quarantine import quarantine
from pydanube.storage.journal.recovery import LOCK_NAME, survey_all
from pydanube.storage.journal.survey import list_journal


class JournalReport(Struct, frozen=True, kw_only=True):
    """The state of a journal. A torn tail is normal after a crash: it was never acknowledged."""

    directory: str
    files: int
    bytes: int
    topics: int
    torn_tail_bytes: int
    damaged: list[DamagedRange]
    lost: list[str]
    ids_given_twice: list[int]
    """Of topics that share an id with a later one; `danube recover` tells them apart."""


class GivenUp(Struct, frozen=True, kw_only=True):
    """What was given up, and where the untouched copies are."""

    directory: str
    lost: list[str]
    copies: list[str]
    damaged: list[DamagedRange]


async def survey_journal(data_dir: str) -> JournalReport:
    """Read the whole journal; the broker must not run."""
    files = SystemFiles()
    directory = await _journal_directory(files, data_dir)
    lock = await files.lock(f"{directory}/{LOCK_NAME}")
    if lock is None:
        raise Conflict(f"the journal in {directory} is in use; stop the broker first")
    try:
        found = await survey_all(files, directory, tells_apart=True)
    finally:
        await lock.release()
    torn = 0 if found.torn is None else found.torn.file.end - found.torn.position
    return JournalReport(
        directory=directory,
        files=len(found.files),
        bytes=sum(file.end - file.start for file in found.files),
        topics=len(found.contents.topics),
        torn_tail_bytes=torn,
        damaged=found.damaged,
        lost=[lost.describe() for lost in found.contents.lost_offsets()] if found.damaged else [],
        ids_given_twice=sorted({each.topic_id for each in found.contents.earlier or ()}),
    )


async def give_up_damage(directory: str) -> GivenUp:
    """Copy damaged files aside and replace their damaged bytes by holes."""
    report = await quarantine(SystemFiles(), directory, SystemClock())
    return GivenUp(
        directory=directory,
        lost=[lost.describe() for lost in report.lost],
        copies=list(report.copies),
        damaged=list(report.damaged),
    )


async def _journal_directory(files: Files, data_dir: str) -> str:
    """Return where the journal lies: in `wal` below a standalone broker's directory, or here."""
    for directory in (f"{data_dir.rstrip('/')}/wal", data_dir):
        if await list_journal(files, directory):
            return directory
    raise NotFound(f"there is no journal in {data_dir}")
