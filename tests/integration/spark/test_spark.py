"""Real Spark in local mode: topics in, topics out, through replays, kills and restarts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import py4j
import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from pydanube.spark import ProgressMetrics, ProgressMirror, history
from pydanube.spark.session_settings import (
    BYTES_PER_BATCH,
    ROWS_PER_BATCH,
    SESSION_SETTINGS,
    promised_rows,
)
from tests.support.broker_process import free_ports
from tests.support.killed_query import PIDS
from tests.support.spark_topics import (
    check_rows,
    create_partitions,
    numbers_of,
)

QUERY_SECONDS_MAX = 240


def load(spark: Any, broker: Any, **options: object) -> Any:
    return spark.read.format("danube").options(url=broker.url, **options).load()


def copy(
    spark: Any, broker: Any, source: str, target: str, checkpoint: Path, **options: object
) -> Any:
    """Run a query from topic to topic until it has read what there is."""
    frame = (
        spark.readStream.format("danube")
        .options(url=broker.url, topic=source, startingOffsets="earliest", pollMs=1)
        .options(**{"maxRowsPerTrigger": 400, "minPartitions": 2, **options})
        .load()
        .select("payload", "routing_key")
    )
    query = (
        frame.writeStream.format("danube")
        .options(url=broker.url, topic=target, batchRows=20)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_SECONDS_MAX), "the query does not end"
    return query


def last_line(error: PySparkException) -> str:
    lines = [line for line in str(error).splitlines() if "pydanube" in line]
    return lines[-1] if lines else str(error)


class TestBatch:
    def test_rows_arrive_as_they_were_published(self, spark, broker, topics, topic):
        topics.publish(topic, range(3000))
        frame = load(spark, broker, topic=topic, minPartitions=3)
        assert frame.rdd.getNumPartitions() >= 3
        check_rows([row.asDict() for row in frame.collect()], range(3000))

    def test_a_frame_is_appended_once_however_often_its_job_runs(
        self, spark, broker, topics, topic
    ):
        frame = spark.range(500).selectExpr("to_json(struct(id as number)) as payload")
        for _ in range(2):
            frame.write.format("danube").options(url=broker.url, topic=topic, jobId="load-1").mode(
                "append"
            ).save()
        assert sorted(topics.numbers(topic)) == list(range(500))

    def test_a_frame_that_was_read_can_be_written_as_it_is(self, spark, broker, topics, topic):
        topics.publish(topic, range(100))
        load(spark, broker, topic=topic).write.format("danube").options(
            url=broker.url, topic=f"{topic}-copy"
        ).mode("append").save()
        rows = load(spark, broker, topic=f"{topic}-copy").collect()
        check_rows([row.asDict() for row in rows], range(100))

    def test_columns_become_json_payloads(self, spark, broker, topics, topic):
        frame = spark.range(5).selectExpr("id as number", "concat('key-', id) as routing_key")
        frame.write.format("danube").options(url=broker.url, topic=topic, encode="json").mode(
            "append"
        ).save()
        assert sorted(topics.numbers(topic)) == list(range(5))

    def test_a_view_in_sql_and_pushed_filters(self, spark, broker, topics, topic):
        topics.publish(topic, range(200))
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW v USING danube "
            f"OPTIONS (url '{broker.url}', topic '{topic}', pushdown 'true')"
        )
        found = spark.sql(
            "SELECT offset FROM v WHERE offset >= 50 AND offset < 60 AND routing_key = 'key-3' "
            "AND publish_time < timestamp'1970-01-01 00:00:56Z'"
        )
        assert [row.offset for row in found.collect()] == [52]

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"topic": "/default/nowhere"}, "there is no topic /default/nowhere"),
            ({"topik": "/default/nowhere"}, "did you mean topic"),
            ({"topic": "/default/x", "failOnDataLoss": "maybe"}, "option failOnDataLoss"),
        ],
    )
    def test_a_mistake_is_one_clear_error(self, spark, broker, options, words):
        with pytest.raises(PySparkException) as refused:
            load(spark, broker, **options).collect()
        assert words in last_line(refused.value)

    @pytest.mark.parametrize("way", ["read", "write"])
    def test_that_there_is_no_broker_is_told_on_the_driver_ahead_of_tasks(self, spark, topic, way):
        (port,) = free_ports(1)
        options = {"url": f"http://127.0.0.1:{port}", "topic": topic}
        rows = spark.range(10).selectExpr("string(id) AS payload")
        do = {
            "read": lambda: spark.read.format("danube").options(**options).load().count(),
            "write": rows.write.format("danube").options(**options).mode("append").save,
        }[way]
        with pytest.raises(AnalysisException) as failed:
            do()
        told = last_line(failed.value)
        assert f"no broker answers at http://127.0.0.1:{port}" in told
        assert "Say where they are with option url, or with DANUBE_SERVICE_URL" in told

    def test_a_topic_cannot_be_overwritten(self, spark, broker, topic):
        frame = spark.range(1).selectExpr("'x' as payload")
        with pytest.raises(PySparkException, match=r"append"):
            frame.write.format("danube").options(url=broker.url, topic=topic).mode(
                "overwrite"
            ).save()


class TestStreams:
    def test_a_topic_becomes_another_one(self, spark, broker, topics, topic, tmp_path):
        create_partitions(broker, f"{topic}-in", 2)
        topics.publish(f"{topic}-in-part-0", range(600))
        topics.publish(f"{topic}-in-part-1", range(600, 1000))
        query = copy(spark, broker, f"{topic}-in", f"{topic}-out", tmp_path / "c")
        assert sorted(topics.numbers(f"{topic}-out")) == list(range(1000))
        rows = [each["numInputRows"] for each in query.recentProgress]
        assert sum(rows) == 1000
        assert max(rows) <= 401
        # Nothing new: a second run adds nothing and runs no batch.
        again = copy(spark, broker, f"{topic}-in", f"{topic}-out", tmp_path / "c")
        assert sum(each["numInputRows"] for each in again.recentProgress) == 0
        assert len(topics.numbers(f"{topic}-out")) == 1000

    def test_batches_that_spark_has_not_recorded_are_run_again_without_a_trace(
        self, spark, broker, topics, topic, tmp_path
    ):
        topics.publish(f"{topic}-in", range(1000))
        copy(spark, broker, f"{topic}-in", f"{topic}-out", tmp_path / "c")
        # As if the driver had died after the last write, before it was recorded.
        commits = tmp_path / "c" / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for path in (commits / str(last), commits / f".{last}.crc"):
            path.unlink(missing_ok=True)
        topics.wait_sealed(f"{topic}-in")
        topics.publish(f"{topic}-in", range(1000, 1100))
        copy(
            spark, broker, f"{topic}-in", f"{topic}-out", tmp_path / "c", maxBytesPerPartition="1k"
        )
        assert sorted(topics.numbers(f"{topic}-out")) == list(range(1100))

    def test_a_lost_checkpoint_is_not_exactly_once_and_numbers_from_the_data_are(
        self, spark, broker, topics, topic, tmp_path
    ):
        topics.publish(f"{topic}-in", range(300))

        def run(checkpoint: Path) -> None:
            frame = (
                spark.readStream.format("danube")
                .options(url=broker.url, topic=f"{topic}-in", startingOffsets="earliest")
                .option("splitPartitions", "false")
                .load()
                .selectExpr("payload", "concat(topic, '/', partition) as p", "offset as n")
            )
            query = (
                frame.writeStream.format("danube")
                .options(url=broker.url, topic=f"{topic}-out")
                .options(producerColumn="p", sequenceColumn="n")
                .option("checkpointLocation", str(checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(QUERY_SECONDS_MAX)

        run(tmp_path / "one")
        run(tmp_path / "two")
        assert topics.numbers(f"{topic}-out") == list(range(300))

    def test_a_batch_function_writes_each_batch_once(self, spark, broker, topics, topic, tmp_path):
        topics.publish(f"{topic}-in", range(300))

        def twice(frame: Any, batch: int) -> None:
            for _ in range(2):  # The second time as after a failure that nobody recorded.
                frame.select("payload").write.format("danube").options(
                    url=broker.url, topic=f"{topic}-out", producer="query/sink", epoch=batch
                ).mode("append").save()

        query = (
            spark.readStream.format("danube")
            .options(url=broker.url, topic=f"{topic}-in", startingOffsets="earliest")
            .options(maxRowsPerTrigger=200)
            .load()
            .writeStream.foreachBatch(twice)
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(QUERY_SECONDS_MAX)
        assert sorted(topics.numbers(f"{topic}-out")) == list(range(300))

    def test_progress_is_counted_and_mirrored(self, spark, broker, topics, topic, tmp_path):
        topics.publish(f"{topic}-in", range(100))
        metrics = ProgressMetrics()
        mirror = ProgressMirror(url=broker.url, topic=f"{topic}-in", subscription="mirror")
        spark.streams.addListener(metrics)
        spark.streams.addListener(mirror)
        try:
            copy(
                spark, broker, f"{topic}-in", f"{topic}-out", tmp_path / "c", subscription="mirror"
            )
            spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(20_000)
        finally:
            spark.streams.removeListener(metrics)
            spark.streams.removeListener(mirror)
        text = metrics.text().decode()
        assert "danube_spark_rows_total" in text
        assert f'topic="{topic}-in"}} 0' in text
        cursor = topics.act("cursor.get", topic=f"{topic}-in", subscription="mirror")
        assert cursor["position"] == 100


class TestKills:
    @pytest.mark.parametrize("moment", ["before_batch", "in_write", "in_commit"])
    def test_a_killed_driver_loses_and_repeats_nothing(
        self, spark, broker, topics, topic, tmp_path, moment
    ):
        topics.publish(f"{topic}-in", range(1000))
        wanted = {
            "url": broker.url,
            "source": f"{topic}-in",
            "target": f"{topic}-out",
            "checkpoint": str(tmp_path / "c"),
            "kill": moment,
            "number": 690,
        }
        command = [sys.executable, "-m", "tests.support.killed_query", json.dumps(wanted)]
        done = subprocess.run(
            command,
            env={**os.environ, PIDS: str(tmp_path / "pids")},
            capture_output=True,
            timeout=QUERY_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == -9, done.stderr.decode()[-2000:]
        stored = topics.numbers(f"{topic}-out") if moment != "before_batch" else []
        assert len(stored) < 1000
        assert stored or moment == "before_batch"
        copy(spark, broker, f"{topic}-in", f"{topic}-out", tmp_path / "c")
        assert sorted(topics.numbers(f"{topic}-out")) == list(range(1000))


class TestBoundaries:
    @pytest.fixture
    def edges(self, topics, topic) -> list[int]:
        """Where the two segments of a topic begin and end; a tail of 50 messages follows."""
        for number in range(2):
            topics.publish(topic, range(700 * number, 700 * number + 700))
            topics.wait_sealed(topic)
        topics.publish(topic, range(1400, 1450))
        return [0, 700, 1400]

    def test_ranges_that_begin_and_end_with_segments_are_exact(
        self, spark, broker, topics, topic, edges
    ):
        ranges = [(0, 1), (0, 700), (699, 701), (700, 1400), (1399, 1401), (1400, 1450)]
        for start, end in ranges:
            bounds = {
                "startingOffsets": json.dumps({topic: start}),
                "endingOffsets": json.dumps({topic: end}),
            }
            for frame in (
                load(spark, broker, topic=topic, segmentAccess="direct", **bounds),
                history(spark, topic, start, end, url=broker.url),
            ):
                check_rows([row.asDict() for row in frame.collect()], range(start, end), start)
        assert history(spark, topic, 700, 700, url=broker.url).collect() == []

    def test_batches_that_end_with_segments_lose_and_repeat_nothing(
        self, spark, broker, topics, topic, edges, tmp_path
    ):
        options = {"maxRowsPerTrigger": 700, "segmentAccess": "direct"}
        query = copy(spark, broker, topic, f"{topic}-out", tmp_path / "c", **options)
        rows = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
        assert rows == [700, 700, 50]
        assert sorted(topics.numbers(f"{topic}-out")) == list(range(1450))

    def test_a_topic_of_one_message_is_read_and_written_once(
        self, spark, broker, topics, topic, tmp_path
    ):
        topics.publish(topic, [7])
        check_rows([row.asDict() for row in load(spark, broker, topic=topic).collect()], [7])
        copy(spark, broker, topic, f"{topic}-out", tmp_path / "c")
        assert topics.numbers(f"{topic}-out") == [7]
        topics.wait_sealed(topic)
        check_rows([row.asDict() for row in history(spark, topic, url=broker.url).collect()], [7])


class TestHistory:
    def test_segments_are_read_natively_and_the_tail_is_added(self, spark, broker, topics, topic):
        topics.publish(topic, range(2000))
        topics.wait_sealed(topic)
        topics.publish(topic, range(2000, 2100))
        frame = history(spark, topic, url=broker.url)
        plan = frame._jdf.queryExecution().toString()
        assert "FileScan parquet" in plan
        check_rows([row.asDict() for row in frame.collect()], range(2100))

    def test_a_range_and_some_columns(self, spark, broker, topics, topic):
        topics.publish(topic, range(2000))
        topics.wait_sealed(topic)
        topics.publish(topic, range(2000, 2100))
        frame = history(spark, topic, 10, 2050, ["offset", "payload"], url=broker.url)
        rows = sorted(frame.collect())
        assert [row.offset for row in rows] == list(range(10, 2050))
        assert numbers_of([bytes(row.payload) for row in rows]) == list(range(10, 2050))
        assert history(spark, topic, 2000, url=broker.url).count() == topics.frontier(topic) - 2000

    def test_all_partitions_and_a_time(self, spark, broker, topics, topic):
        create_partitions(broker, topic, 2)
        for partition in range(2):
            topics.publish(f"{topic}-part-{partition}", range(100))
            topics.wait_sealed(f"{topic}-part-{partition}")
        frame = history(spark, topic, "1970-01-01T00:00:50Z", url=broker.url)
        assert frame.count() == 100
        assert frame.select("partition", "offset").distinct().count() == 100

    def test_what_spark_cannot_open_comes_through_the_broker(self, spark, broker, topics, topic):
        topics.publish(topic, range(50))
        topics.wait_sealed(topic)
        frame = history(spark, topic, url=broker.url, segmentAccess="broker")
        check_rows([row.asDict() for row in frame.collect()], range(50))


def test_planners_and_workers_run_the_installed_packages_and_not_archives_of_them(spark):
    class Reader(DataSourceReader):
        def partitions(self):
            return [InputPartition((pyspark.__file__, py4j.__file__))]

        def read(self, partition):
            yield (*partition.value, pyspark.__file__, py4j.__file__)

    class Whereabouts(DataSource):
        def schema(self):
            return "a string, b string, c string, d string"

        def reader(self, schema):
            return Reader()

    spark.dataSource.register(Whereabouts)
    (row,) = spark.read.format("Whereabouts").load().collect()
    installed = [Path(pyspark.__file__).resolve(), Path(py4j.__file__).resolve()]
    assert [Path(each).resolve() for each in row] == installed * 2


def test_programs_that_are_started_after_spark_choose_a_spark_of_their_own(spark):
    assert spark.sparkContext._jvm.java.lang.System.getenv("SPARK_HOME")
    assert "SPARK_HOME" not in os.environ


def test_everything_listens_on_loopback_alone(spark):
    java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    listening = [
        each.laddr.ip
        for each in psutil.Process(java).net_connections("inet")
        if each.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_spark_measures_no_batch_of_rows_that_are_promised_to_be_small(spark):
    """Pinned: what switches the measuring off is a value that Spark's page does not name."""

    def count(batches):
        for batch in batches:
            yield pa.record_batch({"rows": pa.array([batch.num_rows], pa.int64())})

    def batch_sizes(settings: dict[str, str]) -> list[int]:
        for name, value in settings.items():
            spark.conf.set(name, value)
        try:
            frame = spark.range(0, 300, 1, 1).selectExpr("repeat('x', 300000) AS text")
            counted = frame.mapInArrow(count, "rows bigint").collect()
        finally:
            spark.conf.unset(BYTES_PER_BATCH)
            spark.conf.set(ROWS_PER_BATCH, SESSION_SETTINGS[ROWS_PER_BATCH])
        return [row["rows"] for row in counted]

    assert batch_sizes(promised_rows(512 * 1024)) == [128, 128, 44]
    # 90 MB, of which a batch may have 64 MiB.
    assert batch_sizes({}) == [224, 76]
