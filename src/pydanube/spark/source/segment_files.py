"""Segments opened by a task itself, without the broker: a directory, or an object store.

What is read is checked: the footer against the segment's name, every page against its checksum,
the offsets of every row group against what they must be.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from pydanube.errors import Corruption, Unavailable
from pydanube.runtime.blocking import read_file, remove_file, replace_file
from pydanube.spark.source.conditions import ANY_TIME, TimeBounds
from pydanube.spark.source.rows import ROWS_AT_ONCE
from pydanube.spark.source.stored_objects import StoredObjects
from pydanube.storage.config import Durable
from pydanube.storage.segments.encoding import SEGMENT_FORMAT

_KEY = re.compile(
    r"(?P<namespace>[^/]+)/(?P<topic>[^/]+)/(?P<id>[^/]+)/"
    r"(?P<base>\d{20})-(?P<end>\d{20})-\d+-[0-9a-f]+\.parquet"
)


class SegmentName(Struct, frozen=True, kw_only=True):
    """What the key of a segment says."""

    key: str
    topic: str
    topic_id: str
    base: int
    end: int


def read_key(key: str) -> SegmentName:
    """Take a key apart; Corruption if it is none."""
    match = _KEY.fullmatch(key)
    if match is None:
        raise Corruption(f"{key!r} is no name of a segment")
    return SegmentName(
        key=key,
        topic=f"/{match['namespace']}/{match['topic']}",
        topic_id=match["id"],
        base=int(match["base"]),
        end=int(match["end"]),
    )


def directory_of(store: Durable) -> str | None:
    """Return the directory a store is; None if it is an object store."""
    root = store.root or ""
    path = root.removeprefix("file://")
    return None if "://" in path or store.backend is not None else path.rstrip("/")


class SegmentFiles:
    """Reads segments of one store, in the process that made it: no operator survives a fork."""

    def __init__(self, store: Durable) -> None:
        self._directory = directory_of(store)
        self._objects = StoredObjects(store) if self._directory is None else None

    def try_open(self, key: str) -> None:
        """See whether a segment can be had from here; the error says why it cannot."""
        self._open(read_key(key)).close()

    def read(
        self,
        key: str,
        start: int,
        end: int,
        columns: Sequence[str],
        times: TimeBounds = ANY_TIME,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the stored columns of offsets [start, end), each batch with its first offset.

        Row groups without a message of those `times` are left out, others come whole.
        Unavailable: the object is not there any more, ask for a new plan. Corruption: it is not
        what it was when it was written.
        """
        name = read_key(key)
        with self._open(name) as file:
            for number, base in _groups_between(file.metadata, name, start, end):
                if times == ANY_TIME or _may_hold(file.metadata, number, times):
                    yield from _rows_of(file, name, number, base, start, end, columns)

    def whole(self, key: str, size: int, crc32c: int) -> bytes:
        """Return all bytes of a segment; Corruption unless they are those that were written."""
        name = read_key(key)
        if self._directory is not None:
            try:
                data = read_file(f"{self._directory}/{key}")
            except OSError as error:
                raise Unavailable(f"segment {key} cannot be opened here: {error}") from error
        else:
            assert self._objects is not None, "a store is a directory, or an object store"
            data = self._objects.read(key, 0, size)
        found = google_crc32c.value(data)
        if len(data) != size or found != crc32c:
            raise _damaged(name, f"its CRC-32C is {found:08x} and was {crc32c:08x}")
        return data

    def put(self, key: str, data: bytes) -> None:
        """Write an object under a name that nobody else has."""
        if self._directory is None:
            assert self._objects is not None, "a store is a directory, or an object store"
            self._objects.write(key, data)
            return
        try:
            replace_file(f"{self._directory}/{key}", data)
        except OSError as error:
            raise Unavailable(f"object {key} cannot be written here: {error}") from error

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""
        if self._directory is None:
            assert self._objects is not None, "a store is a directory, or an object store"
            self._objects.delete(key)
        else:
            remove_file(f"{self._directory}/{key}")

    def _open(self, name: SegmentName) -> pq.ParquetFile:
        try:
            source, pre_buffer = self._source(name.key)
            file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=pre_buffer)
        except (FileNotFoundError, PermissionError) as error:
            raise Unavailable(f"segment {name.key} cannot be opened here: {error}") from error
        except (pa.ArrowException, OSError) as error:
            raise _damaged(name, str(error)) from error
        _check_identity(file.metadata, name)
        return file

    def _source(self, key: str) -> tuple[Any, bool]:
        if self._directory is not None:
            return f"{self._directory}/{key}", False
        assert self._objects is not None, "a store is a directory, or an object store"
        return pa.PythonFile(self._objects.open(key), mode="r"), True


