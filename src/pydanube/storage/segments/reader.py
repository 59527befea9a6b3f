"""Reads messages back from segments: checked, shared between readers, bounded in memory."""

from collections.abc import Sequence

import google_crc32c
from msgspec import Struct

from pydanube.errors import Corruption
from pydanube.model.ids import Offset
from pydanube.observability.counts import SegmentMetrics
from pydanube.runtime.tasks import TaskScope
from pydanube.runtime.threads import WorkerThreads
from pydanube.storage.errors import ObjectMissing
from pydanube.storage.pieces import Piece
from pydanube.storage.segments.catalog import SegmentEntry
from pydanube.storage.segments.decoding import (
    TAIL_BYTES,
    SegmentLayout,
    first_at_time,
    footer_bytes,
    read_layout,
)
from pydanube.storage.segments.object_store import ObjectStore
from pydanube.storage.segments.shared_loads import SharedLoads

LOADS_MAX = 4
_CHECK_BYTES = 4 * 1024 * 1024
_FOOTER_BYTES = 16 * 1024
"""About what a parsed footer weighs."""
_PIECE_BYTES = 256
"""What the objects around a piece weigh."""


class _Checked(Struct, frozen=True):
    """An object that was found to be whole."""

    layout: SegmentLayout
    whole: bytes
    """All of a small object, so that it is fetched once; empty for a larger one."""


class _Group(Struct, frozen=True):
    """A decoded row group."""

    pieces: Sequence[Piece]
    size: int


class SegmentReader:
    """Serves any number of readers at once.

    An object is checked against its CRC-32C as a whole before the first of its rows is shown; the
    verdict holds as long as its footer is remembered. Every page is checked whenever it is read.
    Memory: `cache_bytes_max` of decoded rows, and what a few loads under way hold.
    """

    def __init__(
        self,
        store: ObjectStore,
        workers: WorkerThreads,
        tasks: TaskScope,
        metrics: SegmentMetrics,
        cache_bytes_max: int,
    ) -> None:
        self._store = store
        self._workers = workers
        self._metrics = metrics
        self._checked = SharedLoads[_Checked](
            tasks,
            bytes_max=cache_bytes_max // 4,
            loads_max=LOADS_MAX,
            size_of=lambda checked: len(checked.whole) + _FOOTER_BYTES,
        )
        self._groups = SharedLoads[_Group](
            tasks,
            bytes_max=cache_bytes_max - cache_bytes_max // 4,
            loads_max=LOADS_MAX,
            size_of=lambda group: group.size,
        )

    async def read(
        self, entry: SegmentEntry, start: Offset, end: Offset, bytes_max: int
    ) -> list[Piece]:
        """Return contiguous pieces of [start, end) from `start` on, about `bytes_max` bytes.

        `start` lies in the entry. At least one piece is returned, from one row group.
        """
        checked = await self._open(entry)
        group = await self._group(entry, checked, checked.layout.find(start))
        pieces: list[Piece] = []
        for piece in group.pieces:
            if piece.end <= start or piece.start >= end:
                continue
            pieces.append(piece.between(start, end))
            bytes_max -= len(piece.batch.data)
            if bytes_max <= 0:
                break
        return pieces

    async def first_at_time(
        self, entry: SegmentEntry, time_ms: int, start: Offset
    ) -> Offset | None:
        """Return the entry's first offset from `start` on that was published then or later."""
        checked = await self._open(entry)
        for number, group in enumerate(checked.layout.groups):
            outside = group.base + group.rows <= start
            if outside or (group.max_time_ms is not None and group.max_time_ms < time_ms):
                continue
            decoded = await self._group(entry, checked, number)
            pieces = [p.between(start, p.end) for p in decoded.pieces if p.end > start]
            found = first_at_time(pieces, time_ms)
            if found is not None:
                return found
        return None

    async def _open(self, entry: SegmentEntry) -> _Checked:
        return await self._checked.get(entry.key, lambda: self._check(entry))

    async def _check(self, entry: SegmentEntry) -> _Checked:
        """Read the whole object once, and its footer."""
        crc = position = 0
        tail = b""
        while position < entry.bytes:
            length = min(_CHECK_BYTES, entry.bytes - position)
            data = await self._fetch(entry, position, length)
            crc = google_crc32c.extend(crc, data)
            position += length
            tail = (tail + data)[-max(TAIL_BYTES, _CHECK_BYTES) :]
        if crc != entry.crc32c:
            self._metrics.read_failed(self._store.provider, "crc")
            raise _damaged(entry, f"its CRC-32C is {crc:08x}, and was {entry.crc32c:08x}")
        try:
            needed = footer_bytes(tail)
            if needed > len(tail):
                tail = await self._fetch(entry, entry.bytes - needed, needed)
            layout = read_layout(
                tail, entry.bytes, topic_id=entry.topic_id, base=entry.base, rows=entry.rows
            )
        except Corruption as error:
            self._metrics.read_failed(self._store.provider, "decode")
            raise _damaged(entry, str(error)) from error
        self._metrics.segment_opened(entry.topic, self._store.provider)
        return _Checked(layout, tail if len(tail) == entry.bytes else b"")

    async def _group(self, entry: SegmentEntry, checked: _Checked, number: int) -> _Group:
        return await self._groups.get(
            (entry.key, number), lambda: self._load_group(entry, checked, number)
        )

    async def _load_group(self, entry: SegmentEntry, checked: _Checked, number: int) -> _Group:
        layout = checked.layout
        group = layout.groups[number]
        if checked.whole:
            data = checked.whole[group.position : group.position + group.size]
        else:
            data = await self._fetch(entry, group.position, group.size)
        try:
            pieces = await self._workers.run(lambda: layout.decode(number, data))
        except Corruption as error:
            self._metrics.read_failed(self._store.provider, "decode")
            raise _damaged(entry, str(error)) from error
        size = sum(len(piece.batch.data) + _PIECE_BYTES for piece in pieces)
        return _Group(pieces, size)

    async def _fetch(self, entry: SegmentEntry, position: int, length: int) -> bytes:
        try:
            data = await self._store.read(entry.key, position, length)
        except (ObjectMissing, Corruption):
            self._metrics.read_failed(self._store.provider, "missing")
            raise
        self._metrics.segment_bytes_read(entry.topic, self._store.provider, length)
        return data


def _damaged(entry: SegmentEntry, what: str) -> Corruption:
    return Corruption(
        f"segment {entry.key} of {entry.topic}, offsets {entry.base} to {entry.end - 1}, is "
        f"damaged: {what}. Restore the object from a copy"
    )
