"""Joins small neighbouring segments, so that a quiet topic's history is no heap of dust."""

from pydanube.errors import Conflict
from pydanube.model.ids import Offset
from pydanube.observability.counts import SegmentMetrics
from pydanube.observability.logging import Logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.threads import WorkerThreads
from pydanube.storage.pieces import Piece
from pydanube.storage.segments.catalog import SegmentEntry, entry_for
from pydanube.storage.segments.encoding import EncodedSegment, SegmentEncoder
from pydanube.storage.segments.planning import plan_compaction
from pydanube.storage.segments.reader import SegmentReader
from pydanube.storage.segments.topic_segments import TopicSegments
from pydanube.storage.segments.uploader import Uploader

RUN_MIN = 8
"""Fewer small segments are left as they are: rewriting them would cost more than it gains."""
GRACE_MS = 3_600_000
"""How long the joined segments stay for readers that planned with them."""
_READ_BYTES = 8 * 1024 * 1024

_log = Logger(__name__)


class Compaction:
    """Rewrites one run of one topic at a time; the catalogue swaps it in one transaction.

    Nothing changes for readers: the same offsets hold the same messages. Whatever goes wrong
    leaves the run as it was.
    """

    def __init__(
        self,
        reader: SegmentReader,
        uploader: Uploader,
        workers: WorkerThreads,
        clock: Clock,
        metrics: SegmentMetrics,
        seal_bytes: int,
    ) -> None:
        self._reader = reader
        self._uploader = uploader
        self._workers = workers
        self._clock = clock
        self._metrics = metrics
        self._seal_bytes = seal_bytes

    async def compact(self, segments: TopicSegments) -> bool:
        """Join one run, if enough has been added for one to be there; tell whether it was."""
        if segments.added < RUN_MIN:
            return False
        run = plan_compaction(segments.entries(), RUN_MIN, self._seal_bytes)
        if not run:
            segments.added = 0
            return False
        segment = await self._join(segments, run)
        key = await self._uploader.upload(segments.origin, segment, lambda: not segments.removed)
        if key is None:
            return False
        # As old as its youngest part: retention counts from there.
        created_ms = max(entry.created_ms for entry in run)
        joined = entry_for(segments.origin, key, segment, created_ms)
        try:
            await segments.replace(run, joined, due_ms=self._clock.now_ms() + GRACE_MS)
        except Conflict:
            if segments.find(joined.base) != joined:
                await self._uploader.discard(key)
            raise
        finally:
            # After any other failure the swap may still happen, so the object stays; if it does
            # not, the next start sweeps it up.
            self._uploader.in_flight.discard(key)
        self._metrics.joined += len(run)
        _log.info("segments joined", topic=joined.topic, segments=len(run), bytes=joined.bytes)
        return True

    async def _join(self, segments: TopicSegments, run: list[SegmentEntry]) -> EncodedSegment:
        encoder = SegmentEncoder(segments.origin, run[0].base)
        for entry in run:
            at = entry.base
            while at < entry.end:
                pieces = await self._reader.read(entry, at, entry.end, _READ_BYTES)
                await self._add(encoder, pieces)
                at = Offset(pieces[-1].end)
        return await self._workers.run(encoder.finish)

    async def _add(self, encoder: SegmentEncoder, pieces: list[Piece]) -> None:
        await self._workers.run(lambda: encoder.add(pieces))
