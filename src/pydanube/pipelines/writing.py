"""How a batch reaches its sink, once: each kind of sink with its argument.

A batch that is repeated after a crash has the same number, the same query and the same rows.
Topics know the rows by their numbers; Delta and Iceberg tables know the batch by a note in the same
commit; Parquet files lie in a directory of the batch, which is written anew.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from pydanube.pipelines.definitions import Scalar, Sink
from pydanube.pipelines.lake_opening import lake_of
from pydanube.pipelines.lake_parts import write_frame
from pydanube.pipelines.lakes import BatchId, FileLake, storage_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Written(Struct, frozen=True, kw_only=True):
    """What a sink says about a batch."""

    rows: int
    version: int | None = None
    counts: Literal["version", "snapshot"] = "version"


def write(
    sink: Sink, frame: "DataFrame", batch: BatchId, danube: Mapping[str, str], *, ordered: bool
) -> Written:
    """Write a batch to a sink. `ordered` tells that tasks see their rows in a stable order."""
    match sink.format:
        case "danube":
            options = topic_options(sink, danube)
            return write_topic(frame, batch.query, batch.number, options, {}, ordered)
        case "delta" | "iceberg" | "sql":
            return _table(sink, frame, batch)
        case "parquet":
            path = f"{sink.path}/danube_batch={batch.query}-{batch.number:09d}"
            counted, count = _counted(frame)
            writer = counted.write.mode("overwrite").partitionBy(*sink.partition_by)
            writer.options(**storage_options(sink.options)).parquet(path)
            return Written(rows=count())
        case "console":
            rows = frame.count()
            print(f"batch {batch.number}: {rows} rows")  # noqa: T201  It is the console's sink.
            frame.show(truncate=False)
            return Written(rows=rows)
        case "noop":
            counted, count = _counted(frame)
            counted.write.format("noop").mode("overwrite").save()
            return Written(rows=count())


def topic_options(sink: Sink, danube: Mapping[str, str]) -> dict[str, str]:
    """Return a topic as sink in options of the data source."""
    return {
        **danube,
        "encode": sink.encode,
        "guarantee": sink.guarantee,
        **({"topic": sink.topic} if sink.topic else {}),
        **({"schemaSubject": sink.schema_subject} if sink.schema_subject else {}),
        **storage_options(sink.options),
    }


def write_topic(
    frame: "DataFrame",
    producer: str,
    number: int,
    danube: Mapping[str, str],
    options: Mapping[str, Scalar],
    ordered: bool,
) -> Written:
    """Append a batch to a topic, under numbers that a repeat has again."""
    counted, count = _counted(frame)
    writer = counted.write.format("danube").mode("append").options(**danube)
    writer = writer.options(producer=producer, epoch=str(number))
    writer = writer.option("order", "input" if ordered else "sorted").options(
        **storage_options(options)
    )
    writer.save()
    return Written(rows=count())


def _table(sink: Sink, frame: "DataFrame", batch: BatchId) -> Written:
    lake = lake_of(sink)
    assert lake is not None, "it is a table"
    if sink.mode == "upsert" or not isinstance(lake, FileLake):
        # Rows of one key meet in memory, and so do those of a database's transaction; a batch has
        # no more than the source's limits allow.
        rows = frame.toArrow()
        partitions = sink.partition_by
        version = lake.write(rows, batch, mode=sink.mode, key=sink.key, partition_by=partitions)
        return Written(rows=rows.num_rows, version=version, counts=lake.counts)
    done = write_frame(frame, lake, batch, mode=sink.mode, partition_by=sink.partition_by)
    return Written(rows=done.rows, version=done.version, counts=lake.counts)


def _counted(frame: "DataFrame") -> "tuple[DataFrame, Any]":
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    observation = Observation()
    return frame.observe(observation, count(lit(1)).alias("rows")), lambda: int(
        observation.get["rows"]
    )
