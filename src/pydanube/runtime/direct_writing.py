"""Which bytes of a write go to the disk from where they lie in memory, past the file cache. Pure.

The cache would copy them, for readers who have most often read them already. A disk takes whole
blocks from whole blocks of memory: what goes past the cache begins and ends at multiples of
ALIGNMENT in the file, and in memory just as far behind such a multiple as in the file.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from msgspec import Struct

ALIGNMENT = 4096
"""What every disk and file system is content with; few ask for more than 512."""
BYTES_MIN = 64 * 1024
"""A shorter part is not worth a wait for the disk of its own."""


class Run(Struct, frozen=True):
    """Parts of a write that are written in one way, one after another."""

    parts: tuple[bytes | memoryview, ...]
    direct: bool


def padding_before(part: bytes | memoryview, place: int) -> int:
    """Return how many bytes to put before a part at `place`, so that it can go past the cache."""
    return (_address_of(part) - place) % ALIGNMENT if len(part) >= BYTES_MIN else 0


def runs_of(parts: Sequence[bytes | memoryview], place: int) -> Iterator[Run]:
    """Cut a write that begins at `place` into runs; direct ones have one part each."""
    cached: list[bytes | memoryview] = []
    for part in parts:
        first = -place % ALIGNMENT
        place += len(part)
        if len(part) < BYTES_MIN or padding_before(part, place - len(part)):
            cached.append(part)
            continue
        view = memoryview(part)
        last = len(part) - place % ALIGNMENT
        cached.append(view[:first])
        yield Run(tuple(cached), direct=False)
        yield Run((view[first:last],), direct=True)
        cached = [view[last:]]
    yield Run(tuple(cached), direct=False)


def _address_of(part: bytes | memoryview) -> int:
    address: int = pa.py_buffer(part).address
    return address
