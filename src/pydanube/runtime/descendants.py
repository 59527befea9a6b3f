"""Processes that this one has started, and those that they have started in turn."""

import contextlib

import psutil


def end_descendants(module: str, seconds_max: float) -> None:
    """Ask the descendants that run a module of Python's to end, and wait until they have."""
    asked = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # It has ended meanwhile.
            if module in process.cmdline():
                process.terminate()
                asked.append(process)
    psutil.wait_procs(asked, timeout=seconds_max)
