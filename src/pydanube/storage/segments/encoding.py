"""Batches to Parquet and back, as docs/formats/segment.md specifies it. Pure; columns stay columns.

Both ways take milliseconds per megabyte, so they are called from worker threads.
"""

from collections.abc import Sequence
from typing import NamedTuple

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from pydanube.errors import Corruption
from pydanube.model.attributes import empty_for_none
from pydanube.model.batch import SCHEMA
from pydanube.model.ids import Offset, TopicId
from pydanube.model.names import split_partition
from pydanube.storage.pieces import Piece

SEGMENT_FORMAT = 1
GROUP_BYTES_MAX = 8 * 1024 * 1024
GROUP_ROWS_MAX = 65_536
SCHEMA_IDS_MAX = 64
_CRC_STEP_BYTES = 1024 * 1024

_TIME = pa.timestamp("ms", tz="UTC")

SEGMENT_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.utf8(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("publish_time", _TIME, nullable=False),
        pa.field("producer_name", pa.utf8()),
        pa.field("routing_key", pa.utf8()),
        pa.field("attributes", pa.map_(pa.utf8(), pa.utf8())),
        pa.field("schema_id", pa.int64()),
        pa.field("schema_version", pa.int32()),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
_OFFSET = SEGMENT_SCHEMA.get_field_index("offset")
_WITH_DICTIONARY = ["topic", "producer_name", "schema_id", "schema_version"]
_WITH_STATISTICS = ["partition", "offset", "publish_time", "routing_key"]

# Parquet has no unsigned numbers that everybody reads: the bits travel as signed ones.
_STORED_AS = {
    "publish_time": _TIME,
    "schema_id": pa.int64(),
    "schema_version": pa.int32(),
}


class SegmentOrigin(Struct, frozen=True, kw_only=True):
    """Whose messages a segment holds, and under which ownership it was written."""

    topic: str
    """The physical topic, such as /default/orders-part-3."""
    topic_id: TopicId
    epoch: int


class EncodedSegment(Struct, frozen=True, kw_only=True):
    """A segment's bytes, and what its catalogue entry says about them."""

    data: bytes
    base: Offset
    end: Offset
    raw_bytes: int
    crc32c: int
    min_time_ms: int
    max_time_ms: int
    schema_ids: tuple[int, ...] | None
    """None if there are more than SCHEMA_IDS_MAX."""
    group_crc32c: tuple[int, ...]
    """Of the bytes of each row group, so that each can be read and checked alone."""
    tail_bytes: int
    """What follows the last row group: page index and footer."""
    tail_crc32c: int


class ByteRange(NamedTuple):
    """Where some bytes of a file lie."""

    start: int
    end: int


class SegmentEncoder:
    """Turns contiguous pieces into one Parquet file. One thread at a time.

    It holds the compressed file and the rows of one row group. `finish` is called once, last.
    """

    def __init__(self, origin: SegmentOrigin, base: Offset) -> None:
        self._origin = origin
        split = split_partition(origin.topic)
        self._topic, self._partition = split if split is not None else (origin.topic, 0)
        self._base = base
        self._written_end = base
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._raw_bytes = 0
        self._times: list[int] = []
        self._schema_ids: set[int] = set()
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            SEGMENT_SCHEMA,
            version="2.6",
            compression="zstd",
            compression_level=1,
            use_dictionary=_WITH_DICTIONARY,
            write_statistics=_WITH_STATISTICS,
            column_encoding={"offset": "DELTA_BINARY_PACKED"},
            sorting_columns=[pq.SortingColumn(_OFFSET)],
            write_page_index=True,
            write_page_checksum=True,
            # Other readers need no copy of the schema in Arrow's own words.
            store_schema=False,
        )

    @property
    def end(self) -> Offset:
        """The offset that comes next."""
        return Offset(self._written_end + self._waiting_rows)

    def add(self, pieces: Sequence[Piece]) -> None:
        """Take the pieces that follow; write the row groups they complete."""
        for piece in pieces:
            assert piece.start == self.end, "a segment has no gaps"
            columns = piece.batch.record_batch()
            # A compressed batch counts as what it unpacks to, as readers of segments meet it.
            weight = max(len(piece.batch.data), columns.nbytes)
            self._raw_bytes += weight * piece.count // piece.batch.count
            self._gather(columns.slice(piece.first_row, piece.count))

    def finish(self) -> EncodedSegment:
        """Return the file; at least one piece must have been added."""
        self._write_group()
        rows = self._written_end - self._base
        assert rows > 0, "a segment holds at least one message"
        origin = self._origin
        self._writer.add_key_value_metadata(
            {
                "danube.format": str(SEGMENT_FORMAT),
                "danube.topic": origin.topic,
                "danube.topic_id": str(origin.topic_id),
                "danube.epoch": str(origin.epoch),
                "danube.base_offset": str(self._base),
                "danube.rows": str(rows),
            }
        )
        self._writer.close()
        file = self._sink.getvalue()
        groups = row_group_ranges(pq.read_metadata(pa.BufferReader(file)))
        tail = file.slice(groups[-1].end)
        return EncodedSegment(
            data=file.to_pybytes(),
            base=self._base,
            end=self._written_end,
            raw_bytes=self._raw_bytes,
            crc32c=checksum(file),
            min_time_ms=min(self._times),
            max_time_ms=max(self._times),
            schema_ids=tuple(sorted(self._schema_ids))
            if len(self._schema_ids) <= SCHEMA_IDS_MAX
            else None,
            group_crc32c=tuple(checksum(file.slice(start, end - start)) for start, end in groups),
            tail_bytes=len(tail),
            tail_crc32c=checksum(tail),
        )

    def _gather(self, rows: pa.RecordBatch) -> None:
        while rows.num_rows:
            count = rows_that_fit(
                rows,
                GROUP_BYTES_MAX - self._waiting_bytes,
                GROUP_ROWS_MAX - self._waiting_rows,
            )
            if count == 0 and self._waiting:
                self._write_group()
                continue
            taken = rows.slice(0, max(count, 1))
            self._waiting.append(taken)
            self._waiting_rows += taken.num_rows
            self._waiting_bytes += taken.nbytes
            rows = rows.slice(taken.num_rows)

    def _write_group(self) -> None:
        if not self._waiting:
            return
        # Joined first: converting a group costs the same however many batches it came in.
        group = _one_batch(pa.Table.from_batches(self._waiting))
        _check_no_nulls(group, self._origin.topic, self._written_end)
        self._note(group)
        stored = pa.Table.from_batches([self._stored(group)])
        self._writer.write_table(stored, row_group_size=stored.num_rows)
        self._written_end = Offset(self._written_end + group.num_rows)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def _stored(self, group: pa.RecordBatch) -> pa.RecordBatch:
        count = group.num_rows
        first = self._written_end
        columns = [
            pa.repeat(pa.scalar(self._topic, pa.utf8()), count),
            pa.repeat(pa.scalar(self._partition, pa.int32()), count),
            pa.arange(first, first + count),
        ]
        for name, column in zip(group.schema.names, group.columns, strict=True):
            columns.append(_stored_column(name, column))
        return pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA)

    def _note(self, group: pa.RecordBatch) -> None:
        times = pc.min_max(group.column("publish_time"))
        self._times += (times["min"].as_py(), times["max"].as_py())
        if len(self._schema_ids) <= SCHEMA_IDS_MAX:
            present = pc.unique(group.column("schema_id").drop_null())
            self._schema_ids.update(present.slice(0, SCHEMA_IDS_MAX + 1).to_pylist())


