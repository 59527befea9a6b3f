"""A real process's disk that fails, fills up, slows down or hangs when a test says so."""

import errno
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

Operation = Literal["write", "sync", "open"]
"""All ways to write, `fsync` and `fdatasync`, and `open`."""
EVERY: tuple[Operation, ...] = ("write", "sync", "open")
WRITES: tuple[Operation, ...] = ("write", "sync")

_SOURCE = Path(__file__).with_name("disk_shim.c")
_COMPILER = shutil.which("cc") or shutil.which("gcc")

needs_disk_shim = pytest.mark.skipif(
    _COMPILER is None or not Path("/proc/self/fd").exists(),
    reason="a disk that goes bad needs a C compiler and /proc",
)


class Strike(NamedTuple):
    """One call that was struck."""

    pid: int
    operation: str
    action: str
    """`fail`, `delay` or `hang`."""
    path: str
    """Below the directory."""


class DiskShim:
    """What happens to one directory's files in processes that start with its `environment`.

    The rules are in a file that these processes read again at each call, so a rule holds from the
    moment a method has returned, and a call that hangs goes on when its rule is gone. `path` is a
    pattern of a shell for the path below the directory; a star matches slashes, too. The first
    rule that fits a call strikes it.
    """

    def __init__(self, directory: Path, control: Path) -> None:
        assert _COMPILER is not None, "mark the test with needs_disk_shim"
        directory.mkdir(parents=True, exist_ok=True)
        self.control = control.resolve()
        self.environment = {
            "LD_PRELOAD": str(_library(_COMPILER)),
            "DANUBE_DISK_SHIM_DIR": str(directory.resolve()),
            "DANUBE_DISK_SHIM_CONTROL": str(self.control),
        }
        """To be added to the environment of the processes that are meant."""
        self._rules: list[str] = []
        self._write()

    def fail(
        self,
        *operations: Operation,
        error: int = errno.EIO,
        path: str = "*",
        count: int | None = None,
        room: int | None = None,
    ) -> None:
        """Let calls fail with `error`, at most `count` of each process.

        Writes still take `room` bytes before they fail, as on a disk that is about to be full.
        """
        self._add(operations or EVERY, f"errno={error}", path, count, room)

    def delay(self, *operations: Operation, milliseconds: int, path: str = "*") -> None:
        """Let calls take so much longer."""
        self._add(operations or WRITES, f"delay={milliseconds}", path, None, None)

    def hang(self, *operations: Operation, path: str = "*") -> None:
        """Let calls not return before `heal`."""
        self._add(operations or WRITES, "hang", path, None, None)

    def heal(self) -> None:
        """Let everything work again."""
        self._rules.clear()
        self._write()

    def strikes(self) -> list[Strike]:
        """Return what was struck so far: of each rule and process the first 200 calls."""
        log = Path(f"{self.control}.log")
        if not log.exists():
            return []
        lines = (line.split(" ", 3) for line in log.read_text().splitlines())
        return [Strike(int(pid), operation, action, path) for pid, operation, action, path in lines]

    def _add(
        self,
        operations: tuple[Operation, ...],
        action: str,
        path: str,
        count: int | None,
        room: int | None,
    ) -> None:
        assert " " not in path, "a pattern has no spaces"
        rule = f"{','.join(operations)} {action} {path}"
        rule += f" count={count}" if count is not None else ""
        rule += f" room={room}" if room is not None else ""
        self._rules.append(rule)
        self._write()

    def _write(self) -> None:
        """Replace the file at once: whoever reads it sees all rules or the former ones."""
        beside = Path(f"{self.control}.new")
        beside.write_text("".join(f"{rule}\n" for rule in self._rules))
        beside.replace(self.control)


def _library(compiler: str) -> Path:
    """Build the library once for each state of its source."""
    built = Path(tempfile.gettempdir()) / (
        f"danube-disk-shim-{os.getuid()}-{_SOURCE.stat().st_mtime_ns}.so"
    )
    if not built.exists():
        beside = built.with_suffix(f".{os.getpid()}")
        command = [compiler, "-shared", "-fPIC", "-O2", "-pthread", "-o", str(beside)]
        subprocess.run([*command, str(_SOURCE), "-ldl"], check=True, timeout=60)
        beside.replace(built)
    return built
