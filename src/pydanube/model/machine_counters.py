"""What a machine, or the container a broker runs in, has done since it started."""

from msgspec import Struct


class MachineCounters(Struct, frozen=True, kw_only=True):
    """One look. Two looks make rates; a single one says little.

    Everything but memory only grows, unless the machine or its container was started anew.
    """

    at_ms: int
    """Monotonic, so that the time between two looks is true."""
    cpu_seconds: float
    """Spent by all processes that share the limit."""
    cpu_cores: float
    """How many seconds of it there are in one second: cores, or the container's quota."""
    memory_used_bytes: int
    """Without caches that the system gives back when asked."""
    memory_limit_bytes: int
    disk_bytes: int
    """Read and written."""
    network_bytes: int
    """Received and sent, loopback left out."""
