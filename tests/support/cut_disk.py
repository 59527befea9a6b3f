"""A small file system whose power can be cut: what was not synced is gone, as with a machine's.

The kernel itself forgets it (the ioctl by which file systems are tested): dirty pages, and what
their own journal had not written yet.
"""

import fcntl
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from typing_extensions import override

from tests.support.broker_process import STOP_SECONDS_MAX, BrokerProcess

_SHUTDOWN = 0x8004587D
_WITHOUT_FLUSHING = 2
_IMAGE_BYTES = 1 << 30
_STOPPED = ("T", "D", "Z", "X")


class CutDisk:
    """An ext4 file system in a file, to be mounted at `root`."""

    def __init__(self, directory: Path) -> None:
        self._image = directory / "disk.img"
        self.root = directory / "disk"
        self.root.mkdir()
        with self._image.open("wb") as image:
            image.truncate(_IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(self._image))

    def mount(self) -> None:
        """Let it be used; what the file system's own journal has is replayed."""
        _run("mount", "-o", "loop", str(self._image), str(self.root))

    def unmount(self) -> None:
        """Let go of it; nobody may use it any more."""
        _run("umount", str(self.root))

    def cut_power(self) -> None:
        """From now on nothing is written; every call fails until it is mounted again."""
        with (self.root / "power").open("w") as file:
            fcntl.ioctl(file, _SHUTDOWN, struct.pack("I", _WITHOUT_FLUSHING))


class CutBroker(BrokerProcess):
    """A broker on such a disk, which is killed by cutting the power."""

    def __init__(self, disk: CutDisk, *, command: list[str] | None = None) -> None:
        super().__init__(disk.root / "data", command=command)
        self.log_path = disk.root.parent / "broker.log"
        self._disk = disk

    @override
    def kill(self) -> int:
        # A machine without power answers nobody. This one would: a sync that is under way when the
        # file system goes down may return as if it had succeeded, though nothing is stored.
        self._stop()
        self._disk.cut_power()
        code = super().kill()
        self._disk.unmount()
        self._disk.mount()
        return code

    def _stop(self) -> None:
        """Let no thread come back from where it is."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while not _is_stopped(self.process.pid):
            assert time.monotonic() < deadline, f"process {self.process.pid} goes on"
            time.sleep(0.0005)


def _is_stopped(pid: int) -> bool:
    """Tell whether every thread has stopped, or waits for the disk and will stop behind that."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # It has ended meanwhile.
            # Behind the name, which may hold anything.
            if stat.read_text().rpartition(")")[2].split()[0] not in _STOPPED:
                return False
    return True


@contextmanager
def cut_disk(directory: Path) -> Iterator[CutDisk]:
    """Make such a disk and mount it; skip the test where that is not allowed."""
    try:
        disk = CutDisk(directory)
        disk.mount()
    except FileNotFoundError as error:
        pytest.skip(f"a disk whose power can be cut needs the program {error.filename}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"a disk whose power can be cut needs root: {error.stderr.strip()}")
    try:
        yield disk
    finally:
        disk.unmount()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
