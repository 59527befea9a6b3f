"""Files as Iceberg's manifests name them: with statistics, and the partition they belong to."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile as ManifestFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    Transform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    LongType,
    PrimitiveType,
    StringType,
    TimestamptzType,
)

from pydanube.tables.lake import DataFile
from pydanube.tables.partitioning import PartitionField


def data_file_of(
    io: FileIO, metadata: TableMetadata, file: DataFile, partition: Record
) -> ManifestFile:
    """Return a file, which exists, as a manifest's entry."""
    source = io.new_input(file.path)
    with source.open() as stream:
        footer = pq.read_metadata(stream)
    schema = metadata.schema()
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return ManifestFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=len(source),
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def partition_text(metadata: TableMetadata, rows: pa.Table) -> str:
    """Return the partition of rows, which all belong to one, as text."""
    values = []
    for field in metadata.spec().fields:
        column = metadata.schema().find_field(field.source_id)
        first = rows.column(column.name)[0]
        transform = field.transform.transform(column.field_type)
        values.append(transform(_internal(first)) if first.is_valid else None)
    return json.dumps(values)


def planned_partition_text(partitioning: Sequence[PartitionField], rows: pa.Table) -> str:
    """Do the same for partitions that the table does not have yet."""
    values: list[object] = []
    for field in partitioning:
        first = rows.column(field.column)[0]
        transform = transform_of(field).transform(_kind(first.type))
        values.append(transform(_internal(first)) if first.is_valid else None)
    return json.dumps(values)


def partition_record(text: str) -> Record:
    """Read what `partition_text` wrote."""
    return Record(*json.loads(text))


def transform_of(field: PartitionField) -> "Transform[Any, Any]":
    """Return how Iceberg derives a partition."""
    match field.transform:
        case "identity":
            return IdentityTransform()
        case "day":
            return DayTransform()
        case "hour":
            return HourTransform()
        case "bucket":
            return BucketTransform(field.buckets)


def _kind(kind: pa.DataType) -> PrimitiveType:
    if pa.types.is_timestamp(kind):
        return TimestamptzType()
    if pa.types.is_date(kind):
        return DateType()
    if pa.types.is_boolean(kind):
        return BooleanType()
    return LongType() if pa.types.is_integer(kind) else StringType()


def _internal(value: pa.Scalar) -> object:
    """Return a value as Iceberg counts it: times in microseconds, dates in days."""
    if pa.types.is_timestamp(value.type):
        return value.cast(pa.timestamp("us", "UTC")).value
    return value.value if pa.types.is_date32(value.type) else value.as_py()
