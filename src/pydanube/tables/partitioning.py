"""How a table is cut into partitions: by a column's value, its day or its hour. Pure.

A file holds one partition alone. Delta knows no transforms, so there a day or an hour is a column
of its own; Iceberg derives it.
"""

import re
from collections.abc import Sequence
from typing import Literal, cast

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pydanube.errors import InvalidRequest

_FIELD = re.compile(r"(?:(identity|day|hour)\((\w+)\)|(\w+))", re.ASCII)
_FORMATS = {"day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}

Transform = Literal["identity", "day", "hour"]


class PartitionField(Struct, frozen=True):
    """One part of a partition's name."""

    transform: Transform
    column: str

    @property
    def name(self) -> str:
        """What the part is called."""
        return self.column if self.transform == "identity" else f"{self.column}_{self.transform}"


def read_partitioning(text: str) -> tuple[PartitionField, ...]:
    """Read `day(publish_time), region`; the empty text is no partitioning."""
    found = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        match = _FIELD.fullmatch(part)
        if match is None:
            raise InvalidRequest(
                f"{part!r} is no partitioning; write a column, day(column) or hour(column)"
            )
        transform = cast(Transform, match[1] or "identity")
        found.append(PartitionField(transform, match[2] or match[3]))
    return tuple(found)


def check_partitioning(fields: Sequence[PartitionField], columns: pa.Schema) -> None:
    """Refuse what a table with these columns cannot be cut by."""
    for each in fields:
        if each.column not in columns.names:
            raise InvalidRequest(
                f"the table cannot be partitioned by {each.column}: it has the columns "
                f"{', '.join(columns.names)}"
            )
        kind = columns.field(each.column).type
        if each.transform != "identity" and not pa.types.is_timestamp(kind):
            raise InvalidRequest(f"{each.transform}({each.column}) needs a time, not {kind}")
        if each.transform == "identity" and not _is_plain(kind):
            raise InvalidRequest(f"a table cannot be partitioned by {each.column}, a {kind}")


def partition_column(field: PartitionField, kind: pa.DataType) -> pa.Field:
    """Return the column that holds a partition's value, for tables that derive nothing."""
    return pa.field(field.name, kind if field.transform == "identity" else pa.string())


def with_values(rows: pa.Table, fields: Sequence[PartitionField]) -> pa.Table:
    """Return rows with the columns that partitions go by, as text where they are derived."""
    for each in fields:
        if each.transform == "identity":
            continue
        values = pc.strftime(rows.column(each.column), _FORMATS[each.transform])
        if each.name in rows.column_names:
            rows = rows.drop_columns([each.name])
        rows = rows.append_column(each.name, values)
    return rows


def split(
    rows: pa.Table, fields: Sequence[PartitionField]
) -> list[tuple[dict[str, object], pa.Table]]:
    """Cut rows, which have the columns partitions go by, into one part per partition."""
    names = [each.name for each in fields]
    if not names:
        return [({}, rows)]
    parts: list[tuple[dict[str, object], pa.Table]] = [({}, rows)]
    for name in names:
        parts = [
            ({**values, name: value.as_py()}, _with(part, name, value))
            for values, part in parts
            for value in pc.unique(part.column(name))
        ]
    return parts


def _with(rows: pa.Table, name: str, value: pa.Scalar) -> pa.Table:
    column = rows.column(name)
    same = pc.fill_null(pc.equal(column, value), False) if value.is_valid else pc.is_null(column)
    return rows.filter(same)


def _is_plain(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_date(kind)
        or pa.types.is_boolean(kind)
    )
