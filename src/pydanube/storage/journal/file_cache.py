"""How much of the journal stays in the system's file cache: its end, where readers are."""

from collections.abc import Sequence

from msgspec import Struct

from pydanube.model.ids import JournalPosition
from pydanube.observability.logging import Logger
from pydanube.runtime.files import Files
from pydanube.runtime.tasks import TaskScope
from pydanube.storage.journal.contents import JournalFile

STEP_BYTES = 16 * 1024 * 1024
"""So much is forgotten at a time, counted from a file's beginning: the system keeps files in
pieces of up to some megabytes, and forgets whole ones alone."""

_log = Logger(__name__)


class Part(Struct, frozen=True):
    """A part of one journal file, counted from the file's beginning."""

    name: str
    position: int
    length: int


def parts_between(
    files: Sequence[JournalFile], start: int, end: int
) -> tuple[list[Part], JournalPosition]:
    """Return what lies between two positions, in whole steps or up to a finished file's end.

    Also where that ends, from which one goes on the next time.
    """
    parts = []
    reached = start
    for file in files:
        first = max(start, file.start)
        last = file.end if file.end <= end else file.start + _whole_steps(end - file.start)
        if first < last:
            parts.append(Part(file.name, first - file.start, last - first))
            reached = last
    return parts, JournalPosition(reached)


def _whole_steps(length: int) -> int:
    return length // STEP_BYTES * STEP_BYTES


class FileCache:
    """Lets the system forget what lies more than `bytes_max` before the journal's durable end.

    Older messages are read from segments, so this memory is better used for what is written
    next. Who reads them from the journal nevertheless waits for the disk. None: the system
    decides alone. A failure is logged, and costs nothing but memory.
    """

    def __init__(
        self,
        files: Files,
        tasks: TaskScope,
        directory: str,
        journal_files: Sequence[JournalFile],
        bytes_max: int | None,
    ) -> None:
        self._files = files
        self._tasks = tasks
        self._directory = directory
        self._journal_files = journal_files
        self._bytes_max = bytes_max
        self._forgotten = journal_files[-1].start
        self._busy = False

    def synced(self, durable: JournalPosition) -> None:
        """Take note that the journal is durable up to here."""
        if self._bytes_max is None or self._busy:
            return
        end = durable - self._bytes_max
        if end - self._forgotten < STEP_BYTES:
            return
        parts, self._forgotten = parts_between(self._journal_files, self._forgotten, end)
        if parts:
            self._busy = True
            self._tasks.start(self._forget(parts), "journal's file cache")

    async def _forget(self, parts: Sequence[Part]) -> None:
        try:
            for part in parts:
                path = f"{self._directory}/{part.name}"
                await self._files.forget_cached(path, part.position, part.length)
        except FileNotFoundError:
            pass  # It has been deleted, and its memory is free.
        except OSError as error:
            _log.warning("the file cache keeps a part", directory=self._directory, cause=error)
        finally:
            self._busy = False
