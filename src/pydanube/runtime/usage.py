"""How busy the machine is, or the container the process runs in."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from pydanube.model.machine_counters import MachineCounters
from pydanube.runtime.clock import Clock
from pydanube.runtime.control_groups import ControlGroup, find_control_group

_CONTAINER_MARKS = ("docker", "kubepods", "containerd", "libpod", "lxc")


class UsageSampler(Protocol):
    """Where counters of the machine come from."""

    def sample(self) -> MachineCounters:
        """Look now; takes about a millisecond and may block, so not on the event loop."""


class HostUsage(UsageSampler):
    """The whole machine, as psutil sees it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @override
    def sample(self) -> MachineCounters:
        import psutil  # Here, for it is needed only where load is reported.

        memory = psutil.virtual_memory()
        # A machine without disks or network has counters of none.
        disk = psutil.disk_io_counters()
        networks = psutil.net_io_counters(pernic=True)
        times = psutil.cpu_times()
        # What is idle comes by other names too, and guests are counted with their hosts.
        aside = times.idle + getattr(times, "iowait", 0.0)
        aside += getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        return MachineCounters(
            at_ms=self._clock.monotonic_ms(),
            cpu_seconds=sum(times) - aside,
            cpu_cores=float(psutil.cpu_count() or 1),
            memory_used_bytes=memory.total - memory.available,
            memory_limit_bytes=memory.total,
            disk_bytes=disk.read_bytes + disk.write_bytes if disk is not None else 0,
            network_bytes=sum(
                each.bytes_recv + each.bytes_sent
                for name, each in networks.items()
                if name not in ("lo", "lo0")
            ),
        )


class ContainerUsage(UsageSampler):
    """The container alone: its control group, its network, and the machine's limits for its own.

    What the group does not tell, for it has no such controller, is the machine's figure.
    """

    def __init__(self, clock: Clock, group: ControlGroup, host: UsageSampler) -> None:
        self._clock = clock
        self._group = group
        self._host = host

    @override
    def sample(self) -> MachineCounters:
        host = self._host.sample()
        cpu_seconds = self._group.cpu_seconds()
        memory_used = self._group.memory_used_bytes()
        disk_bytes = self._group.disk_bytes()
        cores = self._group.cpu_cores()
        limit = self._group.memory_limit_bytes()
        return MachineCounters(
            at_ms=self._clock.monotonic_ms(),
            cpu_seconds=host.cpu_seconds if cpu_seconds is None else cpu_seconds,
            cpu_cores=host.cpu_cores if cores is None else min(cores, host.cpu_cores),
            memory_used_bytes=host.memory_used_bytes if memory_used is None else memory_used,
            memory_limit_bytes=(
                host.memory_limit_bytes if limit is None else min(limit, host.memory_limit_bytes)
            ),
            disk_bytes=host.disk_bytes if disk_bytes is None else disk_bytes,
            # A container's network is its own: what the process sees is nobody else's.
            network_bytes=host.network_bytes,
        )


def system_usage(
    clock: Clock, environment: Mapping[str, str], root: Path = Path("/")
) -> UsageSampler:
    """Return the sampler that fits where this process runs."""
    host = HostUsage(clock)
    group = find_control_group(root) if is_container(environment, root) else None
    return host if group is None else ContainerUsage(clock, group, host)


def is_container(environment: Mapping[str, str], root: Path = Path("/")) -> bool:
    """Tell whether this process runs in a container."""
    if "KUBERNETES_SERVICE_HOST" in environment:
        return True
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return True
    try:
        groups = (root / "proc/1/cgroup").read_text(encoding="utf-8")
    except OSError:
        return False
    return any(mark in groups for mark in _CONTAINER_MARKS)
