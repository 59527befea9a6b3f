"""One ordered stream over a topic, wherever its messages are: segments, journal, tail cache."""

from msgspec import Struct

from pydanube.errors import Corruption, Unavailable
from pydanube.model.ids import Offset, TopicId
from pydanube.observability.counts import SegmentMetrics
from pydanube.storage.errors import ObjectMissing
from pydanube.storage.journal.contents import TopicIndex
from pydanube.storage.journal.reader import JournalReader
from pydanube.storage.journal.writer import JournalWriter
from pydanube.storage.pieces import Piece, cut_piece
from pydanube.storage.segments.catalog import SegmentEntry
from pydanube.storage.segments.compaction import Compaction
from pydanube.storage.segments.decoding import first_at_time
from pydanube.storage.segments.reader import SegmentReader
from pydanube.storage.segments.topic_segments import TopicSegments
from pydanube.storage.tail_cache import TopicTail

READ_BYTES = 1024 * 1024


class History(Struct, frozen=True):
    """A topic's segments, how they are read, and who joins them."""

    segments: TopicSegments
    reader: SegmentReader
    compaction: Compaction
    metrics: SegmentMetrics


class TieredReader:
    """Finds any offset of one topic. A reader asks for the offset it wants next, so none is skipped
    or repeated where one tier ends and another begins.

    An offset is in at least one tier at any time: the journal lets go of it only once the catalogue
    has it. What moves while it is being read is looked for again.
    """

    def __init__(
        self,
        topic_id: TopicId,
        index: TopicIndex,
        tail: TopicTail,
        writer: JournalWriter,
        journal: JournalReader,
        history: History | None,
    ) -> None:
        self._topic_id = topic_id
        self._index = index
        self._tail = tail
        self._writer = writer
        self._journal = journal
        self._history = history

    @property
    def first_offset(self) -> Offset:
        """The oldest offset there is, or the next one while there is none."""
        history = self._history
        if history is not None and history.segments.exists:
            return history.segments.start
        return self._index.first_offset

    async def read(self, start: Offset, end: Offset, bytes_max: int) -> list[Piece]:
        """Return contiguous pieces of [start, end), at least one if there is anything."""
        start = max(start, self.first_offset)
        while start < end:
            cached = self._tail.read(start, end)
            if cached is not None:
                return _first_bytes(cached, bytes_max)
            entry = self._entry_of(start)
            if entry is None:
                try:
                    return await self._read_journal(start, end, bytes_max)
                except Unavailable:
                    # Its file may have gone meanwhile, because segments have all of it.
                    if self._entry_of(start) is None:
                        raise
            elif entry.is_lost:
                start = entry.end
            else:
                pieces = await self._read_segment(entry, start, end, bytes_max)
                if pieces:
                    return pieces
            start = max(start, self.first_offset)
        return []

    async def offset_at_time(self, time_ms: int, end: Offset) -> Offset:
        """Return the first offset that was published at that time or later; `end` if none was."""
        at = self.first_offset
        while self._history is not None and at < self._history.segments.end:
            entry = self._history.segments.find(at)
            if entry is None:
                break
            if not entry.is_lost and entry.max_time_ms >= time_ms:
                found = await self._first_in_segment(entry, time_ms, at)
                if found is not None:
                    return found
            at = max(entry.end, self.first_offset)
        while pieces := await self.read(at, end, READ_BYTES):
            found = first_at_time(pieces, time_ms)
            if found is not None:
                return found
            at = pieces[-1].end
        return end

    def _entry_of(self, offset: Offset) -> SegmentEntry | None:
        """Return the segment an offset must be read from; None if the journal is asked."""
        history = self._history
        if history is None or self._index.holds(offset) or offset >= history.segments.end:
            return None
        entry = history.segments.find(offset)
        if entry is None and offset >= history.segments.start:
            raise Corruption(
                f"the catalogue has no segment for offset {offset} of "
                f"{history.segments.origin.topic}, though its segments reach from "
                f"{history.segments.start} to {history.segments.end}"
            )
        return entry

    async def _read_journal(self, start: Offset, end: Offset, bytes_max: int) -> list[Piece]:
        if not self._is_written(end):
            await self._writer.flush()
        stored = await self._journal.read(self._topic_id, self._index, start, end, bytes_max)
        return _until_gap([cut_piece(found.base, found.batch, start, end) for found in stored])

    def _is_written(self, end: int) -> bool:
        """Tell whether all below `end` is in the file; with "memory" it shows before it is."""
        index = self._index
        if index.next_offset < end:
            return False
        return not index.bases or index.positions[index.find(end - 1)] < self._writer.written

    async def _read_segment(
        self, entry: SegmentEntry, start: Offset, end: Offset, bytes_max: int
    ) -> list[Piece]:
        assert self._history is not None
        segments = self._history.segments
        try:
            pieces = await self._history.reader.read(entry, start, min(end, entry.end), bytes_max)
        except ObjectMissing as error:
            self._require_change(entry, error)
            return []
        if pieces[-1].end == segments.end:
            self._history.metrics.handed_off(segments.origin.topic)
        return pieces

    async def _first_in_segment(
        self, entry: SegmentEntry, time_ms: int, start: Offset
    ) -> Offset | None:
        assert self._history is not None
        try:
            return await self._history.reader.first_at_time(entry, time_ms, start)
        except ObjectMissing as error:
            self._require_change(entry, error)
            return None

    def _require_change(self, entry: SegmentEntry, error: ObjectMissing) -> None:
        """Accept that an object is missing only if its entry is gone as well."""
        assert self._history is not None
        self._history.segments.look_again()
        if self._history.segments.find(entry.base) == entry:
            raise Corruption(
                f"{error}, which holds offsets {entry.base} to {entry.end - 1} of {entry.topic}. "
                "Restore the object from a copy"
            ) from error


def _first_bytes(pieces: list[Piece], bytes_max: int) -> list[Piece]:
    for number, piece in enumerate(pieces):
        bytes_max -= len(piece.batch.data)
        if bytes_max <= 0:
            return pieces[: number + 1]
    return pieces


def _until_gap(pieces: list[Piece]) -> list[Piece]:
    for number in range(1, len(pieces)):
        if pieces[number].start != pieces[number - 1].end:
            return pieces[:number]
    return pieces
