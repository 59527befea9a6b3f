"""A real etcd as a process of its own, on free loopback ports."""

import atexit
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.support.broker_process import free_ports

READY_SECONDS_MAX = 60.0


@dataclass
class EtcdTls:
    """What a server shows, and whose clients it lets in."""

    certificate: Path
    key: Path
    authority: Path

    @property
    def flags(self) -> list[str]:
        return [
            *("--cert-file", str(self.certificate), "--key-file", str(self.key)),
            *("--trusted-ca-file", str(self.authority), "--client-cert-auth"),
        ]

    @property
    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.certificate, self.key)
        return context


class EtcdServer:
    """One server that is alone; it may be killed and started again on the same files and ports."""

    def __init__(self, directory: Path, tls: "EtcdTls | None" = None) -> None:
        program = shutil.which("etcd")
        if program is None:
            pytest.skip("etcd is not installed")
        self._program = program
        self._directory = directory
        self._directory.mkdir(parents=True, exist_ok=True)
        self._ports = free_ports(2)
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._ports[0]}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> "EtcdServer":
        peer = f"http://127.0.0.1:{self._ports[1]}"
        log_path = self._directory / "server.log"
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self._program, "--data-dir", str(self._directory / "data")),
                    *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
                    *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                    *("--initial-cluster", f"default={peer}"),
                    # So that a lease may live for as little as a second.
                    *("--heartbeat-interval", "50", "--election-timeout", "500"),
                    *("--max-txn-ops", "2048", "--max-request-bytes", "33554432"),
                    *(self._tls.flags if self._tls is not None else ()),
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self._is_healthy():
            code = self._process.poll()
            assert code is None, f"etcd ended with {code}: {log_path.read_text()[-2000:]}"
            assert time.monotonic() < deadline, "etcd does not answer"
            time.sleep(0.05)  # Another process tells nobody when it is ready.
        return self

    def _is_healthy(self) -> bool:
        try:
            context = self._tls.context if self._tls is not None else None
            health = f"{self.url}/health"
            with urllib.request.urlopen(health, timeout=2, context=context) as answer:
                return b"true" in answer.read()
        except OSError:
            return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def forget_everything(self) -> None:
        """Lose the disk; the server does not run."""
        shutil.rmtree(self._directory / "data")


@cache
def shared_etcd() -> EtcdServer:
    """Return a server for many tests, each with a prefix of its own; it ends with the process."""
    directory = Path(tempfile.mkdtemp(prefix="etcd-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    server = EtcdServer(directory)
    atexit.register(server.kill)
    return server.start()
