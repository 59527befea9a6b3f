"""What users hand over as a batch, as rows of `model.batch.SCHEMA`. Pure.

Tables and lists of dicts with a `payload` hold messages, a column each for what a message has.
Without, every row is a message of its own: a JSON object.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from pydanube.client.routing import PartitionRouter
from pydanube.errors import InvalidRequest
from pydanube.model.batch import SCHEMA
from pydanube.wire.flight.columns import check_type, convert_column
from pydanube.wire.flight.convert import BATCH_ROWS_MAX
from pydanube.wire.flight.rows import check_rows

PIECE_BYTES_MAX = 4 * 1024 * 1024
"""What is sent at once, unless a single row is larger."""

_PANDAS_NUMBERING = "__index_level_"
_INTEGERS = ("publish_time", "schema_id", "schema_version")
_VIEWS = {pa.string_view(): pa.utf8(), pa.binary_view(): pa.binary()}


def rows_of(
    data: object,
    producer: str,
    now_ms: int,
    *,
    schema_id: int | None = None,
    schema_version: int | None = None,
) -> pa.RecordBatch:
    """Return the messages that `data` holds, in order; InvalidRequest says what is wrong with it.

    What is given stands in where it names no producer_name, publish_time and schema.
    """
    table = _table(data)
    if "payload" not in table.column_names:
        table = pa.table({"payload": [_json(row) for row in table.to_pylist()]})
    for name in table.column_names:
        if name not in SCHEMA.names or table.column_names.count(name) > 1:
            raise InvalidRequest(
                f"column {name} is none of a message's, or is there twice; messages have "
                f"{', '.join(SCHEMA.names)}. Leave it out, or put it into attributes or payload"
            )
    if not table.num_rows:
        return pa.RecordBatch.from_pylist([], schema=SCHEMA)
    given = {name: _column(name, table.column(name)) for name in table.column_names}
    absent: dict[str, Any] = {"publish_time": now_ms, "producer_name": producer}
    if "schema_id" not in given:
        absent |= {"schema_id": schema_id, "schema_version": schema_version}
    columns = []
    for field in SCHEMA:
        stand_in = absent.get(field.name)
        column = given.get(field.name)
        if column is None:
            column = pa.repeat(pa.scalar(stand_in, field.type), table.num_rows)
        elif stand_in is not None and column.null_count:
            column = pc.fill_null(column, stand_in)
        columns.append(column)
    rows = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    check_rows(rows)
    return rows


def split_by_partition(
    rows: pa.RecordBatch, router: PartitionRouter, partitions: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Give each partition its rows; those without a routing key all go to the one in turn."""
    if partitions == 1:
        yield 0, rows
        return
    keys = rows.column("routing_key").dictionary_encode()
    places = [router.pick(key) for key in keys.dictionary.to_pylist()]
    turn = router.pick(None) if keys.null_count else 0
    chosen = pc.fill_null(pc.take(pa.array(places, pa.int64()), keys.indices), turn)
    for partition in range(partitions):
        part = rows.filter(pc.equal(chosen, partition))
        if part.num_rows:
            yield partition, part


def pieces_of(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut rows into pieces that can be sent, in order."""
    count = rows.num_rows
    fits = count <= BATCH_ROWS_MAX and rows.nbytes <= PIECE_BYTES_MAX
    if count <= 1 or fits:
        if count:
            yield rows
        return
    yield from pieces_of(rows.slice(0, count // 2))
    yield from pieces_of(rows.slice(count // 2))


def _table(data: object) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    try:
        if isinstance(data, Sequence) and not isinstance(data, str | bytes):
            return _table_of_list(data)
        # Frames of pandas and polars, and whatever else speaks Arrow.
        return _without_numbering(pa.table(data))
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise InvalidRequest(
            f"cannot make a batch of {type(data).__name__}: {error}; give an Arrow table or record "
            "batch, a frame of pandas or polars, or a list of bytes, texts or dicts"
        ) from None


def _without_numbering(table: pa.Table) -> pa.Table:
    """Leave out the row numbers of pandas; an index that has a name is a column like others."""
    return table.drop_columns(
        [name for name in table.column_names if name.startswith(_PANDAS_NUMBERING)]
    )


def _json(row: object) -> bytes:
    return msgspec.json.encode(row, enc_hook=_json_of_other)


def _json_of_other(value: object) -> object:
    if isinstance(value, date | timedelta) and hasattr(value, "isoformat"):
        return value.isoformat()  # Those of pandas, which count nanoseconds.
    raise InvalidRequest(f"a {type(value).__name__} cannot be written as JSON; convert it first")


def _table_of_list(items: Sequence[Any]) -> pa.Table:
    if items and all(isinstance(item, Mapping) for item in items):
        if any("payload" in item for item in items):
            names = dict.fromkeys(name for item in items for name in item)
            return pa.table({name: _values(name, items) for name in names})
        return pa.table({"payload": [_json(item) for item in items]})
    payloads = [item.encode() if isinstance(item, str) else item for item in items]
    return pa.table({"payload": pa.array(payloads, pa.binary())})


def _values(name: str, items: Sequence[Mapping[str, Any]]) -> pa.Array:
    values = [item.get(name) for item in items]
    return _attributes(values) if name == "attributes" else pa.array(values)


def _attributes(values: Sequence[Any]) -> pa.Array:
    """Make the column of dicts, of lists of pairs, or of what polars makes of them."""
    pairs = [None if each is None else _pairs(each) for each in values]
    return pa.array(pairs, SCHEMA.field("attributes").type)


def _pairs(attributes: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401
    if isinstance(attributes, Mapping):
        # Frames give every row all names that any row has.
        return [(name, value) for name, value in attributes.items() if value is not None]
    return [
        (each["key"], each["value"]) if isinstance(each, Mapping) else tuple(each)
        for each in attributes
    ]


def _column(name: str, column: pa.ChunkedArray) -> pa.Array:
    kind = column.type
    try:
        if types.is_dictionary(kind) and kind.value_type in _VIEWS:
            column = _plain_dictionary(column, _VIEWS[kind.value_type])
        elif kind in _VIEWS:
            column = column.cast(_VIEWS[kind])
        elif types.is_floating(kind) and name in _INTEGERS:
            column = column.cast(pa.int64())  # What pandas makes of integers with gaps.
        elif name == "attributes" and _holds_attributes(kind):
            column = pa.chunked_array([_attributes(column.to_pylist())])
    except (pa.ArrowException, TypeError, ValueError, KeyError) as error:
        raise InvalidRequest(f"column {name}: {error}") from None
    check_type(name, column.type)
    # Arrow copies even what is in one piece.
    combined = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        combined = pa.concat_arrays(combined.chunks)
    return convert_column(name, combined)


def _plain_dictionary(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array(
        pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(kind))
        for chunk in column.chunks
    )


def _holds_attributes(kind: pa.DataType) -> bool:
    if types.is_map(kind):
        return kind.key_type in _VIEWS or kind.item_type in _VIEWS
    return bool(types.is_struct(kind) or types.is_list(kind) or types.is_large_list(kind))