def _stored_column(name: str, column: pa.Array) -> pa.Array:
    if name == "attributes":
        return empty_for_none(column)
    stored_as = _STORED_AS.get(name)
    return column if stored_as is None else column.view(stored_as)


def checksum(data: pa.Buffer) -> int:
    """Return a CRC-32C, a step at a time: others may need the interpreter in between."""
    crc = 0
    for start in range(0, len(data), _CRC_STEP_BYTES):
        step = data.slice(start, min(_CRC_STEP_BYTES, len(data) - start))
        crc = google_crc32c.extend(crc, step)
    return crc


def row_group_ranges(metadata: pq.FileMetaData) -> list[ByteRange]:
    """Return where the row groups lie in their file: one behind the other."""
    ranges = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = [group.column(index) for index in range(group.num_columns)]
        starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
        ends = [
            start + chunk.total_compressed_size for start, chunk in zip(starts, chunks, strict=True)
        ]
        ranges.append(ByteRange(min(starts), max(ends)))
    return ranges


def rows_that_fit(rows: pa.RecordBatch, bytes_max: int, rows_max: int) -> int:
    """Return how many rows from the first on have at most so many bytes; perhaps none."""
    fitting = 0
    too_many: int = min(rows.num_rows, rows_max) + 1
    if rows.slice(0, too_many - 1).nbytes <= bytes_max:
        return too_many - 1
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        if rows.slice(0, middle).nbytes <= bytes_max:
            fitting = middle
        else:
            too_many = middle
    return fitting


def _check_no_nulls(group: pa.RecordBatch, topic: str, first: int) -> None:
    for field in SCHEMA:
        if not field.nullable and group.column(field.name).null_count:
            raise Corruption(
                f"topic {topic} has messages without {field.name} among the {group.num_rows} from "
                f"offset {first} on; a segment cannot hold them"
            )


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    return table.combine_chunks().to_batches()[0]
