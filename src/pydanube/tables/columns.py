"""Which columns a table has: the envelope of messages, then the fields of payloads. Pure.

Columns are found by name, never by position. They are added, never taken away and never
re-typed: a value that does not fit the column of its name makes its message a dead letter.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from pydanube.tables.lake_types import UTC_MICROSECONDS, conform, merged, same_shape

ENVELOPE = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("publish_time", UTC_MICROSECONDS),
        ("producer_name", pa.string()),
        ("routing_key", pa.string()),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("schema_id", pa.int64()),
        ("schema_version", pa.int32()),
    ]
)
"""What every message has."""

PAYLOAD = "payload"
"""The column of payloads that no schema describes."""

VALUE = "value"
"""The column of payloads whose schema describes something else than fields."""

DEAD_LETTERS = pa.schema(
    [
        *ENVELOPE,
        (PAYLOAD, pa.binary()),
        ("reason", pa.string()),
        ("step", pa.string()),
        ("failed_at", UTC_MICROSECONDS),
    ]
)
"""The columns of a table of dead letters."""


def column_name(field: str) -> str:
    """Return the column of a payload's field: its own name, unless the envelope has that."""
    return f"payload_{field}" if field in ENVELOPE.names else field


def columns_of(kind: pa.DataType | None) -> pa.Schema:
    """Return all columns of a table, given the type of payloads in tables; None: no schema."""
    if kind is None:
        return ENVELOPE.append(pa.field(PAYLOAD, pa.binary()))
    if not pa.types.is_struct(kind):
        return ENVELOPE.append(pa.field(VALUE, kind))
    return pa.schema([*ENVELOPE, *((column_name(each.name), each.type) for each in kind)])


class Columns:
    """The columns of one table while messages are added to it."""

    def __init__(self, there: pa.Schema) -> None:
        self._there = {each.name: same_shape(each.type) for each in there}
        self._now = dict(self._there)

    @property
    def schema(self) -> pa.Schema:
        """All columns, those that are to be added last."""
        return pa.schema(list(self._now.items()))

    @property
    def added(self) -> pa.Schema:
        """The columns that the table has not yet, or has with fewer fields inside."""
        return pa.schema(
            [
                (name, kind)
                for name, kind in self._now.items()
                if name not in self._there or not self._there[name].equals(kind)
            ]
        )

    def admit(self, name: str, kind: pa.DataType) -> str | None:
        """Make room for values of a type; if the column is of another one, return why not."""
        before = self._now.get(name)
        found = kind if before is None else merged(before, kind)
        if found is None:
            return f"column {name} of the table is {before}, and the schema says {kind}"
        self._now[name] = found
        return None

    def arranged(self, columns: Mapping[str, pa.Array], rows: int) -> pa.Table:
        """Return columns as rows of the table: in its order, nulls where there is nothing."""
        arrays: Sequence[pa.Array] = [
            conform(columns[name], kind) if name in columns else pa.nulls(rows, kind)
            for name, kind in self._now.items()
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)


def single_arrays(rows: pa.Table) -> dict[str, pa.Array]:
    """Return the columns of rows, each in one chunk; those without a chunk are left out."""
    whole = rows.combine_chunks()
    return {
        name: whole.column(name).chunk(0)
        for name in whole.column_names
        if whole.column(name).num_chunks
    }
