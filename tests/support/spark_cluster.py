"""A Spark cluster of real processes on this machine: a master, and workers on hosts of their own.

Spark never runs the twin of a task on the host that runs the task itself, so the workers have
different loopback addresses.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pyspark

from pydanube.spark.sessions import environment_for
from tests.support.broker_process import free_ports

READY_SECONDS_MAX = 240.0
QUICK_TO_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of Java for a life of seconds: what would pay off later is left out."""


@contextmanager
def spark_cluster(directory: Path, hosts: tuple[str, ...]) -> Iterator[str]:
    """Run a cluster with one core per host; yield the URL of its master."""
    [port] = free_ports(1)
    with ExitStack() as running:
        place = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        master = directory / "master.log"
        running.enter_context(_daemon("master.Master", place, "127.0.0.1", master))
        _wait_for(master, "I have been elected leader")
        # A master whose port was taken meanwhile has another one.
        found = re.search(r"Starting Spark master at (spark://\S+)", master.read_text())
        assert found is not None, master.read_text()[-2000:]
        url = found[1]
        for number, host in enumerate(hosts):
            work = directory / f"worker-{number}"
            work.mkdir()
            place = ("--host", host, "--webui-port", "0", "-c", "1", "-m", "1g", "-d", str(work))
            running.enter_context(_daemon("worker.Worker", (*place, url), host, work / "log"))
        for number in range(len(hosts)):
            _wait_for(directory / f"worker-{number}" / "log", "Successfully registered with master")
        yield url


@contextmanager
def _daemon(name: str, arguments: tuple[str, ...], host: str, log: Path) -> Iterator[None]:
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        **environment_for("local", os.environ),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_TO_START,
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        yield
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and those it has started: executors outlive a worker that is killed."""
    own = psutil.Process(process.pid)
    family = [*own.children(recursive=True), own] if own.is_running() else []
    for each in family:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait(10)


def _wait_for(log: Path, words: str) -> None:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while words not in log.read_text(errors="replace"):
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
        time.sleep(0.05)  # Another process tells nobody when it is ready.
