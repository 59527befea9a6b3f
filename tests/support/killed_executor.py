"""Spark with executors of their own, some of which are killed or doubled in the middle of a task.

    python -m tests.support.killed_executor '{"url": …, "master": …, "directory": …, …}'

Every scenario goes from one topic to another, or to a file with the rows that were read. Executors
are processes: they learn from the options of a scenario when to strike, and from a file that it
has been done, for it is done once.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql.datasource import InputPartition

from pydanube.spark import session
from pydanube.spark.data_source import arrow_schema
from pydanube.spark.options import read_options, write_options
from pydanube.spark.sink.frames import check_frame
from pydanube.spark.sink.writers import BatchWriter, StreamWriter
from pydanube.spark.source.batch_reader import BatchReader
from pydanube.spark.source.stream_reader import StreamReader
from pyspark_danube import DefaultSource
from tests.support import killed_lake_executors
from tests.support.killed_lake_executors import StruckPipeline
from tests.support.spark_cluster import QUICK_TO_START

TWIN_SECONDS_MAX = 60.0
OWN = ("strike", "mark")
"""Options of this source alone: what to do in the middle of a task, and the file that says so."""


def kill_worker() -> None:
    """End the Python process of this task."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_executor() -> None:
    """End the executor, which is Java, and this process with it."""
    parents = psutil.Process().parents()
    executor = next(each for each in parents if "java" in each.name())
    assert "CoarseGrainedExecutorBackend" in " ".join(executor.cmdline()), executor
    executor.kill()
    kill_worker()


def claim(mark: str) -> bool:
    """Tell whether this is the first to do something."""
    try:
        Path(mark).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def strike(how: str, mark: str) -> None:
    """Do what the scenario is about, in the first task that comes here."""
    context = TaskContext.get()
    assert context is not None
    if how == "twin":
        twin(context, mark)
    elif claim(mark):
        kill_worker() if how == "worker" else kill_executor()


def twin(context: TaskContext, mark: str) -> None:
    """Let whichever of two twins is first wait in its middle until the other has come as far."""
    if context.partitionId() != 0:
        return
    if claim(mark):
        deadline = time.monotonic() + TWIN_SECONDS_MAX
        while not Path(f"{mark}.twin").exists():
            assert time.monotonic() < deadline, "no twin came"
            time.sleep(0.02)
    else:
        Path(f"{mark}.twin").touch()


def struck(batches: Iterator[pa.RecordBatch], options: Any) -> Iterator[pa.RecordBatch]:
    """Pass batches on, and strike behind the first one."""
    for number, batch in enumerate(batches):
        yield batch
        if number == 0:
            strike(options["strike"], options["mark"])


class Struck:
    """What Spark carries to the tasks beside the reader or writer itself."""

    options: Any


class StruckReader(Struck, BatchReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return struck(super().read(partition), self.options)


class StruckStreamReader(Struck, StreamReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return struck(super().read(partition), self.options)


class StruckWriter(Struck, BatchWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        return super().write(struck(iterator, self.options))


class StruckStreamWriter(Struck, StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        return super().write(struck(iterator, self.options))


class StruckSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "danube_struck"

    @property
    def danubes(self) -> dict[str, str]:
        sparks = (*OWN, "checkpointlocation", "path")
        return {name: value for name, value in self.options.items() if name.lower() not in sparks}

    def _armed(self, made: Struck) -> Any:
        made.options = {name: self.options[name] for name in OWN}
        return made

    def schema(self) -> Any:
        from pydanube.spark.data_source import schema_of

        return schema_of(self.danubes)

    def reader(self, schema: Any) -> Any:
        options = read_options(self.danubes, streaming=False, now_ms=0)
        return self._armed(StruckReader(options, arrow_schema(schema, options)))

    def streamReader(self, schema: Any) -> Any:
        options = read_options(self.danubes, streaming=True, now_ms=0)
        return self._armed(StruckStreamReader(options, arrow_schema(schema, options)))

    def writer(self, schema: Any, overwrite: bool) -> Any:
        options = write_options(self.danubes, streaming=False)
        return self._armed(StruckWriter(options, check_frame(types_of(schema), options)))

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        options = write_options(self.danubes, streaming=True)
        return self._armed(StruckStreamWriter(options, check_frame(types_of(schema), options)))


def types_of(schema: Any) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


class Scenarios:
    """Runs one scenario after the other in one Spark."""

    def __init__(self, spark: Any, url: str, directory: Path) -> None:
        self._spark = spark
        self._url = url
        self._directory = directory

    def run(self, name: str, wanted: dict[str, Any]) -> None:
        at_source = {"strike": wanted["strike"], "mark": str(self._directory / f"{name}.mark")}
        plain = "danube"
        source, sink = plain, plain
        source_options: dict[str, str] = {"segmentAccess": wanted.get("access", "auto")}
        sink_options: dict[str, str] = {}
        if wanted["where"] == "read":
            source, source_options = "danube_struck", {**source_options, **at_source}
        else:
            sink, sink_options = "danube_struck", at_source
        stream = wanted.get("stream", False)
        reading = self._spark.readStream if stream else self._spark.read
        frame = (
            reading.format(source)
            .options(url=self._url, topic=wanted["source"], startingOffsets="earliest")
            .options(minPartitions="3", **source_options)
            .load()
        )
        if "target" not in wanted:
            rows = [row.asDict() for row in frame.select("topic", "partition", "offset").collect()]
            (self._directory / f"{name}.rows").write_text(json.dumps(rows))
            return
        options = {"url": self._url, "topic": wanted["target"], "batchRows": "20", **sink_options}
        frame = frame.select("payload", "routing_key")
        if not stream:
            frame.write.format(sink).options(**options).mode("append").save()
            return
        query = (
            frame.writeStream.format(sink)
            .options(**options)
            .option("checkpointLocation", str(self._directory / f"{name}.checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def main(wanted: dict[str, Any]) -> None:
    spark = session(
        "killed-executors",
        wanted["master"],
        **{
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": QUICK_TO_START,
            "spark.executor.extraJavaOptions": QUICK_TO_START,
            "spark.executor.memory": "512m",
            "spark.task.maxFailures": killed_lake_executors.TRIES,
            "spark.ui.enabled": False,
            "spark.sql.execution.arrow.maxRecordsPerBatch": 50,
            "spark.log.level": "ERROR",
            "spark.speculation": True,
            "spark.speculation.interval": "50ms",
            "spark.speculation.quantile": 0.5,
            "spark.speculation.multiplier": 1.1,
            "spark.speculation.minTaskRuntime": "300ms",
            "spark.executor.heartbeatInterval": "1s",
        },
    )
    cloudpickle.register_pickle_by_value(killed_lake_executors)
    spark.dataSource.register(StruckSource)
    scenarios = Scenarios(spark, wanted["url"], Path(wanted["directory"]))
    kills = (kill_worker, kill_executor)
    StruckPipeline(spark, Path(wanted["directory"]), kills).run(wanted["pipeline"])
    print("the pipeline is done", flush=True)
    for name, each in wanted["scenarios"].items():
        scenarios.run(name, each)
        print(f"{name} is done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
