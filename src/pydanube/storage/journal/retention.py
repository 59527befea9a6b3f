"""Decides which journal files may go. Pure."""

from collections.abc import Sequence
from enum import Enum

from msgspec import Struct

from pydanube.model.ids import JournalPosition


class Use(Enum):
    """What a finished journal file is still good for."""

    NEEDED = "it holds messages that are nowhere else"
    EXPORTED = "all its messages are in segments, too"
    NONE = "its topics are gone"


class FileUse(Struct, frozen=True, kw_only=True):
    """A journal file, and what it is still good for."""

    start: JournalPosition
    size: int
    finished_ms: int
    use: Use


class Keeping(Struct, frozen=True, kw_only=True):
    """How long files stay that are exported: a local copy is read faster than a segment."""

    time_ms: int
    total_bytes: int
    """Exported files go, oldest first, until the journal has no more than this."""


def plan_deletions(
    files: Sequence[FileUse], total: int, keeping: Keeping, now_ms: int
) -> list[JournalPosition]:
    """Return the starts of the files to delete, oldest first; delete them in that order.

    `files` are finished ones from the oldest on; the whole journal has `total` bytes. A file goes
    when every older one goes too, and either no topic that exists has a batch in it, or all its
    batches are exported and time or space has come. Progress needs no file: each later one begins
    with a snapshot of it.
    """
    deletable = []
    for file in files:
        outdated = now_ms - file.finished_ms >= keeping.time_ms or total > keeping.total_bytes
        if file.use is Use.NEEDED or (file.use is Use.EXPORTED and not outdated):
            break
        deletable.append(file.start)
        total -= file.size
    return deletable
