"""Reads pieces of a segment: the footer, then one row group at a time, from ranges of bytes. Pure.

Nothing here reads a file: whoever calls fetches the ranges that a layout names.
"""

from bisect import bisect_right
from collections.abc import Sequence
from struct import unpack_from

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from pydanube.errors import Corruption
from pydanube.model.attributes import none_for_empty
from pydanube.model.batch import SCHEMA, Batch
from pydanube.model.ids import Offset
from pydanube.storage.pieces import Piece
from pydanube.storage.segments.encoding import (
    SEGMENT_FORMAT,
    row_group_ranges,
    rows_that_fit,
)

_MAGIC = b"PAR1"
_ENDING_BYTES = 8
_BATCH_BYTES = 1024 * 1024
_BATCH_ROWS_MAX = 8_192

_COLUMNS = ["offset", *SCHEMA.names]


class RowGroup(Struct, frozen=True):
    """Rows that are read together, and where their bytes lie in the file."""

    base: Offset
    rows: int
    position: int
    size: int
    raw_size: int
    """Before compression."""
    max_time_ms: int | None
    """None when the file has no statistics."""


class SegmentLayout:
    """What a footer says. Its row groups are in offset order, without gaps."""

    def __init__(self, metadata: pq.FileMetaData, file_size: int, base: Offset) -> None:
        self._metadata = metadata
        self._file_size = file_size
        self.groups = _row_groups(metadata, base)

    def find(self, offset: Offset) -> int:
        """Return the number of the row group that holds an offset of this segment."""
        return bisect_right(self.groups, offset, key=lambda group: group.base) - 1

    @property
    def schema(self) -> pa.Schema:
        """The columns of the file, in Arrow's types."""
        return self._metadata.schema.to_arrow_schema()

    def decode(self, number: int, data: bytes) -> list[Piece]:
        """Turn the bytes of one row group into pieces of about a megabyte, in offset order."""
        stored = self.stored(number, data, _COLUMNS)
        return _pieces(as_published(stored), self.groups[number])

    def stored(self, number: int, data: bytes, columns: Sequence[str]) -> pa.Table:
        """Read columns of one row group as they are in the file; `offset` is one of them."""
        group = self.groups[number]
        window = pa.PythonFile(_Window(data, group.position, self._file_size), mode="r")
        try:
            file = pq.ParquetFile(
                window, metadata=self._metadata, page_checksum_verification=True, pre_buffer=False
            )
            table = file.read_row_group(number, columns=list(columns), use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise Corruption(
                f"the row group of offsets {group.base} to {group.base + group.rows - 1} cannot "
                f"be read: {error}"
            ) from error
        _check_offsets(table, group)
        return table


def footer_bytes(tail: bytes) -> int:
    """Return how many bytes at the end of a file its footer takes, given at least the last 8."""
    if len(tail) < _ENDING_BYTES or tail[-4:] != _MAGIC:
        raise Corruption("it does not end as a Parquet file does")
    (length,) = unpack_from("<I", tail, len(tail) - _ENDING_BYTES)
    return int(length) + _ENDING_BYTES


def read_layout(
    tail: bytes, file_size: int, *, topic_id: int, base: Offset, rows: int
) -> SegmentLayout:
    """Read a footer; Corruption unless it is the one of the segment that the caller expects."""
    # A file of magic and footer alone: the reader looks at nothing else for this.
    footer = pa.BufferReader(_MAGIC + tail[-footer_bytes(tail) :])
    try:
        metadata = pq.read_metadata(footer)
    except (pa.ArrowException, OSError) as error:
        raise Corruption(f"its footer cannot be read: {error}") from error
    _check_identity(metadata, topic_id=topic_id, base=base, rows=rows)
    return SegmentLayout(metadata, file_size, base)


def first_at_time(pieces: list[Piece], time_ms: int) -> Offset | None:
    """Return the first offset whose publish_time is not before `time_ms`."""
    for piece in pieces:
        rows = piece.batch.record_batch().slice(piece.first_row, piece.count)
        found: int = pc.index(pc.greater_equal(rows.column("publish_time"), time_ms), True).as_py()
        if found >= 0:
            return Offset(piece.start + found)
    return None


def _check_identity(metadata: pq.FileMetaData, *, topic_id: int, base: int, rows: int) -> None:
    held = {key.decode(): value.decode() for key, value in (metadata.metadata or {}).items()}
    version = held.get("danube.format", "none")
    if version != str(SEGMENT_FORMAT):
        raise Corruption(f"it has segment format {version}, this version reads {SEGMENT_FORMAT}")
    expected = {
        "danube.topic_id": str(topic_id),
        "danube.base_offset": str(base),
        "danube.rows": str(rows),
    }
    for key, value in expected.items():
        if held.get(key) != value:
            raise Corruption(f"its {key} is {held.get(key)}, the catalogue says {value}")
    if metadata.num_rows != rows:
        raise Corruption(f"it has {metadata.num_rows} rows, the catalogue says {rows}")


def _row_groups(metadata: pq.FileMetaData, base: Offset) -> list[RowGroup]:
    groups = []
    at = base
    for number, (start, end) in enumerate(row_group_ranges(metadata)):
        group = metadata.row_group(number)
        chunks = [group.column(index) for index in range(group.num_columns)]
        times = next(chunk.statistics for chunk in chunks if chunk.path_in_schema == "publish_time")
        groups.append(
            RowGroup(
                base=at,
                rows=group.num_rows,
                position=start,
                size=end - start,
                raw_size=group.total_byte_size,
                max_time_ms=times.max_raw if times is not None and times.has_min_max else None,
            )
        )
        at = Offset(at + group.num_rows)
    return groups


def as_published(stored: pa.Table) -> pa.Table:
    """Return the columns of a row group as producers sent them."""
    columns = [_as_published(stored.column(field.name), field) for field in SCHEMA]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _pieces(published: pa.Table, group: RowGroup) -> list[Piece]:
    rows = published.combine_chunks().to_batches()[0]
    pieces = []
    at = group.base
    while rows.num_rows:
        count = max(rows_that_fit(rows, _BATCH_BYTES, _BATCH_ROWS_MAX), 1)
        data = rows.slice(0, count).serialize().to_pybytes()
        pieces.append(Piece(at, Batch.from_bytes(data, count), 0, count))
        at = Offset(at + count)
        rows = rows.slice(count)
    return pieces


def _as_published(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if pa.types.is_map(field.type):
        chunks = column.cast(field.type).chunks
        return pa.chunked_array([none_for_empty(chunk) for chunk in chunks], field.type)
    if column.type == field.type:
        return column
    return pa.chunked_array([chunk.view(field.type) for chunk in column.chunks], field.type)


def _check_offsets(table: pa.Table, group: RowGroup) -> None:
    expected = pa.arange(group.base, group.base + group.rows)
    if table.num_rows != group.rows or not table.column("offset").equals(
        pa.chunked_array([expected])
    ):
        raise Corruption(
            f"its rows are not the offsets {group.base} to {group.base + group.rows - 1}"
        )


class _Window:
    """The part of a file that was fetched, as the file-like object Parquet readers want."""

    closed = False

    def __init__(self, data: bytes, position: int, file_size: int) -> None:
        self._data = memoryview(data)
        self._start = position
        self._size = file_size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seek(self, position: int, whence: int = 0) -> int:
        if whence == 1:
            position += self._at
        elif whence == 2:
            position += self._size
        self._at = position
        return position

    def tell(self) -> int:
        return self._at

    def read(self, length: int = -1) -> bytes:
        end = self._size if length < 0 else min(self._at + length, self._size)
        first, last = self._at - self._start, end - self._start
        if first < 0 or last > len(self._data):
            raise OSError(f"bytes {self._at} to {end} of the file were not fetched")
        self._at = end
        return bytes(self._data[first:last])

    def close(self) -> None:
        self._data = memoryview(b"")

    def flush(self) -> None:
        pass
