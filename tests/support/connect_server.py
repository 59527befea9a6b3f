"""A Spark Connect server of this machine, started as a user would, with executors of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.broker_process import free_ports

READY_SECONDS_MAX = 240.0
STOP_SECONDS_MAX = 60.0
PROGRAM = str(Path(sys.executable).parent / "danube")
READY = "Spark Connect server started at"
SETTINGS = (
    "spark.ui.enabled=false",
    "spark.sql.shuffle.partitions=2",
    "spark.executor.memory=512m",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1",
)


@contextmanager
def connect_server(directory: Path, master: str) -> Iterator[str]:
    """Run a server in a directory; yield its URL."""
    [port] = free_ports(1)
    conf = [word for each in SETTINGS for word in ("--conf", each)]
    log = directory / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [PROGRAM, "spark", "server", "--master", master, "--port", str(port), *conf],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            deadline = time.monotonic() + READY_SECONDS_MAX
            while READY not in log.read_text(errors="replace"):
                words = log.read_text(errors="replace")[-3000:]
                assert process.poll() is None, f"the server has ended: {words}"
                assert time.monotonic() < deadline, f"the server is not ready: {words}"
                time.sleep(0.05)
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
