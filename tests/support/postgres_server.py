"""A real PostgreSQL as a process of its own, on a free loopback port."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import sqlalchemy as sql
from sqlalchemy.exc import OperationalError

from tests.support.broker_process import free_ports

PROGRAMS = Path("/usr/lib/postgresql")
READY_SECONDS_MAX = 60.0


class PostgresServer:
    """One server; it may be killed and started again on the same files and port."""

    def __init__(self) -> None:
        versions = sorted(PROGRAMS.glob("*/bin/initdb"))
        if not versions:
            pytest.skip("PostgreSQL is not installed")
        self._programs = versions[-1].parent
        # It refuses to run as root, and the directories of tests are closed to others.
        self._user = "postgres" if os.getuid() == 0 else None
        self._directory = Path(tempfile.mkdtemp(prefix="postgres-"))
        if self._user is not None:
            shutil.chown(self._directory, self._user)
        self._port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "--username=danube", "--auth=trust", "--no-sync")

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+psycopg://danube@127.0.0.1:{self._port}/{database}"

    def start(self) -> "PostgresServer":
        options = ["-p", str(self._port), "-h", "127.0.0.1", "-k", str(self._directory)]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._directory / "data", *options],
                user=self._user,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self._answers():
            assert self._process.poll() is None, (self._directory / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, "PostgreSQL does not answer"
            time.sleep(0.05)  # Another process tells nobody when it is ready.
        return self

    def database(self, name: str) -> str:
        """Make an empty database; return its URL."""
        self.say(f"CREATE DATABASE {name}")
        return self.url(name)

    def say(self, words: str) -> None:
        engine = sql.create_engine(self.url(), isolation_level="AUTOCOMMIT", poolclass=sql.NullPool)
        with engine.connect() as connection:
            connection.exec_driver_sql(words)

    def kill(self) -> None:
        """End it at once, as a machine does that loses its power."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)  # Its children, too; nothing is written.
            self._process.wait(30)
            self._process = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self, program: str, *words: str) -> None:
        command = [self._programs / program, "-D", self._directory / "data", *words]
        subprocess.run(command, user=self._user, check=True, capture_output=True, timeout=120)

    def _answers(self) -> bool:
        try:
            self.say("SELECT 1")
        except OperationalError:
            return False
        return True
