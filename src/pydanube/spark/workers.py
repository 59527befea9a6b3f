"""The processes that tasks run in: Spark gives each of them one task after another."""

import gc

_kept: list[bool] = []


def keep_what_is_loaded() -> None:
    """Take everything that is loaded out of the garbage collector's sight, once per process.

    Spark has a process collect its garbage after every task, and would otherwise look through all
    objects of all modules each time. To be called at the end of a task, when all are loaded.
    """
    if not _kept:
        _kept.append(True)
        gc.collect()
        gc.freeze()
