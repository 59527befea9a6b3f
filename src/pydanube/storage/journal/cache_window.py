"""How much of the journal the system's file cache is to hold. Pure.

A journal is written once and, while readers keep up, never read: they are served from the tail
cache. Bytes that stay in the file cache for nobody take memory from everything else, and every
write has to find new memory instead of using the same over and over.
"""

from collections.abc import Sequence

from msgspec import Struct

from pydanube.model.ids import JournalPosition
from pydanube.storage.journal.contents import JournalFile, log_name

STEP_BYTES = 16 * 1024 * 1024
"""What is forgotten at a time: little enough to be quick, enough to be worth a call."""


class CachedRange(Struct, frozen=True):
    """Bytes of one journal file, by their places in it."""

    name: str
    start: int
    end: int


class CacheWindow:
    """Keeps the newest `bytes_max` bytes cached; None: never forgets any.

    Only what this process has written is forgotten, and only what is durable.
    """

    def __init__(self, bytes_max: int | None, end: JournalPosition) -> None:
        self._bytes_max = bytes_max
        self._forgotten: int = end

    def advance(self, files: Sequence[JournalFile], durable: JournalPosition) -> list[CachedRange]:
        """Return what the cache need not hold any more, now that the journal ends there."""
        if self._bytes_max is None:
            return []
        start, end = self._forgotten, durable - self._bytes_max
        if end - start < STEP_BYTES:
            return []
        self._forgotten = end
        return [
            CachedRange(
                log_name(file.start),
                max(start, file.start) - file.start,
                min(end, file.end) - file.start,
            )
            for file in files
            if file.start < end and start < file.end
        ]
