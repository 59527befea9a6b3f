"""The segment tier of a broker: store, catalogue, exports and reads behind one door."""

import asyncio
from collections.abc import Callable

from msgspec import Struct

from pydanube.errors import DanubeError, InvalidRequest
from pydanube.model.ids import Offset, TopicId
from pydanube.observability.counts import SegmentMetrics
from pydanube.observability.logging import Logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.tasks import Failed, TaskScope
from pydanube.runtime.threads import WorkerThreads
from pydanube.storage.config import StorageConfig
from pydanube.storage.errors import StoreFailed
from pydanube.storage.segments.catalog import SegmentCatalog
from pydanube.storage.segments.compaction import Compaction
from pydanube.storage.segments.encoding import SegmentOrigin
from pydanube.storage.segments.export_job import ExportJob
from pydanube.storage.segments.exporter import Exporter
from pydanube.storage.segments.leftovers import Journaled
from pydanube.storage.segments.object_store import ObjectStore
from pydanube.storage.segments.planning import ExportLimits
from pydanube.storage.segments.reader import SegmentReader
from pydanube.storage.segments.tail_export import Batches, ForeignTail
from pydanube.storage.segments.topic_segments import Retention, TopicSegments, keep_for_ever
from pydanube.storage.segments.upkeep import Upkeep
from pydanube.storage.segments.uploader import Uploader

EXPORTS_MAX = 16
_WORKERS = 2
_SEGMENTS_IN_MEMORY = 2
"""Exports under way hold at most as much as this many full segments."""

_log = Logger(__name__)


class SegmentPlace(Struct, frozen=True, kw_only=True):
    """What a broker gives its storage so that there are segments."""

    store: ObjectStore
    catalog: SegmentCatalog
    randomness: Randomness
    metrics: SegmentMetrics


class SegmentTier:
    """Everything about segments that lives as long as the broker does."""

    def __init__(
        self,
        place: SegmentPlace,
        config: StorageConfig,
        clock: Clock,
        *,
        short_of_space: Callable[[], bool],
        journaled: Callable[[TopicId], Journaled],
        on_failure: Failed,
        after_round: Callable[[], None],
    ) -> None:
        settings = config.segments
        self.store = place.store
        self.catalog = place.catalog
        self.metrics = place.metrics
        self._clock = clock
        self._workers = WorkerThreads("segments", _WORKERS)
        self._reads = TaskScope(on_failure)
        self.reader = SegmentReader(
            place.store, self._workers, self._reads, place.metrics, settings.read_cache_bytes_max
        )
        self._uploader = Uploader(place.store, clock, place.randomness, place.metrics)
        self.exporter = Exporter(
            self._uploader,
            self._workers,
            clock,
            place.randomness,
            ExportLimits(
                seal_bytes=settings.seal_bytes,
                seal_ms=settings.seal_seconds * 1000,
                jobs_max=EXPORTS_MAX,
                bytes_max=settings.seal_bytes * _SEGMENTS_IN_MEMORY,
            ),
            metrics=place.metrics,
            on_failure=on_failure,
            short_of_space=short_of_space,
        )
        self.compaction = Compaction(
            place.store,
            self.reader,
            self._uploader,
            self._workers,
            clock,
            place.metrics,
            settings.seal_bytes,
        )
        self.upkeep = Upkeep(
            place.store,
            place.catalog,
            self.exporter,
            self._uploader,
            self.compaction,
            clock,
            place.metrics,
            journaled=journaled,
            interval_seconds=config.local_retention.check_interval_minutes * 60.0,
            on_failure=on_failure,
            after_round=after_round,
        )

    async def probe(self) -> None:
        """See whether the store keeps its word, before anything is entrusted to it.

        Raises InvalidRequest for what an operator must mend. A store that may come back is tried
        again later, for the journal holds everything until then.
        """
        try:
            await self._uploader.probe()
        except StoreFailed as error:
            if error.problem.needs_operator:
                raise InvalidRequest(str(error)) from error
            self._uploader.failure = error
            _log.warning(
                "the segment store does not work yet; messages stay in the journal",
                cause=str(error),
            )

    def start(self) -> None:
        """Begin to export."""
        self.exporter.start()

    async def stop(self) -> None:
        """End everything that is under way."""
        await self.upkeep.stop()
        await self.exporter.stop()
        await self._reads.close()
        await self.store.close()
        self._workers.stop()

    @property
    def failure(self) -> StoreFailed | None:
        """Why the store takes nothing at the moment."""
        return self._uploader.failure

    def topic(
        self,
        topic_id: TopicId,
        name: str,
        epoch: int,
        retention: Retention | None,
    ) -> TopicSegments:
        """Return what the catalogue says about a topic."""
        origin = SegmentOrigin(topic=name, topic_id=topic_id, epoch=epoch)
        segments = TopicSegments(origin, self.catalog, retention or keep_for_ever)
        self.upkeep.sweep_later(segments)
        return segments

    async def seal_all(self, seconds_max: float) -> bool:
        """Export everything within that time; tell whether that succeeded."""
        deadline = self._clock.monotonic_seconds() + seconds_max
        topics = self.exporter.topics()
        for topic in topics:
            # All at once, and then wait for each.
            topic.seals += 1
        self.exporter.wake()
        try:
            for topic in topics:
                left = deadline - self._clock.monotonic_seconds()
                async with asyncio.timeout(max(left, 0.0)):
                    await self.exporter.seal(topic.topic_id)
        except (TimeoutError, DanubeError) as error:
            _log.warning(
                "not all messages are in segments; the rest is in this broker's journal",
                cause=str(error) or f"not done within {seconds_max} s",
            )
            return False
        finally:
            for topic in topics:
                topic.seals -= 1
        return True

    async def export_tail(self, origin: SegmentOrigin, start: Offset, batches: Batches) -> Offset:
        """Bring messages of another broker's journal into segments; return where they end now."""
        segments = TopicSegments(origin, self.catalog)
        begin = segments.end if segments.exists else start
        source = ForeignTail(origin.topic, begin, batches)
        while await source.fill(self.exporter.limits.seal_bytes):
            job = ExportJob(
                source,
                segments,
                self._uploader,
                self._workers,
                self._clock,
                self.exporter.new_backoff(),
            )
            await job.run(self.exporter.limits.seal_bytes)
        return source.synced_end

    async def remove_topic(self, topic_id: TopicId, name: str) -> None:
        """Remove a topic that is being deleted from the catalogue; its objects follow."""
        await self.catalog.remove_topic(name, topic_id, self._clock.now_ms())
        self.upkeep.wake()
