"""Servers in processes of their own, on free ports of loopback."""

import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
from typing_extensions import override

from pydanube.bench.driver import Server
from pydanube.errors import Unavailable
from pydanube.runtime.clock import SystemClock

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
_LOOK_AGAIN_SECONDS = 0.05
_LOG_CHARACTERS = 2_000


class ServerProcess(Server):
    """A command that serves until it is stopped; what it says goes into a file."""

    def __init__(
        self,
        command: Sequence[str],
        url: str,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._url = url
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )

    @property
    @override
    def url(self) -> str:
        return self._url

    @property
    @override
    def pids(self) -> list[int]:
        process = psutil.Process(self._process.pid)
        return [process.pid, *(child.pid for child in process.children(recursive=True))]

    @override
    def stop(self) -> None:
        if self._process.poll() is not None:
            return
        children = psutil.Process(self._process.pid).children(recursive=True)
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_SECONDS_MAX)
        for child in children:
            if child.is_running():
                child.kill()

    def wait_until(self, is_up: Callable[[], bool]) -> None:
        """Return once it is up; Unavailable with the end of its log if it will not be."""
        try:
            self._wait_until(is_up)
        except BaseException:
            self.stop()  # Nobody else knows of it yet.
            raise

    def _wait_until(self, is_up: Callable[[], bool]) -> None:
        clock = SystemClock()
        end = clock.monotonic_seconds() + START_SECONDS_MAX
        waiting = threading.Event()  # Another process tells nobody when it is up.
        while not is_up():
            if self._process.poll() is not None or clock.monotonic_seconds() > end:
                said = self._log.read_text(errors="replace")[-_LOG_CHARACTERS:]
                raise Unavailable(f"the server at {self._url} did not start; it says:\n{said}")
            waiting.wait(_LOOK_AGAIN_SECONDS)

    def wait_for_port(self, port: int) -> None:
        """Return once somebody listens on a port of loopback."""
        self.wait_until(lambda: _listens(port))


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody uses now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
