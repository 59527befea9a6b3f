"""Framing, shared by all logs: every byte on disk is covered by a checksum and knows its place.

The layout is specified in docs/formats/journal.md. Kinds, flags and payloads belong to the log.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from struct import Struct as Layout
from typing import TypeVar

import google_crc32c
import pyarrow as pa
from msgspec import Struct

FORMAT_VERSION = 1
PREFIX_BYTES = 32
PAYLOAD_BYTES_MAX = 256 * 1024 * 1024

_MAGIC = 0x314B4E44
_MAGIC_BYTES = _MAGIC.to_bytes(4, "little")
_PREFIX = Layout("<IIIBBHQQ")
_SEAL = Layout("<II")
_COVERED = Layout("<IBBHQQ")
_COVERED_AT = _SEAL.size
# Below this a copy is cheaper than one more buffer for the operating system to gather.
_JOINED_BYTES_MAX = 4096

AnyBytes = TypeVar("AnyBytes", bytes, bytes | memoryview)

_crc32c = google_crc32c.value
_crc32c_extend = google_crc32c.extend


class Frame(Struct, frozen=True, gc=False):
    """A valid frame inside some bytes: its payload is bytes[start:end]."""

    kind: int
    version: int
    flags: int
    position: int
    durable: int
    start: int
    end: int


class Stop(Enum):
    """Why a scan went no further."""

    END = "the bytes end where a frame ends"
    INCOMPLETE = "the bytes end inside what may be a frame"
    BAD = "no frame is there"


def encode_frame(
    kind: int,
    position: int,
    durable: int,
    parts: Sequence[AnyBytes],
    *,
    version: int = FORMAT_VERSION,
    flags: int = 0,
) -> list[AnyBytes]:
    """Return the frame as buffers to write one after another; a big payload is never copied."""
    length = sum(map(len, parts))
    if length > PAYLOAD_BYTES_MAX:
        raise ValueError(f"a payload of {length} bytes exceeds {PAYLOAD_BYTES_MAX}")
    covered = _COVERED.pack(length, kind, version, flags, position, durable)
    if length <= _JOINED_BYTES_MAX:
        covered = b"".join((covered, *parts))
        return [_SEAL.pack(_MAGIC, _crc32c(covered)) + covered]
    crc = _crc32c(covered)
    for part in parts:
        # It takes no views, but Arrow's buffers of them.
        crc = _crc32c_extend(crc, part if isinstance(part, bytes) else pa.py_buffer(part))
    frame: list[AnyBytes] = [_SEAL.pack(_MAGIC, crc) + covered]
    frame += parts
    return frame


def _checksum(data: bytes, start: int, end: int) -> int:
    """Return that of some of the bytes; many are not copied for it."""
    few = end - start <= _JOINED_BYTES_MAX
    checksum: int = _crc32c(data[start:end] if few else pa.py_buffer(memoryview(data)[start:end]))
    return checksum


class FrameScan:
    """Iterates over the frames that lie side by side in some bytes.

    Once the iteration is over, `at` is the index of the first byte that belongs to no yielded
    frame, and `stop` says why it went no further. After INCOMPLETE, `needed` is how many bytes
    from `at` on would settle the matter; at the end of a log such a frame is as bad as any.
    """

    __slots__ = ("_base", "_data", "at", "needed", "stop")

    def __init__(self, data: bytes, base_position: int, at: int = 0) -> None:
        self._data = data
        self._base = base_position
        self.at = at
        self.needed = PREFIX_BYTES
        self.stop = Stop.END

    def __iter__(self) -> Iterator[Frame]:
        data, base, at, size = self._data, self._base, self.at, len(self._data)
        unpack, checksum = _PREFIX.unpack_from, _checksum
        while at + PREFIX_BYTES <= size:
            magic, crc, length, kind, version, flags, position, durable = unpack(data, at)
            if magic != _MAGIC or position != base + at or length > PAYLOAD_BYTES_MAX:
                return self._stopped(at, Stop.BAD)
            start = at + PREFIX_BYTES
            end = start + length
            if end > size:
                self.needed = end - at
                return self._stopped(at, Stop.INCOMPLETE)
            if checksum(data, at + _COVERED_AT, end) != crc:
                return self._stopped(at, Stop.BAD)
            yield Frame(kind, version, flags, position, durable, start, end)
            self.at = at = end
        self._stopped(at, Stop.END if at == size else Stop.INCOMPLETE)

    def _stopped(self, at: int, stop: Stop) -> None:
        self.at = at
        self.stop = stop


class Sighting(Struct, frozen=True):
    """Where a frame begins, or may begin; `complete` tells whether it was checked as a whole."""

    at: int
    size: int
    complete: bool


def find_frame(data: bytes, base_position: int, at: int) -> Sighting | None:
    """Return the first frame at or after index `at`, wherever the one before it ends.

    A sighting that is not complete runs past the bytes: give at least `size` bytes from there to
    decide. A frame whose prefix is cut by the end of the bytes is not seen, so whoever searches
    piecewise lets the pieces overlap by PREFIX_BYTES - 1.
    """
    size = len(data)
    while True:
        at = data.find(_MAGIC_BYTES, at)
        if at < 0 or at + PREFIX_BYTES > size:
            return None
        _, crc, length, *_, position, _ = _PREFIX.unpack_from(data, at)
        if position == base_position + at and length <= PAYLOAD_BYTES_MAX:
            end = at + PREFIX_BYTES + length
            if end > size:
                return Sighting(at, end - at, complete=False)
            if _checksum(data, at + _COVERED_AT, end) == crc:
                return Sighting(at, end - at, complete=True)
        at += 1
