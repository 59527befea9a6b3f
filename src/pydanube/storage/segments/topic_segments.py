"""One topic's segments, as the broker that owns the topic knows them."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence

from pydanube.errors import Conflict
from pydanube.model.ids import Offset
from pydanube.storage.segments.catalog import SegmentCatalog, SegmentEntry
from pydanube.storage.segments.encoding import SegmentOrigin
from pydanube.storage.segments.planning import RetentionRule

Retention = Callable[[], RetentionRule]
"""Asked whenever retention is due: what holds for the topic at that moment."""


def keep_for_ever() -> RetentionRule:
    """Answer that nothing expires."""
    return RetentionRule()


class TopicSegments:
    """Which offsets are in segments, and in which: always what the catalogue says.

    Offsets [start, end) are; `start` moves when history expires. While nothing was ever exported,
    both are 0 and `exists` is false.
    """

    def __init__(
        self,
        origin: SegmentOrigin,
        catalog: SegmentCatalog,
        retention: Retention = keep_for_ever,
    ) -> None:
        self.origin = origin
        self.retention = retention
        self._catalog = catalog
        self._entries: list[SegmentEntry] | None = None
        self._changing = asyncio.Lock()
        """One change at a time: an export and a join must not refuse each other."""
        self.exists = False
        self.added = 0
        """Entries added since somebody last looked whether they can be joined."""
        self.removed = False
        """The topic is gone; nothing of it is worth any effort."""
        self.start = self.end = Offset(0)
        self._follow()

    def entries(self) -> Sequence[SegmentEntry]:
        """Return all entries in offset order. They are read when somebody asks first."""
        if self._entries is None:
            self._entries = self._catalog.entries(self.origin.topic, self.origin.topic_id)
        return self._entries

    def find(self, offset: Offset) -> SegmentEntry | None:
        """Return the entry that covers an offset."""
        entries = self.entries()
        number = bisect_right(entries, offset, key=lambda entry: entry.base) - 1
        if number < 0 or offset >= entries[number].end:
            return None
        return entries[number]

    async def add(self, entry: SegmentEntry) -> None:
        """Add the next entry; succeeds as well if an earlier call did so without saying it."""
        async with self._changing:
            try:
                await self._catalog.add(self.origin, entry)
            except Conflict:
                self.look_again()
                if self.find(entry.base) != entry:
                    raise
                return
            if self._entries is not None:
                self._entries.append(entry)
            self.added += 1
            self._follow()

    async def replace(self, run: Sequence[SegmentEntry], by: SegmentEntry, due_ms: int) -> None:
        """Put one entry in the place of a run, whose objects are deleted at `due_ms`."""
        async with self._changing:
            try:
                await self._catalog.replace(self.origin, run, by, due_ms)
            finally:
                self.look_again()

    async def expire(self, entries: Sequence[SegmentEntry], due_ms: int) -> None:
        """Remove the oldest entries, whose objects are deleted at `due_ms`."""
        async with self._changing:
            try:
                await self._catalog.expire(self.origin, entries, due_ms)
            finally:
                self.look_again()

    def look_again(self) -> None:
        """Forget what was read, for somebody may have changed it."""
        self._entries = None
        self._follow()

    def _follow(self) -> None:
        frontier = self._catalog.frontier(self.origin.topic, self.origin.topic_id)
        if frontier is not None and frontier.end > 0:
            self.exists = True
            self.start, self.end = frontier.start, frontier.end
