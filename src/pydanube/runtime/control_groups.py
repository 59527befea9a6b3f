"""What Linux counts and limits per control group, version 1 and 2.

Each figure is None where its file is missing or says that there is no limit.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from typing_extensions import override

_GROUPS = "sys/fs/cgroup"
_UNLIMITED_FROM = 1 << 60
"""Version 1 writes a number near the largest one when there is no limit of memory."""


class ControlGroup(Protocol):
    """The group a container's processes are in."""

    def cpu_seconds(self) -> float | None:
        """Return the CPU time that was spent."""

    def cpu_cores(self) -> float | None:
        """Return how many cores' worth the group may spend."""

    def memory_used_bytes(self) -> int | None:
        """Return the memory in use, without files that were merely read once."""

    def memory_limit_bytes(self) -> int | None:
        """Return how much there may be."""

    def disk_bytes(self) -> int | None:
        """Return how much was read and written."""


def find_control_group(root: Path) -> ControlGroup | None:
    """Return this process's group, or None where there are none."""
    groups = root / _GROUPS
    if (groups / "cgroup.controllers").exists():
        return UnifiedGroup(_own_folder(groups, root))
    if (groups / "memory").is_dir() or (groups / "cpuacct").is_dir():
        return LegacyGroup(groups)
    return None


def _own_folder(groups: Path, root: Path) -> Path:
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return groups
    for line in lines:
        if line.startswith("0::/"):
            own = groups / line.removeprefix("0::/")
            # Seen from a container, the path may be the host's, and lead nowhere.
            return own if (own / "cpu.stat").exists() else groups
    return groups


class UnifiedGroup(ControlGroup):
    """Version 2: one folder has everything."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @override
    def cpu_seconds(self) -> float | None:
        spent = _field(self._folder / "cpu.stat", "usage_usec")
        return None if spent is None else spent / 1_000_000

    @override
    def cpu_cores(self) -> float | None:
        words = _words(self._folder / "cpu.max")
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            return None
        return _cores(int(words[0]), int(words[1]))

    @override
    def memory_used_bytes(self) -> int | None:
        used = _number(self._folder / "memory.current")
        if used is None:
            return None
        return max(0, used - (_field(self._folder / "memory.stat", "inactive_file") or 0))

    @override
    def memory_limit_bytes(self) -> int | None:
        return _number(self._folder / "memory.max")

    @override
    def disk_bytes(self) -> int | None:
        text = _text(self._folder / "io.stat")
        return None if text is None else sum(map(int, re.findall(r"\b[rw]bytes=(\d+)", text)))


class LegacyGroup(ControlGroup):
    """Version 1: a folder for each controller. A container sees its own at their roots."""

    def __init__(self, groups: Path) -> None:
        self._groups = groups

    @override
    def cpu_seconds(self) -> float | None:
        spent = _number(self._groups / "cpuacct/cpuacct.usage")
        return None if spent is None else spent / 1_000_000_000

    @override
    def cpu_cores(self) -> float | None:
        quota = _number(self._groups / "cpu/cpu.cfs_quota_us")
        period = _number(self._groups / "cpu/cpu.cfs_period_us")
        return None if quota is None or period is None else _cores(quota, period)

    @override
    def memory_used_bytes(self) -> int | None:
        used = _number(self._groups / "memory/memory.usage_in_bytes")
        if used is None:
            return None
        inactive = _field(self._groups / "memory/memory.stat", "total_inactive_file")
        return max(0, used - (inactive or 0))

    @override
    def memory_limit_bytes(self) -> int | None:
        limit = _number(self._groups / "memory/memory.limit_in_bytes")
        return None if limit is None or limit >= _UNLIMITED_FROM else limit

    @override
    def disk_bytes(self) -> int | None:
        text = _text(self._groups / "blkio/blkio.throttle.io_service_bytes")
        return None if text is None else sum(_transferred(text.splitlines()))


def _cores(quota: int, period: int) -> float | None:
    return quota / period if quota > 0 and period > 0 else None


def _transferred(lines: Iterable[str]) -> Iterable[int]:
    for line in lines:
        words = line.split()
        if len(words) == 3 and words[1] in ("Read", "Write") and words[2].isdecimal():
            yield int(words[2])


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def _words(path: Path) -> list[str]:
    return (_text(path) or "").split()


def _number(path: Path) -> int | None:
    words = _words(path)
    return int(words[0]) if len(words) == 1 and words[0].isdecimal() else None


def _field(path: Path, name: str) -> int | None:
    for line in (_text(path) or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None
