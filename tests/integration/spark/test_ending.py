"""What happens to Spark's Python processes when a session is stopped."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from pydanube.spark.ending import stop_session

SECONDS_MAX = 60.0


def python_processes() -> list[int]:
    """Return the processes of Spark's, ours, that wait for tasks or run them."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # It has ended, whether or not somebody noticed.
            if "pyspark.daemon" in each.cmdline():
                found.append(each.pid)
    return found


@pytest.fixture
def there_at_the_stop(spark, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Keep Spark alive, and tell which of its Python processes were there when it was stopped."""
    found: list[int] = []
    monkeypatch.setattr(spark, "stop", lambda: found.extend(python_processes()))
    return found


def run_python(spark, marks: Path | None = None) -> int:
    """Run a task in Python; with a place for marks it says when it runs, and waits for its end."""

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if marks is not None:
                (marks / "running").touch()
                wait_until((marks / "enough").exists)
            yield batch

    return spark.range(10, numPartitions=1).mapInArrow(each, "id long").count()


def wait_until(is_so: Callable[[], object]) -> None:
    until = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.01)


def test_they_have_ended_before_java_closes_their_connections(spark, there_at_the_stop):
    run_python(spark)
    assert python_processes()
    stop_session(spark)
    assert there_at_the_stop == []
    assert run_python(spark) == 10  # Spark starts others for what comes next.


def test_one_that_runs_a_task_is_left_to_java(spark, there_at_the_stop, tmp_path):
    counted: list[int] = []
    job = threading.Thread(target=lambda: counted.append(run_python(spark, tmp_path)))
    job.start()
    try:
        wait_until((tmp_path / "running").exists)
        stop_session(spark)
        assert there_at_the_stop
    finally:
        (tmp_path / "enough").touch()
        job.join(SECONDS_MAX)
    assert counted == [10]


def test_a_stream_keeps_them_between_its_batches(spark, there_at_the_stop, tmp_path):
    run_python(spark)
    frame = spark.readStream.format("rate").load()
    query = (
        frame.writeStream.format("noop")
        .trigger(processingTime="1 hour")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        wait_until(lambda: query.lastProgress)
        stop_session(spark)
        assert there_at_the_stop
    finally:
        query.stop()
