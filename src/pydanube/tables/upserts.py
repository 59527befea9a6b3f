"""A table with one row per key: the last message of each wins, an empty payload deletes. Pure."""

import pyarrow as pa
import pyarrow.compute as pc

from pydanube.tables.columns import ENVELOPE, Columns
from pydanube.tables.lake import Upsert
from pydanube.tables.messages import KEY, Sorted, dead_letters

_NO_KEY = "a table with a key has no place for a message without one: {} is empty"
_ORDER = "__order"
_DELETED = "__deleted"


class UpsertRows:
    """Gathers the rows of a range, and reduces them to the last one of each key."""

    def __init__(self, key: tuple[str, ...]) -> None:
        self._key = key
        self._rows: list[pa.Table] = []
        self._deleted: list[pa.Table] = []
        self._count = 0

    def add(self, raw: pa.Table, found: Sorted) -> pa.Table:
        """Take rows and deletions; return those without a key as dead letters."""
        order = dict(zip(raw.column("offset").to_pylist(), range(len(raw)), strict=True))
        lacking: list[int] = []
        for rows, kept in ((found.rows, self._rows), (found.tombstones, self._deleted)):
            keyed = self._has_key(rows)
            lacking += rows.filter(pc.invert(keyed)).column("offset").to_pylist()
            rows = rows.filter(keyed)
            numbers = [self._count + order[each] for each in rows.column("offset").to_pylist()]
            kept.append(rows.append_column(_ORDER, pa.array(numbers, pa.int64())))
        self._count += len(raw)
        reason = _NO_KEY.format(" or ".join(self._key))
        return dead_letters(raw, [(order[each], reason, KEY) for each in sorted(lacking)])

    def reduced(self, columns: Columns) -> Upsert:
        """Return what the range comes to."""
        rows = _joined(self._rows, columns)
        deleted = pa.concat_tables([_numbered(ENVELOPE), *self._deleted])
        deleted = deleted.select([*self._delete_key(), _ORDER])
        both = pa.concat_tables(
            [
                rows.select([*self._key, _ORDER]).append_column(
                    _DELETED, pa.repeat(pa.scalar(False), len(rows))
                ),
                _keys(deleted, self._key, rows.schema).append_column(
                    _DELETED, pa.repeat(pa.scalar(True), len(deleted))
                ),
            ]
        )
        winners = _last_of_each(both, self._key)
        rows = rows.filter(pc.is_in(rows.column(_ORDER), winners)).drop_columns([_ORDER])
        gone = both.filter(pc.and_(both.column(_DELETED), pc.is_in(both.column(_ORDER), winners)))
        return Upsert(key=self._key, rows=rows, deleted=gone.select(list(self._key)))

    def _has_key(self, rows: pa.Table) -> pa.Array:
        """Tell which rows have all columns of the key. An empty payload has no fields."""
        found = pa.repeat(pa.scalar(True), len(rows))
        for name in self._key:
            if name not in rows.column_names:
                return pa.repeat(pa.scalar(False), len(rows))
            found = pc.and_(found, pc.is_valid(rows.column(name)))
        return found

    def _delete_key(self) -> list[str]:
        return [name for name in self._key if name in ENVELOPE.names]


def _last_of_each(rows: pa.Table, key: tuple[str, ...]) -> pa.Array:
    """Return the numbers of the last row of each key."""
    rows = rows.sort_by([(name, "ascending") for name in (*key, _ORDER)]).combine_chunks()
    if len(rows) < 2:
        return rows.column(_ORDER).combine_chunks()
    ends = pa.repeat(pa.scalar(False), len(rows) - 1)
    for name in key:
        column = rows.column(name)
        ends = pc.or_(ends, pc.not_equal(column.slice(0, len(rows) - 1), column.slice(1)))
    last = pa.concat_arrays([*ends.chunks, pa.array([True])])
    return rows.column(_ORDER).combine_chunks().filter(last)


def _joined(parts: list[pa.Table], columns: Columns) -> pa.Table:
    widened = [_numbered(columns.schema)]
    for part in parts:
        whole = part.combine_chunks()
        arrays = {
            name: whole.column(name).chunk(0)
            for name in whole.column_names
            if name != _ORDER and whole.column(name).num_chunks
        }
        rows = columns.arranged(arrays, len(part))
        widened.append(rows.append_column(_ORDER, whole.column(_ORDER)))
    return pa.concat_tables(widened)


def _numbered(schema: pa.Schema) -> pa.Table:
    return schema.append(pa.field(_ORDER, pa.int64())).empty_table()


def _keys(deleted: pa.Table, key: tuple[str, ...], schema: pa.Schema) -> pa.Table:
    """Return deletions with all columns of the key; those of payloads only where there are none."""
    arrays = [
        deleted.column(name)
        if name in deleted.column_names
        else pa.nulls(len(deleted), schema.field(name).type)
        for name in key
    ]
    fields = [schema.field(name) for name in key]
    found = pa.table(arrays, schema=pa.schema(fields))
    return found.append_column(_ORDER, deleted.column(_ORDER))
