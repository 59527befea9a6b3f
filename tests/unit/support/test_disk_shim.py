"""A process's disk goes bad by order, and well again; other directories notice nothing."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.disk_shim import DiskShim, needs_disk_shim

pytestmark = needs_disk_shim

_WORKER = """
import os, sys
inside, outside = sys.argv[1:]
def do(call):
    try:
        return call()
    except OSError as error:
        return -error.errno
for line in sys.stdin:
    word, *rest = line.split()
    path = (outside if rest[1:] else inside) + "/" + (rest[0] if rest else "")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    if word == "open":
        descriptor = do(lambda: os.open(path, flags, 0o644))
        print(min(descriptor, 0), flush=True)
    elif word == "write":
        print(do(lambda: os.writev(descriptor, [b"abc", b"defg"])), flush=True)
    elif word == "pwrite":
        print(do(lambda: os.pwrite(descriptor, b"abcdefg", 0)), flush=True)
    elif word == "sync":
        print(do(lambda: os.fdatasync(descriptor)) or 0, flush=True)
"""


class Worker:
    """A process that does one call for each line, and answers what it returned."""

    def __init__(self, inside: Path, shim: DiskShim) -> None:
        outside = inside.parent / "outside"
        outside.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(inside), str(outside)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **shim.environment},
        )

    def ask(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def does(self, line: str) -> int:
        self.ask(line)
        return self.answer()


@pytest.fixture
def shim(tmp_path: Path) -> DiskShim:
    return DiskShim(tmp_path / "disk", tmp_path / "control")


@pytest.fixture
def worker(tmp_path: Path, shim: DiskShim) -> Iterator[Worker]:
    worker = Worker(tmp_path / "disk", shim)
    with worker.process:
        yield worker
        worker.process.kill()


def test_calls_fail_with_what_was_said_until_it_is_healed(worker: Worker, shim: DiskShim) -> None:
    assert [worker.does(each) for each in ("open a.log", "write", "sync")] == [0, 7, 0]
    shim.fail("sync", path="*.log")
    shim.fail("write", error=errno.ENOSPC)
    shim.fail("open", error=errno.EMFILE, path="b*")
    assert [worker.does(each) for each in ("write", "pwrite", "sync", "open b", "open c")] == [
        -errno.ENOSPC,
        -errno.ENOSPC,
        -errno.EIO,
        -errno.EMFILE,
        0,
    ]
    shim.heal()
    assert [worker.does(each) for each in ("open b", "write", "sync")] == [0, 7, 0]
    assert ("sync", "fail", "a.log") in {each[1:] for each in shim.strikes()}


def test_a_rule_strikes_as_often_as_was_said(worker: Worker, shim: DiskShim) -> None:
    shim.fail("sync", count=2)
    worker.does("open a")
    assert [worker.does("sync") for _ in range(3)] == [-errno.EIO, -errno.EIO, 0]
    assert len(shim.strikes()) == 2


def test_a_disk_that_gets_full_takes_a_part(worker: Worker, shim: DiskShim) -> None:
    shim.fail("write", error=errno.ENOSPC, room=12)
    worker.does("open a")
    # All seven bytes; then there is room for five, and the first part alone fits whole.
    assert [worker.does("write") for _ in range(2)] == [7, 3]
    assert worker.does("pwrite") == -errno.ENOSPC


def test_a_call_hangs_until_it_is_healed(worker: Worker, shim: DiskShim) -> None:
    worker.does("open a")
    shim.hang("sync")
    worker.ask("sync")
    while not shim.strikes():
        time.sleep(0.005)  # Another process tells nobody where it is.
    assert shim.strikes()[0][1:] == ("sync", "hang", "a")
    shim.heal()
    assert worker.answer() == 0


def test_a_process_that_hangs_can_be_ended(worker: Worker, shim: DiskShim) -> None:
    worker.does("open a")
    shim.hang("write")
    worker.ask("write")
    while not shim.strikes():
        time.sleep(0.005)
    worker.process.kill()
    assert worker.process.wait(10) < 0


def test_calls_take_longer(worker: Worker, shim: DiskShim) -> None:
    worker.does("open a")
    shim.delay("sync", milliseconds=100)
    began = time.monotonic()
    assert worker.does("sync") == 0
    assert time.monotonic() - began >= 0.1


def test_other_directories_notice_nothing(worker: Worker, shim: DiskShim) -> None:
    shim.fail()
    assert worker.does("open a") == -errno.EIO
    assert [worker.does(each) for each in ("open a outside", "write", "sync")] == [0, 7, 0]
