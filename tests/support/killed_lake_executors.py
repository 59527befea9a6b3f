"""A pipeline into tables whose executors are killed at a step of each batch, by its number.

before_write          a worker, in a task that has written no file yet
after_write           a worker, as often as Spark tries a task, so that the batch fails and the flow
                      begins it again: its files are written, and nobody has heard of them
after_write_executor  an executor at that same step, once
after_commit          all executors: the sink has the batch, and the flow does not know yet
before_spark_commit   all executors, and the batch fails: Spark has not noted it, and repeats it
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from pydanube.pipelines import batches, lake_parts
from pydanube.pipelines.batches import BatchDone, BatchWork
from pydanube.pipelines.documents import read_definition
from pydanube.pipelines.runner import PipelineRun, check_outcome

MOMENTS = (
    "before_write",
    "after_write",
    "after_write_executor",
    "after_commit",
    "before_spark_commit",
)
TRIES = 2
"""Of one task, in this Spark."""
WAIT_SECONDS_MAX = 200


class ExecutorsLost(Exception):
    """What a batch fails with that needed them."""


class Strikes:
    """What a task does beside its work."""

    def __init__(self, moment: str, mark: str, kill_worker: Any, kill_executor: Any) -> None:
        self._moment = moment
        self._mark = mark
        self._kill_worker = kill_worker
        self._kill_executor = kill_executor

    def at(self, moment: str) -> None:
        """Die, if this is the moment and it has not been done."""
        if not self._moment.startswith(moment):
            return
        for number in range(TRIES if self._moment == "after_write" else 1):
            try:
                Path(f"{self._mark}.{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            if self._moment == "after_write_executor":
                self._kill_executor()
            self._kill_worker()


class StruckPartTask(lake_parts.PartTask):
    strikes: Strikes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def watched() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                self.strikes.at("before_write")
                yield batch

        for answer in super().__call__(watched()):
            self.strikes.at("after_write")
            yield answer


class StruckPipeline:
    """Runs the pipeline of a file in a Spark that has executors of its own."""

    def __init__(self, spark: Any, directory: Path, kills: tuple[Any, Any]) -> None:
        self._spark = spark
        self._directory = directory
        self._kills = kills
        self._here = threading.local()

    def run(self, file: str) -> None:
        definition, _ = read_definition(Path(file).read_text(encoding="utf-8"), file, {})
        self._gate = threading.Barrier(len(definition.sinks), self._kill_all)
        write, part_task = batches.write, lake_parts.PartTask

        def writing(sink: Any, *rest: Any, **options: Any) -> Any:
            done = write(sink, *rest, **options)
            self._at("after_commit")
            return done

        batches.write = writing
        lake_parts.PartTask = self._part_task
        try:
            check_outcome(PipelineRun(definition, self._spark, around_batch=self._around).run())
        finally:
            batches.write, lake_parts.PartTask = write, part_task

    def _part_task(self, writer: Any, columns: Any, small_bytes: int) -> StruckPartTask:
        task = StruckPartTask(writer, columns, 0)
        task.strikes = Strikes(self._moment, self._mark(), *self._kills)
        return task

    def _around(self, work: BatchWork, frame: Any, number: int) -> BatchDone:
        self._here.flow = work._flow.sink.name
        self._here.number = number
        done = work(frame, number)
        if self._at("before_spark_commit"):
            raise ExecutorsLost
        return done

    @property
    def _moment(self) -> str:
        number = self._here.number
        return MOMENTS[number] if number < len(MOMENTS) else ""

    def _mark(self) -> str:
        return str(self._directory / f"{self._here.flow}.{self._moment}")

    def _at(self, moment: str) -> bool:
        """Kill all executors when every flow is here, once; tell whether it was done."""
        mark = Path(f"{self._mark()}.0")
        if moment != self._moment or mark.exists():
            return False
        self._gate.wait(WAIT_SECONDS_MAX)
        mark.touch()
        return True

    def _kill_all(self) -> None:
        application = self._spark.sparkContext.applicationId
        for each in psutil.process_iter(["cmdline"]):
            words = each.info["cmdline"] or []
            if application in words and any("CoarseGrainedExecutor" in word for word in words):
                each.kill()
