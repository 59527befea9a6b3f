"""Segments that somebody else has joined: their names, and whether they may be taken. Pure.

Whoever joins elsewhere may have a bug, or memory that flips bits before checksums are computed.
So every message of a staged object is compared with the one it would take the place of, columns
at a time, before anything is swapped.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pydanube.errors import Corruption
from pydanube.model.batch import SCHEMA
from pydanube.model.ids import Offset
from pydanube.model.names import split_partition
from pydanube.storage.pieces import Piece
from pydanube.storage.segments.catalog import SegmentEntry, directory_of
from pydanube.storage.segments.decoding import SegmentLayout, as_published, read_layout
from pydanube.storage.segments.encoding import (
    GROUP_BYTES_MAX,
    GROUP_ROWS_MAX,
    SCHEMA_IDS_MAX,
    SEGMENT_SCHEMA,
    EncodedSegment,
    SegmentOrigin,
    checksum,
)

# Pages have bytes of their own, about which those who cut row groups know nothing.
_GROUP_STORED_BYTES_MAX = 2 * GROUP_BYTES_MAX


class StagedWrong(Corruption):
    """A staged object must not take the place of anything; those it was made of are whole."""


class Staged(Struct, frozen=True, kw_only=True):
    """A joined segment that somebody else has written to the topic's directory."""

    key: str
    bytes: int
    crc32c: int


def staged_key(origin: SegmentOrigin, token: int) -> str:
    """Return a name to stage an object under; upkeep sweeps up what is left behind."""
    return f"{directory_of(origin.topic, origin.topic_id)}joined-{token:016x}.parquet"


class StagedSegment:
    """A staged object beside the run that it would replace.

    `open` comes first, then `compare` for each of its row groups; the segment may be taken once
    all of them were. Each refuses with StagedWrong. They take milliseconds per megabyte, so they
    are called from worker threads.
    """

    def __init__(
        self, origin: SegmentOrigin, run: Sequence[SegmentEntry], staged: Staged, data: bytes
    ) -> None:
        self._origin = origin
        self._run = run
        self._staged = staged
        self._data = data
        self._layout: SegmentLayout | None = None

    @property
    def layout(self) -> SegmentLayout:
        """What its footer says."""
        assert self._layout is not None, "it was not opened"
        return self._layout

    def open(self) -> None:
        """Check its bytes as a whole, its footer, and the shape of what lies in between."""
        found = checksum(pa.py_buffer(self._data))
        if found != self._staged.crc32c:
            raise StagedWrong(
                f"object {self._staged.key} has the CRC-32C {found:08x}, and "
                f"{self._staged.crc32c:08x} was written"
            )
        base, end = self._run[0].base, self._run[-1].end
        with self._refusing():
            layout = read_layout(
                self._data,
                len(self._data),
                topic_id=self._origin.topic_id,
                base=base,
                rows=end - base,
            )
            _check_shape(layout)
        self._layout = layout

    def compare(self, number: int, sources: Sequence[Piece]) -> None:
        """Compare one row group, read to its last page, with just the messages it must hold."""
        group = self.layout.groups[number]
        data = self._data[group.position : group.position + group.size]
        with self._refusing():
            stored = self.layout.stored(number, data, SEGMENT_SCHEMA.names)
            _check_names(stored, self._origin.topic)
            joined = as_published(stored)
            rows = [each.batch.record_batch().slice(each.first_row, each.count) for each in sources]
            expected = pa.Table.from_batches(rows, schema=SCHEMA)
            if not joined.equals(expected):
                raise Corruption(self._difference(joined, expected, group.base))

    def segment(self) -> EncodedSegment:
        """Return it as a segment. Its messages are those of the run, hence their times as well."""
        groups = self.layout.groups
        file = pa.py_buffer(self._data)
        tail = file.slice(groups[-1].position + groups[-1].size)
        known = [entry.schema_ids for entry in self._run]
        schema_ids = {each for ids in known if ids is not None for each in ids}
        many = None in known or len(schema_ids) > SCHEMA_IDS_MAX
        return EncodedSegment(
            data=self._data,
            base=self._run[0].base,
            end=self._run[-1].end,
            raw_bytes=sum(entry.raw_bytes for entry in self._run),
            crc32c=self._staged.crc32c,
            min_time_ms=min(entry.min_time_ms for entry in self._run),
            max_time_ms=max(entry.max_time_ms for entry in self._run),
            schema_ids=None if many else tuple(sorted(schema_ids)),
            group_crc32c=tuple(checksum(file.slice(each.position, each.size)) for each in groups),
            tail_bytes=len(tail),
            tail_crc32c=checksum(tail),
        )

    def _difference(self, joined: pa.Table, expected: pa.Table, base: Offset) -> str:
        row = _first_difference(joined, expected)
        columns = [
            name
            for name in SCHEMA.names
            if not joined.column(name).slice(row, 1).equals(expected.column(name).slice(row, 1))
        ]
        entry = entry_at(self._run, Offset(base + row))
        return (
            f"the message at offset {base + row} has another {' and '.join(columns)} than in "
            f"segment {entry.key}, which holds offsets {entry.base} to {entry.end - 1}. Nothing "
            "was joined; look for what is wrong with the job or its machine before it runs again"
        )

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except Corruption as error:
            raise StagedWrong(
                f"object {self._staged.key} is no segment of {self._origin.topic}: {error}"
            ) from error


def entry_at(run: Sequence[SegmentEntry], offset: Offset) -> SegmentEntry:
    """Return the entry of a run that holds one of its offsets."""
    return run[bisect_right(run, offset, key=lambda entry: entry.base) - 1]


def _check_shape(layout: SegmentLayout) -> None:
    """Refuse columns that others could not read, and row groups too large to hold in memory."""
    if not layout.schema.equals(SEGMENT_SCHEMA):
        raise Corruption("its columns are not those of a segment")
    for group in layout.groups:
        too_large = group.raw_size > _GROUP_STORED_BYTES_MAX and group.rows > 1
        if group.rows > GROUP_ROWS_MAX or too_large:
            raise Corruption(
                f"its row group from offset {group.base} on has {group.rows} messages of "
                f"{group.raw_size} bytes together; {GROUP_ROWS_MAX} and {GROUP_BYTES_MAX} are the "
                "most"
            )


def _check_names(stored: pa.Table, physical: str) -> None:
    topic, partition = split_partition(physical) or (physical, 0)
    for name, value in (("topic", topic), ("partition", partition)):
        if not pc.all(pc.equal(stored.column(name), value)).as_py():
            raise Corruption(f"its column {name} is not {value} everywhere")


def _first_difference(one: pa.Table, other: pa.Table) -> int:
    """Return the first row in which tables of as many rows differ; there is one."""
    same, different = 0, one.num_rows
    while different - same > 1:
        middle = (same + different) // 2
        if one.slice(same, middle - same).equals(other.slice(same, middle - same)):
            same = middle
        else:
            different = middle
    return same
