"""How a table is cut into partitions: by a column's value, its day, its hour, its hash. Pure.

A file holds one partition alone. Delta knows no transforms, so there a day, an hour or a bucket is
a column of its own; Iceberg derives it. Buckets are Iceberg's in both.
"""

import re
from collections.abc import Sequence
from typing import Literal, cast

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pydanube.errors import InvalidRequest

_FIELD = re.compile(r"(?:(identity|day|hour)\((\w+)\)|bucket\((\d{1,6}), *(\w+)\)|(\w+))", re.ASCII)
_PARTS = re.compile(r"(?:[^,(]|\([^)]*\)?)+")
_FORMATS = {"day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}

BUCKETS_MAX = 10_000

Transform = Literal["identity", "day", "hour", "bucket"]


class PartitionField(Struct, frozen=True):
    """One part of a partition's name."""

    transform: Transform
    column: str
    buckets: int = 0

    @property
    def name(self) -> str:
        """What the part is called."""
        return self.column if self.transform == "identity" else f"{self.column}_{self.transform}"


def read_partitioning(text: str) -> tuple[PartitionField, ...]:
    """Read `day(publish_time), bucket(16, id), region`; the empty text is no partitioning."""
    found = []
    for part in filter(None, (each.strip() for each in _PARTS.findall(text))):
        match = _FIELD.fullmatch(part)
        if match is None:
            raise InvalidRequest(
                f"{part!r} is no partitioning; write a column, day(column), hour(column) or "
                "bucket(16, column)"
            )
        if match[3] is None:
            transform = cast(Transform, match[1] or "identity")
            found.append(PartitionField(transform, match[2] or match[5]))
        elif 1 <= int(match[3]) <= BUCKETS_MAX:
            found.append(PartitionField("bucket", match[4], int(match[3])))
        else:
            raise InvalidRequest(f"{part}: there are 1 to {BUCKETS_MAX} buckets")
    if len({each.column for each in found}) != len(found):
        raise InvalidRequest(f"{text!r} names a column twice")
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
        if each.transform in _FORMATS and not pa.types.is_timestamp(kind):
            raise InvalidRequest(f"{each.transform}({each.column}) needs a time, not {kind}")
        if each.transform == "bucket" and not (
            pa.types.is_integer(kind) or pa.types.is_string(kind)
        ):
            raise InvalidRequest(f"bucket({each.column}) needs a text or an integer, not {kind}")
        if each.transform == "identity" and not _is_plain(kind):
            raise InvalidRequest(f"a table cannot be partitioned by {each.column}, a {kind}")


def partition_column(field: PartitionField, kind: pa.DataType) -> pa.Field:
    """Return the column that holds a partition's value, for tables that derive nothing."""
    match field.transform:
        case "identity":
            return pa.field(field.name, kind)
        case "bucket":
            return pa.field(field.name, pa.int32())
        case "day" | "hour":
            return pa.field(field.name, pa.string())


def with_values(rows: pa.Table, fields: Sequence[PartitionField]) -> pa.Table:
    """Return rows with the columns that partitions go by, derived ones included."""
    for each in fields:
        if each.transform == "identity":
            continue
        column = rows.column(each.column)
        if each.transform == "bucket":
            values = _buckets(column, each.buckets)
        else:
            values = pc.strftime(column, _FORMATS[each.transform])
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


def _buckets(column: pa.ChunkedArray, buckets: int) -> pa.Array:
    """Return the bucket of each value, by Iceberg's hash; each value is hashed once."""
    from pyiceberg.transforms import BucketTransform
    from pyiceberg.types import LongType, StringType

    kind = LongType() if pa.types.is_integer(column.type) else StringType()
    bucket = BucketTransform(buckets).transform(kind)
    coded = column.combine_chunks().dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    of_value = pa.array([bucket(each) for each in coded.dictionary.to_pylist()], pa.int32())
    return of_value.take(coded.indices)


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
