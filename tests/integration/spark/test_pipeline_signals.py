"""`danube pipeline run` is stopped as terminals and service managers do it: with all it started."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pydanube.pipelines.control import stop_flows

SECONDS_MAX = 120
PROGRAM = str(Path(sys.executable).parent / "danube")
FILE = """\
pipeline: numbers
danube: {url: "URL"}
spark: {master: "local[2]", conf: {spark.sql.shuffle.partitions: 2, spark.ui.enabled: false}}
checkpoints: ROOT/checkpoints
trigger: {every: 100ms}
sources:
  numbers: {topic: TOPIC, start: earliest, options: {maxRowsPerTrigger: 100, pollMs: 1}}
steps:
  - {name: held, from: numbers, python: "holding:hold"}
sinks:
  - {name: lake, from: held, format: delta, path: ROOT/lake}
"""

HOLDING = """\
import socket

def hold(frame, parameters):
    return frame.mapInArrow(until_told, frame.schema)

def until_told(batches):
    with socket.create_connection(("127.0.0.1", PORT)) as test:
        assert test.recv(1), "the test is over"
    yield from batches
"""


@pytest.fixture
def pipeline(broker, topics, topic, tmp_path) -> Path:
    """A file whose flow has three batches to do."""
    topics.publish(topic, range(250))
    file = FILE.replace("URL", broker.url).replace("TOPIC", topic).replace("ROOT", str(tmp_path))
    (tmp_path / "numbers.yml").write_text(file)
    return tmp_path


@contextmanager
def running(root: Path) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """Run the pipeline in a process group of its own; yields it with its first batch, which waits.

    It goes on when it is sent something, and fails when the connection ends. The step's module lies
    beside the file, where the program and Spark's workers must find it.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(SECONDS_MAX)
        port = str(listening.getsockname()[1])
        (root / "holding.py").write_text(HOLDING.replace("PORT", port))
        process = subprocess.Popen(
            [PROGRAM, "pipeline", "run", str(root / "numbers.yml")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            batch, _ = listening.accept()
            with batch:
                yield process, batch
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


def check_stopped(process: "subprocess.Popen[str]") -> None:
    said, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, said
    assert "STOPPED" in said
    for fuss in ("StackOverflowError", "terminated with error", "error["):
        assert fuss not in said


def lake_offsets(root: Path) -> list[int]:
    return sorted(DeltaTable(str(root / "lake")).to_pyarrow_table()["offset"].to_pylist())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_stops_after_the_batch(pipeline, number):
    with running(pipeline) as (process, batch):
        os.killpg(process.pid, number)
        batch.send(b".")
        check_stopped(process)
    assert lake_offsets(pipeline) == list(range(100)), "the batch that ran, whole, and no other"


def test_a_stop_at_once_cuts_the_batch_without_a_fuss(pipeline):
    with running(pipeline) as (process, _):
        process.terminate()  # It waits for the batch.
        asked = stop_flows(str(pipeline / "checkpoints"), "numbers", now=True)
        assert [each.state for each in asked] == ["STOPPED"]
        check_stopped(process)
    assert lake_offsets(pipeline) == []
