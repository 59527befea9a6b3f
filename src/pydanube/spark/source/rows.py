"""Messages as Spark's rows: which columns there are, and how stored columns become them. Pure."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from msgspec import Struct

from pydanube.errors import Corruption, InvalidRequest
from pydanube.model.attributes import empty_for_none
from pydanube.model.names import split_partition

COLUMNS = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "publish_time": "timestamp",
    "producer_name": "string",
    "routing_key": "string",
    "attributes": "map<string,string>",
    "schema_id": "bigint",
    "schema_version": "int",
    "payload": "binary",
}
"""Spark's type of each column, in their order."""

DECODED_COLUMNS = ("value", "decode_error")

_COMPUTED = ("topic", "partition", "offset")
"""Not in the wire's batches, and known without looking into a segment."""

ROWS_AT_ONCE = 10_000
BYTES_AT_ONCE = 4 * 1024 * 1024
BYTES_WORTH_IT = 1024 * 1024
"""A batch of so many bytes is handed on as it is: to join it with others would only copy it."""


class Place(Struct, frozen=True, kw_only=True):
    """Where rows come from."""

    topic: str
    partition: int

    @classmethod
    def of(cls, physical: str) -> "Place":
        """Split a physical name; a plain topic is its own only partition, number 0."""
        base, number = split_partition(physical) or (physical, 0)
        return cls(topic=base, partition=number)


def check_columns(names: Sequence[str], option: str, *, decoded: bool = False) -> tuple[str, ...]:
    """Return names of columns that exist, once each."""
    known = (*COLUMNS, *DECODED_COLUMNS) if decoded else tuple(COLUMNS)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidRequest(
            f"{option} names {', '.join(unknown)}, which no message has; there are "
            f"{', '.join(known)}"
            + ("" if decoded else " (value and decode_error with option decode=schema)")
        )
    if len(set(names)) != len(names):
        raise InvalidRequest(f"{option} names a column twice")
    return tuple(names)


def stored_columns(names: Iterable[str]) -> list[str]:
    """Return which of some columns must be read from where messages are stored."""
    return [name for name in names if name not in _COMPUTED]


def to_rows(rows: pa.RecordBatch, first: int, place: Place, schema: pa.Schema) -> pa.RecordBatch:
    """Return stored columns as rows of `schema`, the first of them at offset `first`."""
    count = rows.num_rows
    columns = []
    for field in schema:
        match field.name:
            case "topic":
                column = pa.repeat(pa.scalar(place.topic, field.type), count)
            case "partition":
                column = pa.repeat(pa.scalar(place.partition, field.type), count)
            case "offset":
                column = pa.arange(first, first + count)
            case name:
                column = _converted(rows.column(name), field)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _converted(column: pa.Array, field: pa.Field) -> pa.Array:
    if field.name == "attributes":
        column = empty_for_none(column)
    if column.type == field.type:
        return column
    if field.name == "publish_time" and pa.types.is_integer(column.type):
        column = column.view(pa.timestamp("ms", tz="UTC"))
    if field.name in ("schema_id", "schema_version"):
        # The same bits: nobody in Spark has unsigned numbers.
        return column.view(field.type)
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise Corruption(f"column {field.name} is not what messages hold: {error}") from error


def gather(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches, so that each one handed to Spark is worth its cost."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if batch.nbytes >= BYTES_WORTH_IT:
            if waiting:
                yield _joined(waiting)
                waiting, rows, size = [], 0, 0
            yield batch
            continue
        if rows + batch.num_rows > ROWS_AT_ONCE or size + batch.nbytes > BYTES_AT_ONCE:
            if waiting:
                yield _joined(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
