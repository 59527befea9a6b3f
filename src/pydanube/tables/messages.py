"""Messages as rows of a table: decoded by the schema each names, or set aside as dead letters.

The batch is the unit: messages of one schema version are decoded as one column.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pydanube.errors import InvalidRequest
from pydanube.schemas.format import Schema
from pydanube.spark.source.rows import Place, to_rows
from pydanube.tables.columns import (
    DEAD_LETTERS,
    ENVELOPE,
    PAYLOAD,
    VALUE,
    Columns,
    column_name,
)
from pydanube.tables.lake_types import lake_type, to_lake

DECODE = "decode"
COLUMNS = "columns"
KEY = "key"
"""The steps a message can fail at."""

RAW = pa.schema([*ENVELOPE, (PAYLOAD, pa.binary())])
"""Messages as they are stored, with the place each has."""

_DEAD_SCHEMA = pa.schema([("row", pa.int64()), ("reason", pa.string()), ("step", pa.string())])


class Schemas(Protocol):
    """Knows schemas by what messages carry. A version never changes."""

    def of(self, schema_id: int | None, version: int | None) -> Schema | None:
        """Return a schema; None where payloads have none. InvalidRequest: it does not exist."""


class Sorted(Struct, frozen=True):
    """A batch of messages after decoding."""

    rows: pa.Table
    """Rows of the table, in offset order."""
    dead: pa.Table
    """Dead letters, in offset order, without the time of their failing."""
    tombstones: pa.Table
    """Messages with an empty payload, if those mean something: the envelope alone."""


def raw_rows(batch: pa.RecordBatch, first: int, place: Place) -> pa.Table:
    """Return stored messages with all their columns, the first at offset `first`."""
    return pa.Table.from_batches([to_rows(batch, first, place, RAW)])


def sort_messages(
    raw: pa.Table, columns: Columns, schemas: Schemas, *, empty_deletes: bool = False
) -> Sorted:
    """Decode messages into rows of a table; `columns` grows by the fields they bring."""
    tombstones = raw.slice(0, 0)
    if empty_deletes:
        is_empty = pc.equal(pc.binary_length(raw.column(PAYLOAD)), 0)
        tombstones, raw = raw.filter(is_empty), raw.filter(pc.invert(is_empty))
    good: list[pa.Table] = []
    dead: list[pa.Table] = []
    for part in _by_schema(raw):
        decoded, failed = _decode(part, columns, schemas)
        good.append(decoded)
        dead.append(failed)
    rows = pa.concat_tables(
        [_widened(each, columns) for each in good] or [columns.schema.empty_table()]
    )
    letters = pa.concat_tables(dead) if dead else dead_letters(raw.slice(0, 0), [])
    if len(good) > 1:
        rows, letters = rows.sort_by("offset"), letters.sort_by("offset")
    return Sorted(rows, letters, tombstones.select(ENVELOPE.names))


def dead_letters(raw: pa.Table, reasons: Sequence[tuple[int, str, str]]) -> pa.Table:
    """Return rows of `raw` as dead letters: by row number, reason and step."""
    notes = pa.Table.from_pylist(
        [{"row": row, "reason": reason, "step": step} for row, reason, step in reasons],
        schema=_DEAD_SCHEMA,
    )
    found = raw.select(RAW.names).take(notes.column("row"))
    found = found.append_column("reason", notes.column("reason"))
    return found.append_column("step", notes.column("step"))


def stamped(letters: pa.Table, now_ms: int) -> pa.Table:
    """Return dead letters as their table has them, with the time of their failing."""
    when = pa.repeat(pa.scalar(now_ms * 1000, DEAD_LETTERS.field("failed_at").type), len(letters))
    return letters.append_column("failed_at", when).cast(DEAD_LETTERS)


def _by_schema(raw: pa.Table) -> Iterator[pa.Table]:
    """Part messages by the schema version they name; nearly always all of them name one."""
    for schema_id in pc.unique(raw.column("schema_id")):
        of_schema = _with(raw, "schema_id", schema_id)
        for version in pc.unique(of_schema.column("schema_version")):
            yield _with(of_schema, "schema_version", version)


def _with(raw: pa.Table, name: str, value: pa.Scalar) -> pa.Table:
    column = raw.column(name)
    mask = pc.fill_null(pc.equal(column, value), False) if value.is_valid else pc.is_null(column)
    return raw if pc.all(mask).as_py() else raw.filter(mask)


def _decode(raw: pa.Table, columns: Columns, schemas: Schemas) -> tuple[pa.Table, pa.Table]:
    """Decode messages of one schema version."""
    raw = raw.combine_chunks()
    schema_id, version = (raw.column(name)[0].as_py() for name in ("schema_id", "schema_version"))
    try:
        schema = schemas.of(schema_id, version)
    except InvalidRequest as error:
        failed = [(row, str(error), DECODE) for row in range(len(raw))]
        return _rows(raw.slice(0, 0), {}, columns), dead_letters(raw, failed)
    if schema is None:
        columns.admit(PAYLOAD, pa.binary())
        payload = {PAYLOAD: _single(raw.column(PAYLOAD))}
        return _rows(raw, payload, columns), dead_letters(raw, [])
    decoded = schema.decode(_single(raw.column(PAYLOAD)))
    values = decoded.values
    failures = {each.row: (each.reason, DECODE) for each in decoded.failures}
    found: dict[str, pa.Array] = {}
    for name, column in _fields(values):
        misfit = columns.admit(name, lake_type(column.type))
        if misfit is None:
            found[name] = to_lake(column)
            continue
        for row in pc.indices_nonzero(pc.is_valid(column)).to_pylist():
            failures.setdefault(row, (misfit, COLUMNS))
    letters = dead_letters(raw, [(row, *failures[row]) for row in sorted(failures)])
    if not failures:
        return _rows(raw, found, columns), letters
    keep = pa.array([row for row in range(len(raw)) if row not in failures], pa.int64())
    kept = {name: column.take(keep) for name, column in found.items()}
    return _rows(raw.take(keep), kept, columns), letters


def _fields(values: pa.Array) -> list[tuple[str, pa.Array]]:
    if not pa.types.is_struct(values.type):
        return [(VALUE, values)]
    names = (column_name(each.name) for each in values.type)
    return list(zip(names, values.flatten(), strict=True))


def _rows(raw: pa.Table, payload: dict[str, pa.Array], columns: Columns) -> pa.Table:
    envelope = {name: _single(raw.column(name)) for name in ENVELOPE.names}
    return columns.arranged({**envelope, **payload}, len(raw))


def _widened(rows: pa.Table, columns: Columns) -> pa.Table:
    """Return rows with the columns that later ones brought."""
    if rows.schema.equals(columns.schema):
        return rows
    found = {name: _single(rows.column(name)) for name in rows.column_names}
    return columns.arranged(found, len(rows))


def _single(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
