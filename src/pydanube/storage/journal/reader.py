"""Reads batches back from the journal's files, every one checked against its frame."""

from bisect import bisect_right
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

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


class StoredRecord(Struct, frozen=True):
    """A BATCH record's payload, header and body, and which offsets it holds."""

    base: Offset
    count: int
    payload: bytes


class _Found(Struct, frozen=True):
    """A record within what was read."""

    base: Offset
    count: int
    payload: memoryview
    alone: bool
    """Whether nothing else was read with it."""

    def body(self) -> bytes | memoryview:
        """Return the batch; it must not keep others in memory, and need not be copied if alone."""
        body = self.payload[BATCH_HEADER.size :]
        return body if self.alone else bytes(body)


class _Place(NamedTuple):
    """Where one batch lies."""

    base: int
    position: int
    size: int


_Span = list[_Place]
"""Neighbouring batches of one topic that are read together."""


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
        found = await self._find(topic_id, index, start, end, bytes_max)
        return [StoredBatch(each.base, Batch.from_bytes(each.body(), each.count)) for each in found]

    async def read_records(
        self, topic_id: TopicId, index: TopicIndex, start: int, end: int, bytes_max: int
    ) -> list[StoredRecord]:
        """Return the same as `read`, as the BATCH records that were journaled."""
        found = await self._find(topic_id, index, start, end, bytes_max)
        return [StoredRecord(each.base, each.count, bytes(each.payload)) for each in found]

    async def _find(
        self, topic_id: TopicId, index: TopicIndex, start: int, end: int, bytes_max: int
    ) -> list[_Found]:
        at = start
        while (number := index.find(at)) < len(index.bases) and index.bases[number] < end:
            # Copied before anything is awaited: meanwhile files go, and batches move in the index.
            spans = self._plan(index, number, end, bytes_max)
            found = [
                stored
                for span in spans
                for stored in await self._read_span(topic_id, span)
                if stored.base + stored.count > start
            ]
            if found:
                return found
            behind = bisect_right(index.bases, spans[-1][-1].base)
            if behind == len(index.bases):
                break
            at = index.bases[behind]
        return []

    def _plan(self, index: TopicIndex, first: int, end: int, bytes_max: int) -> list[_Span]:
        spans: list[_Span] = [[]]
        left = bytes_max
        file_end = self._end_of_file_at(index.positions[first])
        behind = None
        for number in range(first, len(index.bases)):
            place = _Place(index.bases[number], index.positions[number], index.sizes[number])
            if behind is not None:
                if place.base >= end or place.size > left:
                    break
                if place.position - behind > _GAP_BYTES_MAX or place.position >= file_end:
                    if len(spans) == _SPANS_MAX:
                        break
                    spans.append([])
                    file_end = self._end_of_file_at(place.position)
            spans[-1].append(place)
            left -= place.size
            behind = place.position + place.size
        return spans

    async def _read_span(self, topic_id: TopicId, span: _Span) -> list[_Found]:
        start = span[0].position
        file = self._file_at(start)
        length = span[-1].position + span[-1].size - start
        path = f"{self._directory}/{file.name}"
        try:
            data = await self._files.read(path, start - file.start, length)
        except OSError as error:
            raise Unavailable(f"cannot read {path}: {error}; check the disk") from error
        stored = []
        for place in span:
            record = _checked(data, start, place, topic_id)
            if record is None:
                raise Corruption(
                    f"{path} is damaged at position {place.position}: the batch of topic "
                    f"{topic_id} that begins at offset {place.base} cannot be read. Restore the "
                    "file from a copy, or stop the broker and give the bytes up with: "
                    "danube journal quarantine --data-dir DIR"
                )
            stored.append(record)
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


def _checked(data: bytes, start: int, place: _Place, topic_id: int) -> _Found | None:
    """Return a record if its frame lies whole at its place in `data`, which begins at `start`."""
    at = place.position - start
    frame = next(iter(FrameScan(data, start, at)), None)
    if frame is None or frame.kind != Kind.BATCH or frame.end != at + place.size:
        return None
    held_topic, held_base, count = BATCH_PLACE.unpack_from(data, frame.start)
    if (held_topic, held_base) != (topic_id, place.base):
        return None
    payload = memoryview(data)[frame.start : frame.end]
    return _Found(Offset(place.base), count, payload, alone=place.size == len(data))
