"""A real `danube broker` in a process of its own, on ports that stay its own across restarts."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

READY_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 30.0


_given: set[int] = set()
"""Ports that were drawn before: whoever got one may not have begun to listen yet."""


def free_ports(count: int) -> list[int]:
    """Ports nobody uses now, below the range that outgoing connections draw from.

    From that range a client that tries to reach a killed broker could be given the broker's port.
    Not by `random` itself: property tests seed it, in all processes that run tests alike.
    """
    found: list[int] = []
    chance = random.SystemRandom()
    while len(found) < count:
        port = chance.randrange(10_000, 32_000)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        found.append(port)
    return found


def operator_page(
    port: int, path: str, host: str = "127.0.0.1", seconds_max: float = 10
) -> tuple[int, str]:
    """Ask an operator page; return its status and its words."""
    try:
        url = f"http://{host}:{port}{path}"
        with urllib.request.urlopen(url, timeout=seconds_max) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class BrokerProcess:
    """Starts, stops and kills one broker over one data directory.

    `command` runs it; by default that is the `danube` of this environment.
    """

    def __init__(
        self,
        data_dir: Path,
        *arguments: str,
        engine: str | None = None,
        command: Sequence[str] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.data_dir = data_dir
        self.host = host
        self.client_port, self.admin_port, self.metrics_port = free_ports(3)
        self.log_path = data_dir.parent / f"{data_dir.name}.log"
        self._command = command or [str(Path(sys.executable).parent / "danube")]
        self._arguments = list(arguments)
        if engine is not None:
            self._arguments += ["--engine", engine]
        self.environment: dict[str, str] = {}
        """What the process is given beside what this one has."""
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.client_port}"

    @property
    def admin_url(self) -> str:
        return f"http://{self.host}:{self.admin_port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, *, wait: bool = True) -> None:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self._command,
                    "broker",
                    *self._place(),
                    "--broker-addr",
                    f"{self.host}:{self.client_port}",
                    "--admin-addr",
                    f"{self.host}:{self.admin_port}",
                    "--prom-exporter",
                    f"{self.host}:{self.metrics_port}",
                    *self._arguments,
                ],
                stdout=log,
                stderr=log,
                env={**self._patience(), **os.environ, **self.environment},
            )
        if wait:
            self.wait_ready()

    def _patience(self) -> dict[str, str]:
        """Bear a disk that many tests share, unless it is made to hang."""
        is_sick = "LD_PRELOAD" in self.environment
        return {} if is_sick else {"DANUBE_STORAGE__SYNC_SECONDS_MAX": "60"}

    def _place(self) -> list[str]:
        if "--config-file" in self._arguments:
            return []  # It says where the data lies.
        return ["--mode", "standalone", "--data-dir", str(self.data_dir)]

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self.is_ready():
            assert self.process is not None
            code = self.process.poll()
            assert code is None, f"the broker ended with {code}:\n{self.log_tail()}"
            assert time.monotonic() < deadline, f"the broker is not ready:\n{self.log_tail()}"
            time.sleep(0.02)  # Another process tells nobody when it is ready.

    def is_ready(self) -> bool:
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def get(self, path: str) -> tuple[int, str]:
        """Ask an operator page."""
        return operator_page(self.metrics_port, path, self.host)

    def terminate(self) -> int:
        """Ask the broker to stop and return its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Take the broker's life without a word."""
        return self._end(signal.SIGKILL)

    def wait_ended(self) -> int:
        """Wait until the broker has ended by itself, and return its exit code."""
        assert self.process is not None
        code = self.process.wait(STOP_SECONDS_MAX)
        self.process = None
        return code

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(STOP_SECONDS_MAX)
        self.process = None
        return code

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> "BrokerProcess":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
