"""Spark's executors as workers: one task of Spark per task of ours.

Results are a few hundred bytes each; rows never pass through the driver. Executors need this
package, the catalogues' files and stores, and the brokers' addresses.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from pydanube.errors import NotSupported, Unavailable
from pydanube.tables.crew import Result, Task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("pydanube.tables")

DEFAULT_MASTER = "local[*,4]"
_ANSWERS = pa.schema([("number", pa.int64()), ("answer", pa.binary())])


class SparkWorkers:
    """Does tasks on a Spark cluster. The session is started by the first job, unless given."""

    def __init__(self, spark: "SparkSession | None" = None, master: str = DEFAULT_MASTER) -> None:
        self._spark = spark
        self._master = master
        self._own = spark is None
        self._lacking = False

    def run(
        self, work: Callable[[Task], Result], tasks: Sequence[Task], kind: type[Result]
    ) -> list[Result]:
        """Do all tasks; Unavailable: one of them failed as often as Spark tries it."""
        from pyspark.errors import PySparkException

        if not tasks:
            return []
        numbers = self._session().range(0, len(tasks), 1, len(tasks))
        job = numbers.mapInArrow(_Job(work, tasks), "number bigint, answer binary")
        try:
            answers = job.toArrow()
        except PySparkException as error:
            raise Unavailable(f"the job in Spark failed: {_cause(error)}") from error
        found = {each["number"]: each["answer"] for each in answers.to_pylist()}
        return [msgspec.msgpack.decode(found[number], type=kind) for number in range(len(tasks))]

    def ready(self) -> bool:
        """Start the session; a machine that cannot is told about once."""
        if self._lacking:
            return False
        try:
            self._session()
        except NotSupported as error:
            self._lacking = True
            _log.warning("without Spark, large ranges are worked on here: %s", error)
            return False
        return True

    def stop(self) -> None:
        """End the session, if it was started here."""
        from pydanube.spark.ending import stop_session

        spark, self._spark = self._spark, None
        if spark is not None and self._own:
            stop_session(spark)

    def _session(self) -> "SparkSession":
        if self._spark is None:
            from pydanube.spark.sessions import session

            _log.info("starting Spark on %s", self._master)
            self._spark = session("danube-tables", self._master)
        return self._spark


class _Job:
    """What an executor runs: the tasks whose numbers it is given."""

    def __init__(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> None:
        self._work = work
        self._tasks = tasks

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                answer = msgspec.msgpack.encode(self._work(self._tasks[number]))
                yield pa.RecordBatch.from_pylist(
                    [{"number": number, "answer": answer}], schema=_ANSWERS
                )


def _cause(error: Exception) -> str:
    """Return the line that says what went wrong in a task, out of Java's and Python's traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("pydanube.") or "Error: " in line]
    return (named or lines or [type(error).__name__])[-1]
