"""What the operating system says about this process."""

from msgspec import Struct


class ProcessReading(Struct, frozen=True, kw_only=True):
    """One look at the process."""

    cpu_seconds: float
    resident_bytes: int
    virtual_bytes: int
    open_files: int
    start_seconds: float


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
            start_seconds=process.create_time(),
        )
