"""One export: a topic's oldest messages that are in no segment become the next one."""

from typing import Protocol

from pydanube.errors import Conflict, Corruption, Unavailable
from pydanube.model.ids import Offset
from pydanube.observability.logging import Logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.threads import WorkerThreads
from pydanube.storage.errors import Fenced
from pydanube.storage.pieces import Piece
from pydanube.storage.segments.backoff import Backoff
from pydanube.storage.segments.catalog import SegmentEntry, entry_for, lost_entry
from pydanube.storage.segments.encoding import EncodedSegment, SegmentEncoder
from pydanube.storage.segments.topic_segments import TopicSegments
from pydanube.storage.segments.uploader import PATIENCE, Uploader

_READ_BYTES = 8 * 1024 * 1024

_log = Logger(__name__)


class ExportSource(Protocol):
    """A topic's log, as far as exports need it."""

    @property
    def synced_end(self) -> Offset:
        """All below is on disk for good."""

    @property
    def first_offset(self) -> Offset:
        """The oldest offset there is."""

    @property
    def unexported_bytes(self) -> int:
        """What is in the journal and in no segment, in bytes of the journal."""

    @property
    def unexported_position(self) -> int:
        """Where the oldest of that lies in the journal."""

    def export_end(self, start: Offset, bytes_max: int) -> Offset:
        """Return where a segment of about that many journaled bytes would end."""

    async def read(self, start: Offset, end: Offset, *, bytes_max: int = ...) -> list[Piece]:
        """Return contiguous pieces; a first one behind `start` means a gap."""

    def exported(self) -> None:
        """Take note that the topic's segments reach further than before."""


class ExportJob:
    """Reads, encodes, uploads, enters. Repeats what the store or the metadata refuses for now.

    Nothing is exported twice: the catalogue takes only what begins where it ends. If the topic goes
    meanwhile, `gone` is set and the job ends early and leaves nothing behind.
    """

    def __init__(
        self,
        log: ExportSource,
        segments: TopicSegments,
        uploader: Uploader,
        workers: WorkerThreads,
        clock: Clock,
        backoff: Backoff,
    ) -> None:
        self.gone = False
        self._log = log
        self._segments = segments
        self._uploader = uploader
        self._workers = workers
        self._clock = clock
        self._backoff = backoff

    async def run(self, bytes_max: int, *, patience: int = PATIENCE) -> bool:
        """Export about so many of the journal's bytes; tell whether there was anything to do.

        So many attempts to write may fail before it is asked whether others would succeed.
        Messages that may show before they are synced are not exported before they are.
        """
        log, segments = self._log, self._segments
        start = segments.end if segments.exists else log.first_offset
        end = log.export_end(start, bytes_max)
        if start >= end:
            return False
        pieces = await log.read(start, end, bytes_max=_READ_BYTES)
        if self.gone:
            return False
        if not pieces:
            raise Corruption(
                f"offsets {start} to {end - 1} of {segments.origin.topic} should be in the journal "
                "and are not"
            )
        if pieces[0].start > start:
            # Bytes of the journal were lost and given up: readers learn that nothing is there.
            now_ms = self._clock.now_ms()
            await self._enter(lost_entry(segments.origin, start, pieces[0].start, now_ms))
            return True
        segment = await self._encode(pieces, end)
        key = await self._uploader.upload(
            segments.origin, segment, lambda: not self.gone, patience=patience
        )
        if key is not None:
            entry = entry_for(segments.origin, key, segment, self._clock.now_ms())
            await self._enter(entry)
        return True

    async def _encode(self, pieces: list[Piece], end: Offset) -> EncodedSegment:
        encoder = SegmentEncoder(self._segments.origin, pieces[0].start)
        while pieces:
            await self._add(encoder, pieces)
            pieces = []
            if encoder.end < end and not self.gone:
                following = await self._log.read(encoder.end, end, bytes_max=_READ_BYTES)
                # Behind a gap the next segment begins.
                if following and following[0].start == encoder.end:
                    pieces = following
        return await self._workers.run(encoder.finish)

    async def _add(self, encoder: SegmentEncoder, pieces: list[Piece]) -> None:
        await self._workers.run(lambda: encoder.add(pieces))

    async def _enter(self, entry: SegmentEntry) -> None:
        # An object that may be in the catalogue is left alone: whoever owns the topic next sweeps.
        doubtful = False
        while not self.gone:
            try:
                await self._segments.add(entry)
            except Fenced:
                raise  # The new owner sweeps up.
            except Conflict:
                if not doubtful:
                    await self._uploader.discard(entry.key)
                raise
            except Unavailable as error:
                doubtful = True
                # It may have happened all the same; then the next attempt finds it.
                _log.warning("cannot write to the catalogue; trying again", cause=str(error))
                await self._clock.sleep(self._backoff.next_seconds())
                continue
            self._uploader.in_flight.discard(entry.key)
            self._log.exported()
            return
        if not doubtful:
            await self._uploader.discard(entry.key)
