"""A streaming query from topic to topic whose driver is killed, without a word, at a chosen moment.

    python -m tests.support.killed_query '{"url": …, "kill": "in_write"}'

Spark's tasks and helpers are other processes: they learn from a file whom to kill.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pydanube.spark import session
from pydanube.spark.data_source import arrow_schema
from pydanube.spark.options import read_options
from pydanube.spark.sink.writers import StreamWriter
from pydanube.spark.source.stream_reader import StreamReader
from pyspark_danube import DefaultSource

PIDS = "KILLED_QUERY_PIDS"


def kill_driver() -> None:
    """End Java and the driver's Python as a power cut would."""
    for pid in json.loads(Path(os.environ[PIDS]).read_text()):
        os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class KillingWriter(StreamWriter):
    def commit(self, messages: list[Any], batchId: int) -> None:
        kill_driver()


class KillingReader(StreamReader):
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        kill_driver()


class KillingSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "danube_killing"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return KillingWriter.of(self.options, schema, overwrite=overwrite, default_url="")

    def streamReader(self, schema: Any) -> Any:
        options = read_options(self.options, streaming=True, now_ms=0)
        return KillingReader(options, arrow_schema(schema, options))


def kill_at(number: int) -> Any:
    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if any(
                json.loads(each)["number"] == number for each in batch.column("payload").to_pylist()
            ):
                kill_driver()
            yield batch

    return step


def main(wanted: dict[str, Any]) -> None:
    spark = session(
        "killed",
        "local[2,4]",
        **{
            "spark.ui.enabled": False,
            "spark.sql.execution.arrow.maxRecordsPerBatch": 50,
            "spark.log.level": "ERROR",
        },
    )
    spark.dataSource.register(KillingSource)
    java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    Path(os.environ[PIDS]).write_text(json.dumps([java, os.getpid()]))
    source = "danube_killing" if wanted["kill"] == "before_batch" else "danube"
    sink = "danube_killing" if wanted["kill"] == "in_commit" else "danube"
    frame = (
        spark.readStream.format(source)
        .options(url=wanted["url"], topic=wanted["source"], startingOffsets="earliest")
        .options(maxRowsPerTrigger="400", minPartitions="2")
        .load()
        .select("payload", "routing_key")
    )
    if wanted["kill"] == "in_write":
        frame = frame.mapInArrow(kill_at(wanted["number"]), "payload binary, routing_key string")
    query = (
        frame.writeStream.format(sink)
        .options(url=wanted["url"], topic=wanted["target"], batchRows="20")
        .option("checkpointLocation", wanted["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
