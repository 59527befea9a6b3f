"""Commands that run other processes leave none behind when they are asked to end."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.broker_process import free_ports

DANUBE = Path(sys.executable).parent / "danube"


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command, and in the end whatever is left of it."""
    with subprocess.Popen(
        [DANUBE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        descendants: list[psutil.Process] = []
        try:
            yield process
        finally:
            if process.poll() is None:
                descendants = psutil.Process(process.pid).children(recursive=True)
                process.kill()
            for each in descendants:
                each.kill()


def wait_until(is_so: Callable[[], bool]) -> None:
    """Look at other processes, which tell nobody, until something is so."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def child_names(process: subprocess.Popen[str]) -> list[str]:
    assert process.poll() is None
    return [each.name() for each in psutil.Process(process.pid).children(recursive=True)]


def ended_on_sigterm(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Ask a command to end, and return which of its child processes have outlived it."""
    children = psutil.Process(process.pid).children(recursive=True)
    assert children, "it was asked before it had started any"
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    _, left = psutil.wait_procs(children, timeout=5)
    for each in left:
        each.kill()
    return left


@pytest.mark.e2e
def test_a_bench_that_is_asked_to_end_leaves_nothing_behind(tmp_path: Path) -> None:
    arguments = ("--seconds", "60", "--job", "publish", "--data-dir", str(tmp_path))
    with command("bench", *arguments) as bench:
        assert bench.stderr is not None
        assert "publish" in bench.stderr.readline()  # The broker runs, and workers are next.
        assert ended_on_sigterm(bench) == []
        assert bench.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


@pytest.mark.e2e
def test_a_local_cluster_that_is_asked_to_end_while_it_starts_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    first = next(port for port in free_ports(20) if port + 60 < 20_000)
    arguments = ("--brokers", "2", "--data-dir", str(tmp_path), "--first-port", str(first))
    with command("cluster", "up", *arguments) as cluster:
        started = tmp_path / "broker-1" / "broker.log"
        wait_until(lambda: started.exists() and len(child_names(cluster)) == 2)
        assert ended_on_sigterm(cluster) == []
        assert cluster.returncode == 0


@pytest.mark.e2e
@pytest.mark.parametrize("keeps", [True, False])
def test_a_local_cluster_that_cannot_start_says_why(tmp_path: Path, keeps: bool) -> None:
    first = next(port for port in free_ports(20) if port + 60 < 20_000)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        taken.listen()
        arguments = ["--brokers", "1", "--first-port", str(first)]
        arguments += ["--data-dir", str(tmp_path)] if keeps else []
        done = subprocess.run(
            [DANUBE, "cluster", "up", *arguments], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 8
    assert f"cannot listen on 127.0.0.1:{first} for the client port" in done.stderr
    log = tmp_path / "broker-0" / "broker.log"
    if keeps:
        assert f"all of it is in {log}" in done.stderr
        assert log.exists()
    else:
        assert "give --data-dir to keep all of it" in done.stderr
        assert "broker.log" not in done.stderr


@pytest.mark.e2e
@pytest.mark.slow
def test_a_demonstration_on_spark_that_is_asked_to_end_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    with command("demo", "--spark", "--data-dir", str(tmp_path)) as demo:
        assert demo.stdout is not None
        assert "published" in next(line for line in demo.stdout if "broker at" not in line)
        assert "java" in child_names(demo)
        assert ended_on_sigterm(demo) == []
        assert demo.returncode == 128 + signal.SIGTERM
        _, said = demo.communicate()
        assert "Traceback" not in said
