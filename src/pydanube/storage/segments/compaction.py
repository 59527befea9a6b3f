"""Joins small neighbouring segments, so that a quiet topic's history is no heap of dust.

The broker joins what is small by itself. Whoever has more hands, such as a job in Spark, joins
elsewhere and stages the outcome in the topic's directory: `adopt` compares it message by message
with what it would replace, writes it anew under a name of the broker's own, and swaps as for its
own joins. So nothing that others wrote, or may still delete, is ever in the catalogue.
"""

import asyncio
import re
from collections.abc import Sequence

from pydanube.errors import Conflict, Corruption, InvalidRequest, NotFound
from pydanube.model.ids import Offset
from pydanube.observability.counts import SegmentMetrics
from pydanube.observability.logging import Logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.threads import WorkerThreads
from pydanube.storage.errors import ObjectMissing, ObjectTooShort
from pydanube.storage.pieces import Piece
from pydanube.storage.segments.catalog import SegmentEntry, bounds_of, directory_of, entry_for
from pydanube.storage.segments.encoding import EncodedSegment, SegmentEncoder
from pydanube.storage.segments.object_store import ObjectStore
from pydanube.storage.segments.planning import plan_compaction
from pydanube.storage.segments.reader import SegmentReader
from pydanube.storage.segments.staged import Staged, StagedSegment, StagedWrong, entry_at
from pydanube.storage.segments.topic_segments import TopicSegments
from pydanube.storage.segments.uploader import Uploader

RUN_MIN = 8
"""Fewer small segments are left as they are: rewriting them would cost more than it gains."""
GRACE_MS = 3_600_000
"""How long the joined segments stay for readers that planned with them."""
STAGED_BYTES_MAX = 512 * 1024 * 1024
"""A staged object is in memory while it is checked, one at a time."""
_READ_BYTES = 8 * 1024 * 1024
_STAGED = re.compile(r"joined-[0-9a-f]{16}\.parquet")

_log = Logger(__name__)


class Compaction:
    """Rewrites one run of one topic at a time; the catalogue swaps it in one transaction.

    Nothing changes for readers: the same offsets hold the same messages. Whatever goes wrong
    leaves the run as it was.
    """

    def __init__(
        self,
        store: ObjectStore,
        reader: SegmentReader,
        uploader: Uploader,
        workers: WorkerThreads,
        clock: Clock,
        metrics: SegmentMetrics,
        seal_bytes: int,
    ) -> None:
        self._store = store
        self._reader = reader
        self._uploader = uploader
        self._workers = workers
        self._clock = clock
        self._metrics = metrics
        self._seal_bytes = seal_bytes
        self._adopting = asyncio.Lock()

    async def compact(self, segments: TopicSegments) -> bool:
        """Join one run, if enough has been added for one to be there; tell whether it was."""
        if segments.added < RUN_MIN:
            return False
        run = plan_compaction(segments.entries(), RUN_MIN, self._seal_bytes)
        if not run:
            segments.added = 0
            return False
        segment = await self._join(segments, run)
        return await self._swap(segments, run, segment) is not None

    async def adopt(
        self, segments: TopicSegments, keys: Sequence[str], staged: Staged
    ) -> SegmentEntry:
        """Put a staged object in the place of the segments with these keys; return its entry.

        Whoever repeats it gets the same answer. Conflict: the segments are not these any more.
        Corruption: the object does not hold exactly what they hold, message by message, or one of
        them is damaged. Either way nothing has changed. The staged object is gone afterwards,
        unless nobody knows what became of the swap, or it may be the last that is whole.
        """
        _check_order(segments, keys, staged)
        async with self._adopting:
            try:
                run, joined = _find(segments, keys)
                if joined is None:
                    segment = await self._checked(segments, run, staged)
                    joined = await self._swap(segments, run, segment)
            except (Conflict, StagedWrong):
                await self._uploader.discard(staged.key)
                raise
            except ObjectMissing as error:
                if not segments.removed:
                    raise Corruption(f"{error}. Restore the object from a copy") from error
            if joined is None:
                raise NotFound(f"topic {segments.origin.topic} is gone")
            await self._uploader.discard(staged.key)
            return joined

    async def _swap(
        self, segments: TopicSegments, run: Sequence[SegmentEntry], segment: EncodedSegment
    ) -> SegmentEntry | None:
        """Let a segment take the place of a run; None: the topic is gone."""
        key = await self._uploader.upload(segments.origin, segment, lambda: not segments.removed)
        if key is None:
            return None
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
        return joined

    async def _checked(
        self, segments: TopicSegments, run: Sequence[SegmentEntry], staged: Staged
    ) -> EncodedSegment:
        """Return a staged object as a segment, once it was seen to hold just what the run holds."""
        try:
            data = await self._store.read(staged.key, 0, staged.bytes)
        except (ObjectMissing, ObjectTooShort) as error:
            raise StagedWrong(f"{error}; join the segments again") from error
        joined = StagedSegment(segments.origin, run, staged, data)
        await self._workers.run(joined.open)
        for number, group in enumerate(joined.layout.groups):
            sources = await self._read(run, group.base, Offset(group.base + group.rows))
            await self._compare(joined, number, sources)
        return await self._workers.run(joined.segment)

    async def _compare(self, joined: StagedSegment, number: int, sources: list[Piece]) -> None:
        await self._workers.run(lambda: joined.compare(number, sources))

    async def _read(self, run: Sequence[SegmentEntry], start: Offset, end: Offset) -> list[Piece]:
        """Return a run's messages of [start, end), checked as for any reader."""
        pieces: list[Piece] = []
        while start < end:
            entry = entry_at(run, start)
            pieces += await self._reader.read(entry, start, min(end, entry.end), _READ_BYTES)
            start = pieces[-1].end
        return pieces

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


def _check_order(segments: TopicSegments, keys: Sequence[str], staged: Staged) -> None:
    origin = segments.origin
    directory, _, name = staged.key.rpartition("/")
    if f"{directory}/" != directory_of(origin.topic, origin.topic_id) or not _STAGED.fullmatch(
        name
    ):
        raise InvalidRequest(f"{staged.key!r} is no name for a joined segment of {origin.topic}")
    if staged.bytes > STAGED_BYTES_MAX:
        raise InvalidRequest(
            f"{staged.key} has {staged.bytes} bytes; one that is joined has {STAGED_BYTES_MAX} at "
            "most"
        )
    if len(set(keys)) < 2 or len(set(keys)) != len(keys) or "" in keys:
        raise InvalidRequest("two different segments at least are joined")


def _find(
    segments: TopicSegments, keys: Sequence[str]
) -> tuple[Sequence[SegmentEntry], SegmentEntry | None]:
    """Return the run of these keys, or the entry that has taken its place before."""
    entries = list(segments.entries())
    at = next((number for number, each in enumerate(entries) if each.key == keys[0]), None)
    run = [] if at is None else entries[at : at + len(keys)]
    if [each.key for each in run] == list(keys):
        return run, None
    first, last = bounds_of(keys[0]), bounds_of(keys[-1])
    if first is not None and last is not None:
        joined = segments.find(first[0])
        if joined is not None and (joined.base, joined.end) == (first[0], last[1]):
            return [], joined
    raise Conflict(
        f"the segments of {segments.origin.topic} have changed since they were listed; nothing was "
        "joined. List them again"
    )
