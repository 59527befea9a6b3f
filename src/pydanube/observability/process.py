"""What the operating system says about this process."""

from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from psutil import Process


class ProcessReading(Struct, frozen=True, kw_only=True):
    """One look at the process."""

    cpu_seconds: float
    resident_bytes: int
    virtual_bytes: int
    open_files: int
    open_files_max: float
    """Infinite where nobody counts them, or does not tell."""
    start_seconds: float


def _open_files_max(process: "Process") -> float:
    import psutil

    if not hasattr(process, "rlimit"):  # Linux and FreeBSD have it.
        return inf
    soft, _ = process.rlimit(psutil.RLIMIT_NOFILE)
    return inf if soft == psutil.RLIM_INFINITY else soft


def read_process() -> ProcessReading:
    """Look now; takes a fraction of a millisecond and may block, so not on the event loop."""
    import psutil  # Here, for it is needed only where metrics are served.

    process = psutil.Process()
    with process.oneshot():
        cpu = process.cpu_times()
        memory = process.memory_info()
        return ProcessReading(
            cpu_seconds=cpu.user + cpu.system,
            resident_bytes=memory.rss,
            virtual_bytes=memory.vms,
            open_files=process.num_fds(),
            open_files_max=_open_files_max(process),
            start_seconds=process.create_time(),
        )
