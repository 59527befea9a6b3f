"""Processes that this one has started, and those that they have started in turn."""

import contextlib

import psutil

_LOOK_AGAIN_SECONDS = 0.05


def end_descendants(module: str, seconds_max: float) -> None:
    """Ask the descendants that run a module of Python's to end, and wait until they have.

    One that its parent has not taken notice of counts as ended: some parents never do, such as
    the first process of a container, which gets the children of all that ended.
    """
    running = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # It has ended meanwhile.
            if module in process.cmdline():
                process.terminate()
                running.append(process)
    for _ in range(round(seconds_max / _LOOK_AGAIN_SECONDS)):
        running = [each for each in running if not _has_ended(each)]
        if not running:
            return
        psutil.wait_procs(running, timeout=_LOOK_AGAIN_SECONDS)


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
