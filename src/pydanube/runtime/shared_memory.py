"""Memory that processes of one machine share: one makes it, and others read it who know its name.

The name holds a secret of 128 bits, so nobody is shown memory of a process that did not mean to
show it. Linux alone has such memory; it ends with the last process that has it open.
"""

import fcntl
import mmap
import os
import re
import sys
import weakref

from pydanube.runtime.randomness import SystemRandomness

_NAME = re.compile(r"(?P<process>[0-9]{1,10})/(?P<descriptor>[0-9]{1,10})/(?P<secret>[0-9a-f]{32})")


class SharedMemory:
    """Memory of this process. OSError where the system has none to share."""

    def __init__(self, size: int) -> None:
        if sys.platform != "linux":
            raise OSError("only Linux has memory that can be shared so")
        secret = f"{SystemRandomness().below(2**128):032x}"
        descriptor = os.memfd_create(_title(secret), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, descriptor)
        os.ftruncate(descriptor, size)
        # Whoever reads memory that is cut meanwhile is killed by the system.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.view = memoryview(mmap.mmap(descriptor, size))
        self.name = f"{os.getpid()}/{descriptor}/{secret}"


def open_shared(name: str, size_max: int) -> memoryview:
    """Return memory of another process, to be read while it may still change.

    OSError if there is none of that name, or it cannot be read from here, or must not be.
    """
    found = _NAME.fullmatch(name)
    if found is None or sys.platform != "linux":
        raise FileNotFoundError(f"{name!r} is no name of shared memory")
    path = f"/proc/{found['process']}/fd/{found['descriptor']}"
    # To look at something this way does nothing to it, whatever it is.
    looked_at = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if (
            os.readlink(f"/proc/self/fd/{looked_at}")
            != f"/memfd:{_title(found['secret'])} (deleted)"
        ):
            raise FileNotFoundError(f"{name!r} is not what that process shares")
        descriptor = os.open(f"/proc/self/fd/{looked_at}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(looked_at)
    try:
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise PermissionError("its owner may still cut that memory; it must be sealed")
        size = os.fstat(descriptor).st_size
        if not 0 < size <= size_max:
            raise PermissionError(f"that memory has {size} bytes; at most {size_max} are shared")
        return memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)


def _title(secret: str) -> str:
    return f"danube-{secret}"
