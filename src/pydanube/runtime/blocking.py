"""For code that may block, in processes without an event loop: waiting, and the environment."""

import os
import time


def pause(seconds: float) -> None:
    """Wait that long, and let other threads run."""
    time.sleep(seconds)


def environment(name: str) -> str | None:
    """Return a variable of the process's environment."""
    return os.environ.get(name)


def process_id() -> int:
    """Return the id of this process: another one after a fork."""
    return os.getpid()


def read_file(path: str) -> bytes:
    """Return the bytes of a small file."""
    with open(path, "rb") as file:
        return file.read()
