"""Readers of the Spark data source, driven as Spark drives them but without starting it."""

from collections.abc import Iterable
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pydanube.spark.data_source import batch_reader, stream_reader
from pydanube.spark.source.batch_reader import BatchReader
from pydanube.spark.source.rows import COLUMNS
from pydanube.spark.source.stream_reader import StreamReader
from pydanube.testing.broker import Broker

_TYPES: dict[str, Any] = {
    "topic": "string",
    "partition": "integer",
    "offset": "long",
    "publish_time": "timestamp",
    "producer_name": "string",
    "routing_key": "string",
    "attributes": {
        "type": "map",
        "keyType": "string",
        "valueType": "string",
        "valueContainsNull": True,
    },
    "schema_id": "long",
    "schema_version": "integer",
    "payload": "binary",
}


def schema(*names: str) -> StructType:
    fields = [
        {"name": name, "type": _TYPES[name], "nullable": True, "metadata": {}}
        for name in names or COLUMNS
    ]
    return StructType.fromJson({"type": "struct", "fields": fields})


def reader(broker: Broker, *columns: str, **options: object) -> BatchReader:
    made = batch_reader(_texts(broker.url, options), schema(*columns))
    assert isinstance(made, BatchReader)
    return made


def follower(url: str, **options: object) -> StreamReader:
    made = stream_reader(_texts(url, options), schema())
    assert isinstance(made, StreamReader)
    return made


def _texts(url: str, options: dict[str, object]) -> dict[str, str]:
    return {"url": url, **{name: str(value) for name, value in options.items()}}


def rows_of(
    reader: BatchReader | StreamReader, partitions: Iterable[InputPartition] | None = None
) -> list[dict[str, Any]]:
    if partitions is None:
        assert isinstance(reader, BatchReader)
        partitions = reader.partitions()
    planned = partitions
    return [row for each in planned for batch in reader.read(each) for row in batch.to_pylist()]
