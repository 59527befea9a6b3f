"""Batches that lie in memory which sender and broker share, instead of in the messages about them.

A place in that memory is used again once its batch is answered, and by no other stream: what a
broker may still have to read of a stream that was given up stays as it was.
"""

from collections import deque

import pyarrow as pa

from pydanube.errors import InvalidRequest, Overloaded, Unavailable
from pydanube.runtime.shared_memory import SharedMemory, open_shared
from pydanube.wire.flight.descriptors import MemoryPlace
from pydanube.wire.flight.framing import BodyParts, cut_in_two
from pydanube.wire.memory import allocate

MEMORY_BYTES = 48 * 1024 * 1024
"""Enough for the batches that a task of Spark has on their way. Only what is used takes memory."""
BATCH_BYTES_MIN = 256 * 1024
"""What is shorter costs no more in a message."""

_ALIGNMENT = 64


class Ring:
    """Gives out places of a memory, one behind the other; the oldest is given back first. Pure."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._taken: deque[tuple[int, int]] = deque()

    def take(self, length: int) -> int | None:
        """Return where so many bytes have their place; None while there is no room for them."""
        length += -length % _ALIGNMENT
        start, end = self._free()
        if start + length > end:
            # What is left of the memory's end stays empty, if its beginning has room.
            if end != self._size or not self._taken or length > self._taken[0][0]:
                return None
            start = 0
        self._taken.append((start, start + length))
        return start

    def give_back(self) -> None:
        """Free the place that was taken first."""
        self._taken.popleft()

    def _free(self) -> tuple[int, int]:
        """Return the room behind what was taken last."""
        if not self._taken:
            return 0, self._size
        first, last = self._taken[0], self._taken[-1]
        return last[1], first[0] if last[0] < first[0] else self._size


class HandedOver:
    """The sender's side: batches of one stream in memory of this process."""

    def __init__(self) -> None:
        self._memory = SharedMemory(MEMORY_BYTES)
        self._ring = Ring(MEMORY_BYTES)
        self.name = self._memory.name

    def put(self, rows: pa.RecordBatch) -> MemoryPlace | None:
        """Write a batch; None if it is short, or has no room now: then it must be sent."""
        length = pa.ipc.get_record_batch_size(rows)
        if length < BATCH_BYTES_MIN:
            return None
        schema_bytes = len(rows.schema.serialize())
        start = self._ring.take(schema_bytes + length)
        if start is None:
            return None
        room = self._memory.view[start : start + schema_bytes + length]
        # Arrow writes into memory that is given only as a stream, which begins with its schema.
        pa.ipc.new_stream(pa.FixedSizeBufferWriter(pa.py_buffer(room)), rows.schema).write(rows)
        return MemoryPlace(start=start + schema_bytes, length=length)

    def answered(self) -> None:
        """Use the oldest batch's place again."""
        self._ring.give_back()


def open_memory(name: str) -> memoryview:
    """Return a sender's memory; Unavailable if it cannot be read from here."""
    try:
        return open_shared(name, MEMORY_BYTES)
    except OSError as error:
        raise Unavailable(
            f"the memory that the sender shares cannot be read by this broker: {error}; ask again "
            "with the action share, and send batches in messages if it says no"
        ) from None


def is_readable(name: str) -> bool:
    """Tell whether `open_memory` would succeed."""
    try:
        open_memory(name)
    except Unavailable:
        return False
    return True


def take_over(
    memory: memoryview, place: MemoryPlace, length_max: int
) -> tuple[memoryview, BodyParts]:
    """Copy a batch out of memory that its owner may change at any time; return header and body."""
    if place.length > length_max or place.start + place.length > len(memory):
        raise InvalidRequest(
            f"a batch of {place.length} bytes at {place.start} is not within the {len(memory)} "
            f"bytes of shared memory, or exceeds the limit of {length_max}"
        )
    message = allocate(place.length)
    if message is None:
        raise Overloaded("the broker has no memory for another batch; repeat in a moment")
    message[:] = memory[place.start : place.start + place.length]
    return cut_in_two(message)
