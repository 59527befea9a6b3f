"""Brings messages into segments that come from elsewhere: from the journals of other brokers."""

from collections.abc import AsyncIterator, Sequence

from typing_extensions import override

from pydanube.errors import Corruption
from pydanube.model.ids import Offset
from pydanube.storage.journal.reader import StoredBatch
from pydanube.storage.pieces import Piece, cut_piece
from pydanube.storage.segments.export_job import ExportSource

Batches = AsyncIterator[Sequence[StoredBatch]]


class ForeignTail(ExportSource):
    """What was read of a tail and is in no segment yet. It reads on when it is told to."""

    def __init__(self, topic: str, start: Offset, batches: Batches) -> None:
        self._topic = topic
        self._batches = batches
        self._held: list[StoredBatch] = []
        self._first = self._end = start
        self._ended = False

    async def fill(self, bytes_max: int) -> bool:
        """Read until about so many bytes are held; tell whether there is anything."""
        held = self.unexported_bytes
        while held < bytes_max and not self._ended:
            try:
                found = await anext(self._batches)
            except StopAsyncIteration:
                self._ended = True
                break
            for stored in found:
                held += self._take(stored)
        return bool(self._held)

    def _take(self, stored: StoredBatch) -> int:
        end = Offset(stored.base + stored.batch.count)
        if end <= self._first:
            return 0
        if stored.base > self._end or (self._held and stored.base < self._end):
            raise Corruption(
                f"the copies of {self._topic} go on at offset {stored.base}, where {self._end} "
                "was due"
            )
        self._held.append(stored)
        self._end = end
        return len(stored.batch.data)

    @property
    @override
    def synced_end(self) -> Offset:
        return self._end

    @property
    @override
    def first_offset(self) -> Offset:
        return self._first

    @property
    @override
    def unexported_bytes(self) -> int:
        return sum(len(stored.batch.data) for stored in self._held)

    @property
    @override
    def unexported_position(self) -> int:
        return 0

    @override
    def export_end(self, start: Offset, bytes_max: int) -> Offset:
        return self._end

    @override
    async def read(self, start: Offset, end: Offset, *, bytes_max: int = 0) -> list[Piece]:
        return [
            cut_piece(stored.base, stored.batch, start, end)
            for stored in self._held
            if stored.base < end and stored.base + stored.batch.count > start
        ]

    @override
    def exported(self) -> None:
        self._held = []
        self._first = self._end
