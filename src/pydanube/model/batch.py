"""Messages of one topic in columns: the unit that wire, journal, cache and segments move."""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from struct import Struct as Layout
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pydanube.errors import Corruption, InvalidRequest
from pydanube.model.message import Message
from pydanube.model.timing import (
    HeldBack,
    RowTiming,
    check_timing_column,
    held_back,
    row_timings,
)

_TEXT = pa.utf8()
_ATTRIBUTES = pa.map_(_TEXT, _TEXT)

SCHEMA = pa.schema(
    [
        pa.field("publish_time", pa.int64(), nullable=False),
        pa.field("producer_name", _TEXT, nullable=False),
        pa.field("routing_key", _TEXT),
        pa.field("attributes", _ATTRIBUTES),
        pa.field("schema_id", pa.uint64()),
        pa.field("schema_version", pa.uint32()),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
"""Offsets are no column: a row's offset is the batch's base offset plus its row number."""

# Columns weigh some kilobytes of their own, which nobody accounts for, and cost little to open.
_COLUMNS_KEPT_BYTES_MIN = 64 * 1024

UNPACKED_KEPT_MAX = 8
"""Compressed batches whose columns are kept: those opened last, of all that were opened more than
once. Each weighs 16 MiB at most, and 4 MiB if our own client sent it."""

_END_BYTES = 4
"""Of what says where a payload ends: Arrow's plain binary column has 32-bit offsets."""

_TIME, _PRODUCER, _KEY, _ATTRS, _SCHEMA_ID, _SCHEMA_VERSION, _PAYLOAD = range(len(SCHEMA))


class Batch:
    """Immutable rows of `SCHEMA`, kept as the bytes that are written, sent and checksummed.

    `data` is one encapsulated Arrow IPC record-batch message, without the schema; its buffers may
    be compressed. `wire` holds the original request of each row, for batches gathered from single
    messages that came with theirs.
    """

    __slots__ = (
        "_columns",
        "_is_packed",
        "_payload_bytes",
        "_timings",
        "count",
        "data",
        "size_bytes",
        "wire",
    )

    def __init__(
        self,
        data: bytes | memoryview,
        count: int,
        *,
        wire: Sequence[bytes] | None = None,
        columns: "pa.RecordBatch | None" = None,
        payload_bytes: int | None = None,
        timings: Sequence[RowTiming] | None = None,
    ) -> None:
        self.data = data
        self.count = count
        self.wire = wire
        self.size_bytes = len(data) + (sum(map(len, wire)) if wire is not None else 0)
        self._is_packed = False  # As far as is known before it was opened.
        self._columns = columns if len(data) >= _COLUMNS_KEPT_BYTES_MIN else None
        self._payload_bytes = payload_bytes
        self._timings = timings

    @classmethod
    def gather(cls, messages: Sequence[Message]) -> "Batch":
        """Put single messages into columns, in their order."""
        rows = gather_columns(messages)
        count = len(messages)
        wire = [message.wire for message in messages if message.wire is not None]
        return cls(
            rows.serialize().to_pybytes(),
            count,
            wire=wire if len(wire) == count else None,
            payload_bytes=sum([len(message.payload) for message in messages]),
            timings=() if rows.column(_ATTRS).null_count == count else None,
        )

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, count: int) -> "Batch":
        """Take a batch as it was stored or received; it is opened only when rows are asked for."""
        return cls(data, count)

    def record_batch(self) -> pa.RecordBatch:
        """Return the rows as Arrow columns, which share the memory of `data`.

        Those of a compressed batch are unpacked, and kept for a while if that is done again.
        """
        if self._columns is not None:
            return self._columns
        if self._is_packed:
            return _unpacked(self)
        columns = self._open()
        if columns.nbytes > len(self.data):
            # They lie beside its bytes, where nobody accounts for them.
            self._is_packed = True
        elif len(self.data) >= _COLUMNS_KEPT_BYTES_MIN:
            self._columns = columns
        return columns

    def _open(self) -> pa.RecordBatch:
        try:
            columns = pa.ipc.read_record_batch(pa.py_buffer(self.data), SCHEMA)
        except (pa.ArrowException, OSError) as error:
            raise Corruption(f"a stored batch is not an Arrow record batch: {error}") from error
        if columns.num_rows != self.count:
            raise Corruption(
                f"a stored batch holds {columns.num_rows} rows, its header says {self.count}"
            )
        return columns

    def messages(self, first_row: int, end_row: int) -> list[Message]:
        """Return rows as single messages."""
        columns = self.record_batch().slice(first_row, end_row - first_row)
        count = columns.num_rows
        attributes: Sequence[Any] = _values(columns, _ATTRS)
        wire: Sequence[bytes | None] = (
            self.wire[first_row:end_row] if self.wire is not None else [None] * count
        )
        return [
            Message(
                payload=payload,
                publish_time_ms=time,
                producer_name=name,
                routing_key=key,
                attributes=dict(pairs) if pairs is not None else None,
                schema_id=schema_id,
                schema_version=schema_version,
                wire=request,
            )
            for payload, time, name, key, pairs, schema_id, schema_version, request in zip(
                _values(columns, _PAYLOAD),
                _values(columns, _TIME),
                _values(columns, _PRODUCER),
                _values(columns, _KEY),
                attributes,
                _values(columns, _SCHEMA_ID),
                _values(columns, _SCHEMA_VERSION),
                wire,
                strict=True,
            )
        ]

    def timings(self) -> Sequence[RowTiming]:
        """Return the rows that have attributes about their time."""
        if self._timings is None:
            columns = self.record_batch()
            self._timings = row_timings(columns.column(_ATTRS), columns.column(_TIME))
        return self._timings

    def held_back(
        self, first_row: int, end_row: int, *, now_ms: int, ttl_ms: int | None
    ) -> Sequence[HeldBack]:
        """Return the rows of [first_row, end_row) that must not be sent now; see `timing`."""
        timings = self.timings()
        if not timings and ttl_ms is None:
            return ()
        times = self.record_batch().column(_TIME)
        return held_back(timings, times, first_row, end_row, now_ms=now_ms, ttl_ms=ttl_ms)

    def check_timings(self) -> None:
        """Refuse attributes about time that mean nothing."""
        if self._timings is None:
            check_timing_column(self.record_batch().column(_ATTRS))

    def first_published_after(self, first_row: int, end_row: int, limit_ms: int) -> int | None:
        """Return the first row of [first_row, end_row) published after that time; None if none."""
        times = self.record_batch().column(_TIME).slice(first_row, end_row - first_row)
        later = pc.index(pc.greater(times, limit_ms), True).as_py()
        return None if later < 0 else first_row + later

    @property
    def payload_bytes(self) -> int:
        """The bytes of all payloads together."""
        if self._payload_bytes is None:
            self._payload_bytes = self._payload_bytes_between(0, self.count)
        return self._payload_bytes

    def payload_bytes_of(self, first_row: int, end_row: int) -> int:
        """Return the bytes of the payloads of rows, however many there are, at one price."""
        if end_row - first_row == self.count:
            return self.payload_bytes
        return self._payload_bytes_between(first_row, end_row)

    def _payload_bytes_between(self, first_row: int, end_row: int) -> int:
        column = self.record_batch().column(_PAYLOAD)
        first, end = column.offset + first_row, column.offset + end_row
        ends = memoryview(column.buffers()[1])[: (end + 1) * _END_BYTES].cast("i")
        size: int = ends[end] - ends[first]
        return size

    def largest_payload(self) -> int:
        """Return the bytes of the largest payload."""
        largest: int = pc.max(self._payload_lengths()).as_py()
        return largest

    def _payload_lengths(self) -> pa.Array:
        return pc.binary_length(self.record_batch().column(_PAYLOAD))

    def routing_keys(self, first_row: int, end_row: int) -> list[str]:
        """Return what each row is routed by: its routing key, else its producer's name."""
        columns = self.record_batch().slice(first_row, end_row - first_row)
        names: list[str] = columns.column(_PRODUCER).to_pylist()
        keys = columns.column(_KEY)
        if keys.null_count == len(names):
            return names
        pairs = zip(keys.to_pylist(), names, strict=True)
        return [name if key is None else key for key, name in pairs]


@lru_cache(maxsize=UNPACKED_KEPT_MAX)
def _unpacked(batch: Batch) -> pa.RecordBatch:
    return batch._open()


def gather_columns(messages: Sequence[Message]) -> pa.RecordBatch:
    """Put single messages into columns, in their order."""
    if not messages:
        raise InvalidRequest("a batch holds at least one message")
    times = array("q", [message.publish_time_ms for message in messages])
    names = [message.producer_name for message in messages]
    keys = [message.routing_key for message in messages]
    attributes = [message.attributes for message in messages]
    schema_ids = [message.schema_id for message in messages]
    schema_versions = [message.schema_version for message in messages]
    payloads = [message.payload for message in messages]
    nulls = _null_columns(len(messages))
    columns = [
        _time_column(times),
        _name_column(names),
        pa.array(keys, _TEXT) if _any_given(keys) else nulls[_KEY],
        _attribute_column(attributes) if _any_given(attributes) else nulls[_ATTRS],
        pa.array(schema_ids, pa.uint64()) if _any_given(schema_ids) else nulls[_SCHEMA_ID],
        pa.array(schema_versions, pa.uint32())
        if _any_given(schema_versions)
        else nulls[_SCHEMA_VERSION],
        pa.array(payloads, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def payload_columns(
    payloads: Sequence[bytes],
    times: "array[int]",
    producer: str,
    schema_id: int | None,
    schema_version: int | None,
) -> pa.RecordBatch:
    """Return messages that differ in payload and time alone, without an object for each."""
    count = len(payloads)
    nulls = _null_columns(count)
    schema_ids, schema_versions = nulls[_SCHEMA_ID], nulls[_SCHEMA_VERSION]
    if schema_id is not None:
        schema_ids = pa.repeat(pa.scalar(schema_id, pa.uint64()), count)
    if schema_version is not None:
        schema_versions = pa.repeat(pa.scalar(schema_version, pa.uint32()), count)
    columns = [
        _time_column(times),
        _name_column([producer] * count),
        nulls[_KEY],
        nulls[_ATTRS],
        schema_ids,
        schema_versions,
        pa.array(payloads, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _time_column(times: "array[int]") -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(times), [None, pa.py_buffer(times)])


def payloads_of(rows: pa.RecordBatch) -> list[bytes]:
    """Return the payloads of rows of `SCHEMA`, without an Arrow object for each of them."""
    column = rows.column(_PAYLOAD)
    _, offsets, data = column.buffers()
    if not len(column) or data is None:
        return [b""] * len(column)
    count = len(column)
    bounds = memoryview(offsets).cast("i")[column.offset : column.offset + count + 1].tolist()
    start, length = bounds[0], bounds[1] - bounds[0]
    if length and bounds == [*range(start, bounds[-1] + length, length)]:
        return _cut_evenly(memoryview(data)[start:], length, count)
    held: bytes = data.slice(start, bounds[-1] - start).to_pybytes()
    return [held[low - start : high - start] for low, high in pairwise(bounds)]


def _cut_evenly(data: memoryview, length: int, count: int) -> list[bytes]:
    """Return the first `count` pieces of equal length, copied once and by C alone."""
    pieces: list[bytes] = []
    for first in range(0, count, _CUT_AT_ONCE):
        layout = _equal_pieces(length, min(_CUT_AT_ONCE, count - first))
        pieces += layout.unpack_from(data, first * length)
    return pieces


def _values(columns: pa.RecordBatch, index: int) -> Sequence[Any]:
    """Return one column's values; Any because each column has a type of its own."""
    column = columns.column(index)
    if column.null_count == len(column):
        return [None] * len(column)
    values: list[Any] = column.to_pylist()
    return values


def _any_given(values: list[Any]) -> bool:
    return values.count(None) < len(values)


def _name_column(names: list[str]) -> pa.Array:
    first = names[0]
    if names.count(first) == len(names) and len(first) * len(names) <= _CACHED_BYTES_MAX:
        return _constant_name_column(first, len(names))
    return pa.array(names, _TEXT)


def _attribute_column(attributes: list[Any]) -> pa.Array:
    rows = [list(pairs.items()) if pairs else None for pairs in attributes]
    return pa.array(rows, _ATTRIBUTES)


# Building these costs as much as the rest of a small batch, and the same few recur for ever. Names
# are chosen by clients, so what one of them can pin here is bounded.
_CACHED_BYTES_MAX = 64 * 1024


_CUT_AT_ONCE = 1_024


@lru_cache(maxsize=64)
def _equal_pieces(length: int, count: int) -> Layout:
    return Layout(f"{length}s" * count)


@lru_cache(maxsize=256)
def _constant_name_column(name: str, count: int) -> pa.Array:
    return pa.array([name] * count, _TEXT)


@lru_cache(maxsize=256)
def _null_columns(count: int) -> tuple[pa.Array, ...]:
    return tuple(pa.nulls(count, field.type) for field in SCHEMA)
