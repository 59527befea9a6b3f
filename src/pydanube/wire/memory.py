"""Memory that one message has to itself, so that it can become what is stored without a copy."""

from typing import Final

_ALIGNMENT: Final = 64
"""Where Arrow's buffers begin. Memory ends there, too: what ends a message is aligned if it is long
by a multiple of eight bytes, wherever it begins."""
_HEADROOM_BYTES: Final = 64
"""In front of the message, for whoever needs more there than was sent."""


def allocate(length: int) -> memoryview | None:
    """Return room for a message; None if there is none, though there may be as the message comes.

    Its end is aligned, and what lies before it belongs to it.
    """
    import pyarrow as pa  # Loaded by brokers: clients that send no batches need none of it.

    size = -(-(length + _HEADROOM_BYTES) // _ALIGNMENT) * _ALIGNMENT
    try:
        memory = memoryview(pa.allocate_buffer(size)).cast("B")
    except MemoryError:
        return None
    return memory[size - length :]


def put_before(head: bytes, end: bytes | memoryview) -> memoryview | None:
    """Write `head` in front of a message's `end`, over what is there, and return both as one.

    None, and nothing is written, unless `end` is that of memory from `allocate`, aligned to eight
    bytes, and `head` has room.
    """
    if not isinstance(end, memoryview) or end.readonly or len(end) % 8:
        return None
    memory = memoryview(end.obj).cast("B")
    end_at = len(memory) - len(end)
    start = end_at - len(head)
    if start < 0:
        return None
    memory[start:end_at] = head
    return memory[start:].toreadonly()
