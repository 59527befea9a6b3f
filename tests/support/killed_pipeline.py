"""A pipeline whose driver is killed, without a word, when every flow is at a chosen moment.

    python -m tests.support.killed_pipeline FILE '{"moment": "after_write", "batch": 1}'

before_write          the batch is planned, nothing of it is out
after_write           dead letters are out; half of the rows are in the topic; the files of the
                      tables are written, and no commit names them
after_commit          the sink has the batch, and the flow does not know yet
before_spark_commit   the flow is done with the batch, and Spark has not noted it
"""

import faulthandler
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from pydanube.pipelines import batches, delta_tables, iceberg_tables
from pydanube.pipelines.batches import BatchDone, BatchWork
from pydanube.pipelines.documents import read_definition
from pydanube.pipelines.runner import PipelineRun, start_spark

MOMENTS = ("before_write", "after_write", "after_commit", "before_spark_commit")
WAIT_SECONDS_MAX = 200
HALF = "cast(split(element_at(attributes, 'place'), ':')[1] AS bigint) % 40 < 20"


class Killing:
    """Holds each flow at the moment, and kills when all are there."""

    def __init__(self, java: int, flows: int, moment: str, batch: int) -> None:
        self._java = java
        self._gate = threading.Barrier(flows)
        self._moment = moment
        self._batch = batch
        self._here = threading.local()

    def at(self, moment: str) -> None:
        """Do not come back from the wanted moment of the wanted batch."""
        if moment == self._moment and getattr(self._here, "number", None) == self._batch:
            self._gate.wait(WAIT_SECONDS_MAX)
            os.kill(self._java, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    def is_at(self, moment: str) -> bool:
        return moment == self._moment and getattr(self._here, "number", None) == self._batch

    def around(self, work: BatchWork, frame: Any, number: int) -> BatchDone:
        self._here.number = number
        self.at("before_write")
        done = work(frame, number)
        self.at("before_spark_commit")
        return done

    def install(self) -> None:
        write, happens = batches.write, iceberg_tables.happens
        write_deltalake = delta_tables.write_deltalake

        def writing(sink: Any, frame: Any, *rest: Any, **options: Any) -> Any:
            if sink.format == "danube" and self.is_at("after_write"):
                write(sink, frame.where(HALF), *rest, **options)
                self.at("after_write")
            done = write(sink, frame, *rest, **options)
            self.at("after_commit")
            return done

        def writing_delta(table: Any, rows: Any, **options: Any) -> None:
            if self.is_at("after_write"):
                path = table if isinstance(table, str) else table.table_uri
                directory = Path(path.removeprefix("file://"))
                (directory / "part-nobody-names.parquet").write_bytes(b"PAR1")
                self.at("after_write")
            write_deltalake(table, rows, **options)

        def happening(changing: Any) -> bool:
            self.at("after_write")
            return happens(changing)

        batches.write = writing
        delta_tables.write_deltalake = writing_delta
        iceberg_tables.happens = happening


def main(file: str, wanted: dict[str, Any]) -> None:
    faulthandler.dump_traceback_later(WAIT_SECONDS_MAX / 2)  # If it hangs, it says where.
    definition, _ = read_definition(Path(file).read_text(encoding="utf-8"), file, os.environ)
    spark = start_spark("killed", definition.spark)
    java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    killing = Killing(java, len(definition.sinks), wanted["moment"], wanted["batch"])
    killing.install()
    PipelineRun(definition, spark, around_batch=killing.around).run()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
