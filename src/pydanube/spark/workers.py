"""The processes that Spark runs our code in: each is given one task after another."""

import gc
import sys

_kept: list[bool] = []


def keep_what_is_loaded() -> None:
    """Take everything that is loaded out of the garbage collector's sight, once per process.

    Spark has a process collect its garbage after every task, and would otherwise look through all
    objects of all modules each time. To be called at the end of a task, when all are loaded. A
    process that is not Spark's own is left alone.
    """
    if not _kept and _is_sparks_own():
        _kept.append(True)
        gc.collect()
        gc.freeze()


def _is_sparks_own() -> bool:
    """Tell whether this process was started, or forked from one that was, by `-m pyspark…`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
