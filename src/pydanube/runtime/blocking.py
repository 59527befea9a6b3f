"""For code that may block, in processes without an event loop: waiting, files, environment."""

import fcntl
import os
import socket
import stat
import threading
import time
from contextlib import suppress

BESIDE = ".new"
"""How names end under which files are written before they are put in place."""


def pause(seconds: float) -> None:
    """Wait that long, and let other threads run."""
    time.sleep(seconds)


def environment(name: str) -> str | None:
    """Return a variable of the process's environment."""
    return os.environ.get(name)


def can_connect(host: str, port: int, seconds_max: float) -> bool:
    """Tell whether something listens at an address."""
    try:
        with socket.create_connection((host, port), timeout=seconds_max):
            return True
    except OSError:
        return False


def process_id() -> int:
    """Return the id of this process: another one after a fork."""
    return os.getpid()


def read_file(path: str) -> bytes:
    """Return the bytes of a small file."""
    with open(path, "rb") as file:
        return file.read()


def replace_file(path: str, content: bytes) -> None:
    """Put a small file in place, whole and synced; directories above it are made."""
    os.replace(_written_beside(path, content), path)


def create_file(path: str, content: bytes) -> bool:
    """Put a small file in place, whole and synced, unless there is one; tell whether it was put.

    Of several who try at once, one does, also from machines that share the directory. It takes a
    file system with hard links: OSError if there are none.
    """
    beside = _written_beside(path, content)
    try:
        os.link(beside, path)
    except FileExistsError:
        return False
    finally:
        os.remove(beside)
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return True


def _written_beside(path: str, content: bytes) -> str:
    """Write a file, whole and synced, under a name that no other thread or machine has."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    beside = f"{path}.{os.uname().nodename}.{os.getpid()}.{threading.get_ident()}{BESIDE}"
    with open(beside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return beside


def is_file(path: str) -> bool:
    """Tell whether there is a file of that name; OSError: nobody can tell."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def read_file_if_there(path: str) -> bytes | None:
    """Return the bytes of a small file, None if there is none."""
    try:
        return read_file(path)
    except FileNotFoundError:
        return None


def remove_file(path: str) -> None:
    """Remove a file, if it is there."""
    with suppress(FileNotFoundError):
        os.remove(path)


def names_in(directory: str) -> list[str]:
    """Return what a directory holds, sorted; nothing if it is not there."""
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def rename(source: str, target: str) -> None:
    """Give a file or directory another name."""
    os.rename(source, target)


class HeldFile:
    """A file that one process at a time holds, until it lets go or ends; it says who does."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None

    def hold(self, note: bytes) -> bool:
        """Hold it, and write who does; False if another one has it."""
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        os.truncate(descriptor, 0)
        os.write(descriptor, note)
        self._descriptor = descriptor
        return True

    def let_go(self) -> None:
        """Let the next one hold it."""
        if self._descriptor is not None:
            os.truncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def host_name() -> str:
    """Return the name of this machine."""
    return os.uname().nodename


def environment_variables() -> dict[str, str]:
    """Return the process's environment."""
    return dict(os.environ)
