"""The C library's allocator, which gives this process its memory."""

import ctypes
from typing import Final

_MIB: Final = 1024 * 1024
# Numbers of glibc's <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_OWN_BYTES_MIN: Final = 32 * _MIB
"""What is longer has memory of its own, that goes back to the system; glibc allows no more."""


def keep_freed_memory(bytes_max: int) -> bool:
    """Use freed memory again, up to so many bytes, instead of giving it back to the system.

    What the system gives must be cleared first, page by page: for a process that is handed batches
    of megabytes one after the other, as much work as to copy them. Returns False, and changes
    nothing, where the C library has no such settings.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    # The second alone would leave the first at 128 KiB, and every batch would be new memory.
    return bool(
        set_option(_M_MMAP_THRESHOLD, _OWN_BYTES_MIN) and set_option(_M_TRIM_THRESHOLD, bytes_max)
    )
