"""A pipeline whose driver is killed, without a word, at a chosen moment of a chosen batch.

python -m tests.support.killed_pipeline FILE '{"kill": "before_sink", "batch": 1}'
"""

import json
import os
import signal
import sys
from typing import Any

from pydanube.pipelines import batches
from pydanube.pipelines.batches import BatchDone, BatchWork
from pydanube.pipelines.documents import read_definition
from pydanube.pipelines.runner import PipelineRun, start_spark


def main(file: str, wanted: dict[str, Any]) -> None:
    with open(file, encoding="utf-8") as text:
        definition, _ = read_definition(text.read(), file, os.environ)
    spark = start_spark("killed", definition.spark)
    java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()

    def kill() -> None:
        os.kill(java, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    write = batches.write

    def around(work: BatchWork, frame: Any, number: int) -> BatchDone:
        if wanted["kill"] == "before_sink" and number == wanted["batch"]:
            batches.write = lambda *_, **__: kill()
        done = work(frame, number)
        batches.write = write
        if wanted["kill"] == "after_sink" and number == wanted["batch"]:
            kill()
        return done

    PipelineRun(definition, spark, around_batch=around).run()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
