"""What the figures were measured on."""

import os
import platform
import tempfile
from pathlib import Path

import psutil

from pydanube.bench.results import percentile
from pydanube.runtime.clock import SystemClock

_PROBES = ((1024, 0.3), (256 * 1024, 0.3), (1024 * 1024, 1.0))
"""Bytes per write, and for how many seconds to try."""


def describe_machine() -> str:
    """Return one line for the head of a table of figures."""
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def describe_disk(directory: Path) -> str:
    """Return what one writer gets from the disk there when it syncs after every write."""
    measured = [_probe(directory, size, seconds) for size, seconds in _PROBES]
    return f"disk, write and fdatasync in turns: {', '.join(measured)}"


def _probe(directory: Path, size: int, seconds: float) -> str:
    clock = SystemClock()
    data = os.urandom(size)
    times: list[float] = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        began = before = clock.monotonic_seconds()
        while before - began < seconds:
            file.write(data)
            os.fdatasync(file.fileno())
            after = clock.monotonic_seconds()
            times.append(after - before)
            before = after
        rate = size * len(times) / (before - began) / 1e6
    return f"{size // 1024:,} KiB {rate:,.0f} MB/s (p50 {percentile(times, 0.5) * 1e3:.2f} ms)"