def _check_identity(metadata: pq.FileMetaData, name: SegmentName) -> None:
    held = {key.decode(): value.decode() for key, value in (metadata.metadata or {}).items()}
    expected = {
        "danube.format": str(SEGMENT_FORMAT),
        "danube.topic": name.topic,
        "danube.topic_id": name.topic_id,
        "danube.base_offset": str(name.base),
        "danube.rows": str(name.end - name.base),
    }
    for key, value in expected.items():
        if held.get(key) != value:
            raise _damaged(name, f"its {key} is {held.get(key)}, its name says {value}")
    if metadata.num_rows != name.end - name.base:
        raise _damaged(name, f"it has {metadata.num_rows} rows")


def _groups_between(
    metadata: pq.FileMetaData, name: SegmentName, start: int, end: int
) -> Iterator[tuple[int, int]]:
    """Yield number and first offset of the row groups that hold some of [start, end)."""
    base = name.base
    for number in range(metadata.num_row_groups):
        rows = metadata.row_group(number).num_rows
        if base < end and base + rows > start:
            _check_offsets(metadata, name, number, base)
            yield number, base
        base += rows


def _check_offsets(metadata: pq.FileMetaData, name: SegmentName, number: int, base: int) -> None:
    statistics = _statistics(metadata, number, "offset")
    if statistics is None:
        return
    found = (statistics.min, statistics.max)
    if found != (base, base + metadata.row_group(number).num_rows - 1):
        raise _damaged(name, f"row group {number} holds offsets {found[0]} to {found[1]}")


def _may_hold(metadata: pq.FileMetaData, number: int, times: TimeBounds) -> bool:
    statistics = _statistics(metadata, number, "publish_time")
    if statistics is None:
        return True
    earliest, latest = times
    too_old = earliest is not None and statistics.max_raw < earliest
    return not too_old and (latest is None or statistics.min_raw <= latest)


def _statistics(metadata: pq.FileMetaData, number: int, column: str) -> Any:  # noqa: ANN401
    group = metadata.row_group(number)
    for index in range(group.num_columns):
        chunk = group.column(index)
        if chunk.path_in_schema == column:
            found = chunk.statistics
            return found if found is not None and found.has_min_max else None
    return None


def _rows_of(
    file: pq.ParquetFile,
    name: SegmentName,
    number: int,
    base: int,
    start: int,
    end: int,
    columns: Sequence[str],
) -> Iterator[tuple[int, pa.RecordBatch]]:
    if not columns:
        # Rows without a stored column are nothing but their number.
        low = max(base, start)
        count = min(base + file.metadata.row_group(number).num_rows, end) - low
        yield low, pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
        return
    at = base
    try:
        for batch in file.iter_batches(
            ROWS_AT_ONCE, row_groups=[number], columns=list(columns), use_threads=False
        ):
            low, high = max(at, start), min(at + batch.num_rows, end)
            if low < high:
                yield low, batch.slice(low - at, high - low)
            at += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise _damaged(name, str(error)) from error


def _damaged(name: SegmentName, what: str) -> Corruption:
    return Corruption(
        f"segment {name.key} of {name.topic}, offsets {name.base} to {name.end - 1}, is damaged: "
        f"{what}. Restore the object from a copy; nothing of it was skipped"
    )
