"""Work on finished journal files that nobody waits for: writing indexes, deleting files."""

import asyncio
from collections import deque
from collections.abc import Sequence

from pydanube.model.ids import JournalPosition
from pydanube.observability.counts import JournalMetrics
from pydanube.observability.logging import Logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.files import Files, write_atomically
from pydanube.runtime.tasks import TaskScope
from pydanube.storage.journal.contents import (
    JournalContents,
    JournalFile,
    index_name,
    log_name,
)
from pydanube.storage.journal.index_file import encode_index
from pydanube.storage.journal.retention import FileUse, Keeping, Use, plan_deletions

_log = Logger(__name__)
# Indexes only speed a restart up: rather none than many in memory while the disk is slow.
_INDEXES_WAITING_MAX = 4


class Housekeeping:
    """Does one thing at a time, in the background. A failure costs an index, or keeps a file.

    Files are deleted from the front, each removal durable before the next, so that a crash never
    leaves a gap between files. `needed_from` is where the oldest file begins that must not go.
    """

    def __init__(
        self,
        files: Files,
        clock: Clock,
        tasks: TaskScope,
        directory: str,
        journal_files: list[JournalFile],
        contents: JournalContents,
        keeping: Keeping,
        metrics: JournalMetrics,
    ) -> None:
        self.needed_from = journal_files[0].start
        self._files = files
        self._clock = clock
        self._tasks = tasks
        self._directory = directory
        self._journal_files = journal_files
        self._contents = contents
        self._keeping = keeping
        self._metrics = metrics
        self._indexes: deque[tuple[JournalPosition, Sequence[bytes]]] = deque()
        self._scheduled = False
        self._stopped = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def needed_bytes(self) -> int:
        """How much of the journal must stay, the file being written included."""
        return self._journal_files[-1].end - self.needed_from

    def file_finished(self, file: JournalFile) -> None:
        """Index the file, which no batch follows yet, and delete what may go."""
        file.finished_ms = self._clock.now_ms()
        if not file.has_hole and len(self._indexes) < _INDEXES_WAITING_MAX:
            self._indexes.append((file.start, encode_index(self._contents, file)))
        self.look_around()

    def look_around(self) -> None:
        """Do what there is to do, soon."""
        if not self._scheduled and (self._indexes or self._deletable()):
            self._scheduled = True
            self._tasks.start(self._work(), "journal housekeeping")

    async def stop(self) -> None:
        """Begin nothing more, and wait until what was begun has ended."""
        self._stopped = True
        await self._idle.wait()

    async def _work(self) -> None:
        self._idle.clear()
        try:
            while not self._stopped and (self._indexes or self._deletable()):
                if self._indexes:
                    start, parts = self._indexes.popleft()
                    name = index_name(start)
                    await write_atomically(self._files, self._directory, name, b"".join(parts))
                else:
                    await self._delete(self._deletable()[0])
        except OSError as error:
            _log.warning("journal housekeeping failed", directory=self._directory, cause=error)
        finally:
            self._scheduled = False
            self._idle.set()

    def _deletable(self) -> list[JournalPosition]:
        oldest, newest = self._journal_files[0], self._journal_files[-1]
        self.needed_from = newest.start
        uses = []
        for file in self._journal_files[:-1]:
            use = self._use_of(file)
            if use is Use.NEEDED:
                self.needed_from = file.start
                break  # None behind it can go, whatever is in them.
            uses.append(
                FileUse(
                    start=file.start,
                    size=file.end - file.start,
                    finished_ms=file.finished_ms,
                    use=use,
                )
            )
        total = newest.end - oldest.start
        return plan_deletions(uses, total, self._keeping, self._clock.now_ms())

    def _use_of(self, file: JournalFile) -> Use:
        topics = self._contents.topics
        if file.waiting is None:
            file.waiting = set(file.topics)
        done = []
        for topic_id in file.waiting:
            index = topics.get(topic_id)
            if index is not None and not index.is_exported_before(file.end):
                break
            done.append(topic_id)
        # Nothing is added to a finished file: whoever is found done need not be asked again.
        file.waiting.difference_update(done)
        if file.waiting:
            return Use.NEEDED
        return Use.NONE if file.topics.isdisjoint(topics) else Use.EXPORTED

    async def _delete(self, start: JournalPosition) -> None:
        # First out of memory: whoever looks from now on reads segments.
        file = self._journal_files[0]
        for topic_id in file.topics:
            index = self._contents.topics.get(topic_id)
            if index is not None:
                index.forget_before(file.end)
        for name in (index_name(start), log_name(start)):
            path = f"{self._directory}/{name}"
            # Not there if this was begun before and failed, as for want of a descriptor.
            if await self._files.exists(path):
                await self._files.remove(path)
        await self._files.sync_directory(self._directory)
        self._journal_files.pop(0)
        self._metrics.deleted("retention")
        _log.info("journal file deleted", directory=self._directory, file=log_name(start))
