"""What keeps the segment store tidy: expired and tiny segments, deleted topics, stray objects."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from pydanube.errors import DanubeError
from pydanube.model.ids import TopicId
from pydanube.observability.counts import SegmentMetrics
from pydanube.observability.logging import Logger
from pydanube.runtime.clock import Clock, Timer
from pydanube.runtime.tasks import Failed, TaskScope
from pydanube.storage.segments.catalog import Retired, SegmentCatalog, directory_of, epoch_of
from pydanube.storage.segments.compaction import Compaction
from pydanube.storage.segments.exporter import Exporter, TopicExport
from pydanube.storage.segments.leftovers import Journaled, plan_sweep
from pydanube.storage.segments.object_store import ObjectStore
from pydanube.storage.segments.planning import plan_expiry
from pydanube.storage.segments.topic_segments import TopicSegments
from pydanube.storage.segments.uploader import Uploader

_SWEEP_PAUSE_SECONDS = 0.1

_log = Logger(__name__)


class Upkeep:
    """Goes round every few minutes, and when something is retired. A failure costs one round.

    What it deletes was removed from the catalogue before, or never got there: it deletes nothing
    that a reader of the catalogue could still ask for, nor the last object that holds a message.
    """

    def __init__(
        self,
        store: ObjectStore,
        catalog: SegmentCatalog,
        exporter: Exporter,
        uploader: Uploader,
        compaction: Compaction,
        clock: Clock,
        metrics: SegmentMetrics,
        *,
        interval_seconds: float,
        journaled: Callable[[TopicId], Journaled],
        on_failure: Failed,
        after_round: Callable[[], None],
    ) -> None:
        self._journaled = journaled
        self._store = store
        self._catalog = catalog
        self._exporter = exporter
        self._uploader = uploader
        self._compaction = compaction
        self._clock = clock
        self._metrics = metrics
        self._interval_seconds = interval_seconds
        self._after_round = after_round
        self._tasks = TaskScope(on_failure)
        self._unswept: deque[TopicSegments] = deque()
        self._wakeup = asyncio.Event()
        self._timer: Timer | None = None

    def start(self) -> None:
        """Go round until `stop`."""
        self._tasks.start(self._run(), "segment upkeep")

    async def stop(self) -> None:
        """Stop where it is."""
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()

    def wake(self) -> None:
        """Go round soon."""
        self._wakeup.set()

    def sweep_later(self, segments: TopicSegments) -> None:
        """Look, some time, for objects that an earlier life of the broker left behind."""
        self._unswept.append(segments)
        if len(self._unswept) == 1:
            self.wake()

    async def _run(self) -> None:
        while True:
            await self.go_round()
            self._timer = self._clock.call_later(self._interval_seconds, self.wake)
            await self._wakeup.wait()
            self._timer.cancel()
            self._wakeup.clear()

    async def go_round(self) -> None:
        """Do all there is to do once."""
        for topic in self._exporter.topics():
            await self._tolerate(self._expire(topic), "history did not expire")
            await self._tolerate(self._compact(topic), "small segments were not joined")
        await self._tolerate(self._delete_retired(), "retired objects were not deleted")
        while self._unswept:
            segments = self._unswept.popleft()
            await self._tolerate(self._sweep(segments), "a directory was not swept")
            # Nobody waits for this, and each costs the store a listing.
            await self._clock.sleep(_SWEEP_PAUSE_SECONDS)
        self._after_round()

    async def _tolerate(self, work: Awaitable[None], what: str) -> None:
        try:
            await work
        except DanubeError as error:
            _log.warning(f"{what}; the next round tries again", cause=str(error))

    async def _expire(self, topic: TopicExport) -> None:
        rule = topic.segments.retention()
        if rule.time_ms is None and rule.bytes_max is None:
            return
        now_ms = self._clock.now_ms()
        expired = plan_expiry(topic.segments.entries(), rule, now_ms)
        if expired:
            await topic.segments.expire(expired, due_ms=now_ms)
            self._metrics.expired += len(expired)
            _log.info(
                "history expired",
                topic=topic.segments.origin.topic,
                segments=len(expired),
                first_offset=topic.segments.start,
            )

    async def _compact(self, topic: TopicExport) -> None:
        while not topic.segments.removed and await self._compaction.compact(topic.segments):
            pass

    async def _delete_retired(self) -> None:
        now_ms = self._clock.now_ms()
        for retired in self._catalog.retired():
            if retired.due_ms > now_ms:
                break
            if retired.key.endswith("/"):
                await self._delete_directory(retired)
            else:
                await self._store.delete(retired.key)
                await self._catalog.forget(retired)

    async def _delete_directory(self, retired: Retired) -> None:
        topic_id = TopicId(int(retired.key.rstrip("/").rpartition("/")[2]))
        if self._exporter.is_busy(topic_id):
            return  # What it is writing has to go, too; the next round comes after it.
        for key in await self._listed(retired.key):
            await self._store.delete(key)
        await self._catalog.forget(retired)
        _log.info("the segments of a deleted topic are gone", directory=retired.key)

    async def _sweep(self, segments: TopicSegments) -> None:
        origin = segments.origin
        found = await self._listed(directory_of(origin.topic, origin.topic_id))
        # All at one moment: what is uploaded and neither known nor in flight now never will be.
        entries = self._catalog.entries(origin.topic, origin.topic_id)
        wanted = {entry.key for entry in entries}
        wanted.update(each.key for each in self._catalog.retired())
        wanted.update(self._uploader.in_flight)
        if any((epoch_of(key) or 0) > origin.epoch for key in found):
            return  # Somebody else owns the topic by now, and sweeps it.
        journaled = self._journaled(origin.topic_id)
        going, staying = plan_sweep(found, wanted, entries, segments.start, journaled)
        for key in going:
            await self._store.delete(key)
            _log.info("an object without an entry was deleted", key=key)
        if staying:
            _log.warning(
                "objects without an entry hold messages that are nowhere else, and stay; stop the "
                "broker and let danube recover look at them",
                topic=origin.topic,
                objects=len(staying),
                first=staying[0],
            )

    async def _listed(self, directory: str) -> list[str]:
        started = self._clock.monotonic_seconds()
        keys = await self._store.list(directory)
        self._metrics.listed(self._clock.monotonic_seconds() - started)
        return keys
