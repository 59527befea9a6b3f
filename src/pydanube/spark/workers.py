"""The processes that Spark runs our code in: each is given one task after another."""

import gc
import sys

from pydanube.runtime.allocator import keep_freed_memory

_kept: list[bool] = []
_MEMORY_BYTES = 64 * 1024 * 1024
"""What a process keeps for itself: a task that writes has some 40 MiB of batches on their way."""


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


def use_memory_again() -> None:
    """Keep the memory of batches that are done for those that come.

    A process that is not Spark's own is left alone.
    """
    if _is_sparks_own():
        keep_freed_memory(_MEMORY_BYTES)


def _is_sparks_own() -> bool:
    """Tell whether this process was started, or forked from one that was, by `-m pyspark…`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
