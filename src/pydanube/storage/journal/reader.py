"""Reads batches back from the journal's files, every one checked against its frame."""

from bisect import bisect_right
from collections.abc import Sequence
from math import inf

from msgspec import Struct

from pydanube.errors import Corruption, Unavailable
from pydanube.model.batch import Batch
from pydanube.model.ids import Offset, TopicId
from pydanube.runtime.files import Files
from pydanube.storage.frames import FrameScan
from pydanube.storage.journal.contents import JournalFile, TopicIndex
from pydanube.storage.journal.records import BATCH_HEADER, BATCH_PLACE, Kind

# Reading over a gap this wide costs less than a second read.
_GAP_BYTES_MAX = 64 * 1024
_SPANS_MAX = 32


class StoredBatch(Struct, frozen=True):
    """A batch and the offset of its first message."""

    base: Offset
    batch: Batch


class _Span(Struct, frozen=True):
    """Neighbouring batches of one topic that are read together: numbers [first, end)."""

    first: int
    end: int


class JournalReader:
    """Serves any number of readers at once. `journal_files` is the writer's own, growing list."""

    def __init__(self, files: Files, directory: str, journal_files: Sequence[JournalFile]) -> None:
        self._files = files
        self._directory = directory
        self._journal_files = journal_files

    async def read(
        self, topic_id: TopicId, index: TopicIndex, start: int, end: int, bytes_max: int
    ) -> list[StoredBatch]:
        """Return the batches with offsets in [start, end), oldest first, about `bytes_max` of them.

        At least one if there is any.
        """
        number = index.find(start)
        while number < len(index.bases) and index.bases[number] < end:
            # Read anew, because batches of a topic that is dropped meanwhile disappear.
            spans = self._plan(index, number, end, bytes_max)
            found = [
                stored
                for span in spans
                for stored in await self._read_span(topic_id, index, span)
                if stored.base + stored.batch.count > start
            ]
            if found:
                return found
            number = spans[-1].end
        return []

    def _plan(self, index: TopicIndex, first: int, end: int, bytes_max: int) -> list[_Span]:
        positions, sizes, bases = index.positions, index.sizes, index.bases
        spans: list[_Span] = []
        span_first = number = first
        left = bytes_max
        file_end = self._end_of_file_at(positions[first])
        while len(spans) < _SPANS_MAX:
            left -= sizes[number]
            behind = positions[number] + sizes[number]
            number += 1
            if number == len(bases) or bases[number] >= end or sizes[number] > left:
                spans.append(_Span(span_first, number))
                break
            position = positions[number]
            if position - behind > _GAP_BYTES_MAX or position >= file_end:
                spans.append(_Span(span_first, number))
                span_first = number
                file_end = self._end_of_file_at(position)
        return spans

    async def _read_span(
        self, topic_id: TopicId, index: TopicIndex, span: _Span
    ) -> list[StoredBatch]:
        numbers = range(span.first, span.end)
        places = [(index.bases[n], index.positions[n], index.sizes[n]) for n in numbers]
        _, span_start, _ = places[0]
        _, last_position, last_size = places[-1]
        file = self._file_at(span_start)
        length = last_position + last_size - span_start
        path = f"{self._directory}/{file.name}"
        try:
            data = await self._files.read(path, span_start - file.start, length)
        except OSError as error:
            raise Unavailable(f"cannot read {path}: {error}; see to the disk") from error
        stored = []
        for base, position, size in places:
            at = position - span_start
            batch = _checked_batch(data[at : at + size], position, topic_id, base)
            if batch is None:
                raise Corruption(
                    f"{path} is damaged at position {position}: the batch of topic {topic_id} "
                    f"that begins at offset {base} cannot be read. Restore the file from a copy, "
                    "or stop the broker and give the bytes up with: "
                    "danube journal quarantine --data-dir DIR"
                )
            stored.append(StoredBatch(Offset(base), batch))
        return stored

    def _file_at(self, position: int) -> JournalFile:
        number = bisect_right(self._journal_files, position, key=lambda file: file.start)
        if number == 0:
            raise Unavailable(f"journal position {position} has been deleted")
        return self._journal_files[number - 1]

    def _end_of_file_at(self, position: int) -> float:
        number = bisect_right(self._journal_files, position, key=lambda file: file.start)
        # The newest file grows; whatever position follows in it is in it.
        return self._journal_files[number].start if number < len(self._journal_files) else inf


def _checked_batch(data: bytes, position: int, topic_id: int, base: int) -> Batch | None:
    """Return the batch if `data` is, as a whole, the frame that was written there."""
    scan = FrameScan(data, position)
    frame = next(iter(scan), None)
    if frame is None or frame.kind != Kind.BATCH or frame.end != len(data):
        return None
    held_topic, held_base, count = BATCH_PLACE.unpack_from(data, frame.start)
    if (held_topic, held_base) != (topic_id, base):
        return None
    return Batch.from_bytes(data[frame.start + BATCH_HEADER.size :], count)
