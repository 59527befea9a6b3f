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
from pydanube.storage.segments.decoding import SegmentLayout, first_at_time, read_layout
from pydanube.storage.segments.object_store import ObjectStore
from pydanube.storage.segments.shared_loads import SharedLoads

LOADS_MAX = 4
_WHOLE_BYTES_MAX = 4 * 1024 * 1024
"""An object up to this size is fetched whole."""
_FOOTER_BYTES = 16 * 1024
"""About what a parsed footer weighs."""
_PIECE_BYTES = 256
"""What the objects around a piece weigh."""


class _Opened(Struct, frozen=True):
    """An object whose footer has been read."""

    layout: SegmentLayout
    whole: bytes
    """All of a small object, so that it is fetched once; empty for a larger one."""


class _Group(Struct, frozen=True):
    """A decoded row group."""

    pieces: Sequence[Piece]
    size: int


class SegmentReader:
    """Serves any number of readers at once.

    Whatever is fetched is checked against a CRC-32C of the catalogue before it is looked into: a
    small object as a whole, a larger one footer by footer and row group by row group. Memory:
    `cache_bytes_max` of decoded rows and small objects, and what a few loads under way hold.
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
        self._opened = SharedLoads[_Opened](
            tasks,
            bytes_max=cache_bytes_max // 4,
            loads_max=LOADS_MAX,
            size_of=lambda opened: len(opened.whole) + _FOOTER_BYTES,
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
        opened = await self._open(entry)
        group = await self._group(entry, opened, opened.layout.find(start))
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
        opened = await self._open(entry)
        for number, group in enumerate(opened.layout.groups):
            outside = group.base + group.rows <= start
            if outside or (group.max_time_ms is not None and group.max_time_ms < time_ms):
                continue
            decoded = await self._group(entry, opened, number)
            pieces = [p.between(start, p.end) for p in decoded.pieces if p.end > start]
            found = first_at_time(pieces, time_ms)
            if found is not None:
                return found
        return None

    async def _open(self, entry: SegmentEntry) -> _Opened:
        return await self._opened.get(entry.key, lambda: self._read_footer(entry))

    async def _read_footer(self, entry: SegmentEntry) -> _Opened:
        if entry.bytes <= _WHOLE_BYTES_MAX:
            whole = await self._fetch(entry, 0, entry.bytes, entry.crc32c)
            tail = whole[entry.bytes - entry.tail_bytes :]
        else:
            whole = b""
            start = entry.bytes - entry.tail_bytes
            tail = await self._fetch(entry, start, entry.tail_bytes, entry.tail_crc32c)
        try:
            layout = read_layout(
                tail, entry.bytes, topic_id=entry.topic_id, base=entry.base, rows=entry.rows
            )
        except Corruption as error:
            raise self._damaged(entry, "decode", str(error)) from error
        if len(layout.groups) != len(entry.group_crc32c):
            raise self._damaged(entry, "decode", "its row groups are not those of the catalogue")
        self._metrics.segment_opened(entry.topic, self._store.provider)
        return _Opened(layout, whole)

    async def _group(self, entry: SegmentEntry, opened: _Opened, number: int) -> _Group:
        return await self._groups.get(
            (entry.key, number), lambda: self._load_group(entry, opened, number)
        )

    async def _load_group(self, entry: SegmentEntry, opened: _Opened, number: int) -> _Group:
        layout = opened.layout
        group = layout.groups[number]
        if opened.whole:
            data = opened.whole[group.position : group.position + group.size]
        else:
            crc32c = entry.group_crc32c[number]
            data = await self._fetch(entry, group.position, group.size, crc32c)
        try:
            pieces = await self._workers.run(lambda: layout.decode(number, data))
        except Corruption as error:
            raise self._damaged(entry, "decode", str(error)) from error
        size = sum(len(piece.batch.data) + _PIECE_BYTES for piece in pieces)
        return _Group(pieces, size)

    async def _fetch(self, entry: SegmentEntry, position: int, length: int, crc32c: int) -> bytes:
        try:
            data = await self._store.read(entry.key, position, length)
        except (ObjectMissing, Corruption):
            self._metrics.read_failed(self._store.provider, "missing")
            raise
        self._metrics.segment_bytes_read(entry.topic, self._store.provider, length)
        found = google_crc32c.value(data)
        if found != crc32c:
            where = f"bytes {position} to {position + length - 1}"
            raise self._damaged(
                entry, "crc", f"the CRC-32C of its {where} is {found:08x} and was {crc32c:08x}"
            )
        return data

    def _damaged(self, entry: SegmentEntry, reason: str, what: str) -> Corruption:
        self._metrics.read_failed(self._store.provider, reason)
        return Corruption(
            f"segment {entry.key} of {entry.topic}, offsets {entry.base} to {entry.end - 1}, is "
            f"damaged: {what}. Restore the object from a copy"
        )
