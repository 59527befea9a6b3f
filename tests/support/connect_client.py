"""A program of a Spark Connect server, in a process of its own: such a process has no other Spark.

    python -m tests.support.connect_client '{"server": "sc://…", "url": …, "topic": …, …}'

What it finds is in `found.json` of the directory.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import pydanube.spark
from pydanube.errors import DanubeError
from pydanube.pipelines import Pipeline
from pydanube.pipelines.api import Part
from pydanube.pipelines.definitions import SparkSettings
from pydanube.pipelines.runner import PipelineRun, start_spark
from pydanube.runtime.process import StopFlag
from tests.support.remembering import Counting

LISTENER_SECONDS_MAX = 60.0
PIPELINE = "connected"
ROWS_AT_A_TIME = 10


def double(number: int) -> int:
    """What Spark's workers call; this module is not theirs."""
    return 2 * number


def pipeline(wanted: dict[str, Any], spark: SparkSession) -> Pipeline:
    """Rows with a doubled number into a table; those that end in three to the dead letters."""
    made = Pipeline(
        PIPELINE,
        url=wanted["url"],
        checkpoints=f"{wanted['directory']}/checkpoints",
        dead_letter=f"{wanted['topic']}-dlq",
        on_failure={"restarts": 0},
        spark=spark,
    )
    numbers = made.source(
        "numbers", topic=wanted["topic"], options={"maxRowsPerTrigger": 400, "pollMs": 1}
    )

    @made.step(numbers, expect={"no-three": "n % 10 <> 3"}, otherwise="dead_letter")
    def doubled(frame: Any) -> Any:
        from pyspark.sql.functions import col, udf

        number = "bigint(get_json_object(string(payload), '$.number')) AS n"
        flat = frame.selectExpr("topic", "partition", "offset", "routing_key", "payload", number)
        return flat.withColumn("twice", udf(double, "bigint")(col("n")))

    made.sink("lake", doubled, delta=f"{wanted['directory']}/lake")
    return made


def refused_pipeline(wanted: dict[str, Any], spark: SparkSession) -> Pipeline:
    """Rows that break an expectation whose rule is to fail."""
    made = Pipeline(
        "refused",
        url=wanted["url"],
        checkpoints=f"{wanted['directory']}/checkpoints",
        on_failure={"restarts": 3},
        spark=spark,
    )
    numbers = made.source("numbers", topic=wanted["topic"])
    made.sink("never", made.expect("none", numbers, {"never": "offset < 0"}), format="noop")
    return made


def read(wanted: dict[str, Any], spark: SparkSession) -> dict[str, Any]:
    """What batches of the data source, `history` and `table` give."""
    options = {"url": wanted["url"]}
    whole = pydanube.spark.read(spark, wanted["topic"], minPartitions=3, **options)
    history = pydanube.spark.history(spark, wanted["topic"], columns=["offset"], **options)
    table = pydanube.spark.table(spark, wanted["topic"], **options)
    target = f"{wanted['topic']}-batch"
    whole.select("payload").write.format("danube").options(topic=target, **options).mode(
        "append"
    ).save()
    return {
        "read": sorted(row["offset"] for row in whole.select("offset").collect()),
        "history": sorted(row["offset"] for row in history.collect()),
        "table": sorted(row["offset"] for row in table.select("offset").collect()),
        "native": "FileScan parquet" in history._explain_string(),
    }


def stream(wanted: dict[str, Any], spark: SparkSession) -> dict[str, Any]:
    """A stream from topic to topic, and what listeners in this process hear of it."""
    options = {"url": wanted["url"]}
    metrics = pydanube.spark.ProgressMetrics()
    spark.streams.addListener(metrics)
    rows = pydanube.spark.read_stream(
        spark, wanted["topic"], startingOffsets="earliest", **options
    ).select("payload")
    query = (
        pydanube.spark.write_stream(
            rows, f"{wanted['topic']}-stream", f"{wanted['directory']}/stream", **options
        )
        .queryName("connected")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    deadline = time.monotonic() + LISTENER_SECONDS_MAX
    while b"danube_spark_batch_seconds_count" not in metrics.text():
        assert time.monotonic() < deadline, "the listener heard nothing"
        time.sleep(0.05)
    # It is not removed: Spark's client waits for a thread that waits for the client, if another
    # event comes at that moment. It ends with the session.
    return {"metrics": metrics.text().decode()}


def pipelines(wanted: dict[str, Any], spark: SparkSession) -> dict[str, Any]:
    """A pipeline that runs twice, and one that is refused by its rows."""
    made = pipeline(wanted, spark)
    planned = made.plan()
    (status,) = made.run(available_now=True)
    (again,) = made.run(available_now=True)
    try:
        refused_pipeline(wanted, spark).run(available_now=True)
        failure = ""
    except DanubeError as error:
        failure = str(error)
    return {
        "stateful": planned.flows[0].stateful,
        "rows": [status.rows_in, status.rows_out, status.dead_letters, again.rows_out],
        "broken": status.failed_expectations,
        "failure": failure,
        "state": remembered(wanted, spark),
    }


def stopped(wanted: dict[str, Any], spark: SparkSession) -> dict[str, Any]:
    """A pipeline that is asked to stop while batches follow each other."""
    made = Pipeline(
        "stopped",
        url=wanted["url"],
        checkpoints=f"{wanted['directory']}/checkpoints",
        spark=spark,
    )
    options = {"maxRowsPerTrigger": ROWS_AT_A_TIME, "pollMs": 1}
    numbers = made.source("numbers", topic=wanted["topic"], options=options)
    made.sink("few", numbers, format="noop")
    stop = StopFlag()
    (status,) = PipelineRun(made.definition(), spark).run(stop, lambda _: stop.set())
    return {"stopped": [status.state, status.error, status.rows_in]}


def remembered(wanted: dict[str, Any], spark: SparkSession) -> bool:
    """Whether a step that keeps state is known for one."""
    made = Pipeline(
        "remembering",
        url=wanted["url"],
        checkpoints=f"{wanted['directory']}/checkpoints",
        spark=spark,
    )
    numbers = made.source("numbers", topic=wanted["topic"])
    made._document["steps"].append(
        {
            "name": "kept",
            "from": numbers.name,
            "state": {"class": f"{Counting.__module__}:Counting", "keys": ["routing_key"]},
        }
    )
    made.sink("kept", Part("kept"), format="noop")
    (planned,) = made.plan().flows
    assert not planned.refusals, planned.refusals
    return planned.stateful


def refusals(server: str) -> dict[str, str]:
    """What a session of a server cannot set."""
    try:
        pydanube.spark.session("x", server, **{"spark.executor.cores": 7})
    except DanubeError as error:
        return {"fixed": str(error)}
    return {"fixed": ""}


def main(wanted: dict[str, Any]) -> None:
    spark = start_spark("x", SparkSettings(master=wanted["server"]))
    try:
        found: dict[str, Any] = {"kind": type(spark).__module__}
        for part in (read, stream, pipelines, stopped):
            found |= part(wanted, spark)
        found |= refusals(wanted["server"])
        found["zone"] = spark.conf.get("spark.sql.session.timeZone")
        Path(wanted["directory"], "found.json").write_text(json.dumps(found))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
