"""The bytes of one simulated file: what a reader sees, and what a crash would leave of it."""

import errno

from pydanube.runtime.randomness import Randomness

SECTOR_BYTES = 512


class FileContents:
    """A file that is appended to and cut, without its name.

    The first `durable_bytes` bytes survive every crash, unless a sync failed on them: the kernel
    then drops the bytes, goes on showing them, and reports the next sync as a success. Bytes after
    that are lost, kept, kept in part, or kept as sectors in no particular order.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable_bytes = 0
        # Bytes that an unsynced cut took away: a crash may bring them back.
        self._cut_off = b""
        self._dropped: list[tuple[int, int]] = []

    def append(self, piece: bytes) -> None:
        """Add bytes at the end, not durable yet."""
        self.data += piece

    def truncate(self, length: int) -> None:
        """Cut to `length` bytes, not durable yet."""
        if length > len(self.data):
            raise OSError(errno.EINVAL, f"cannot cut to {length} bytes, it is shorter")
        if length < self.durable_bytes:
            self._cut_off = bytes(self.data[length : self.durable_bytes]) + self._cut_off
            self.durable_bytes = length
        self._dropped = [
            (start, min(end, length)) for start, end in self._dropped if start < length
        ]
        del self.data[length:]

    def sync(self) -> None:
        """Make everything durable, except what a failed sync has dropped."""
        self.durable_bytes = len(self.data)
        self._cut_off = b""

    def fail_sync(self) -> None:
        """Drop what was not durable: it stays visible until the crash, and no sync will save it."""
        if self.durable_bytes < len(self.data):
            self._dropped.append((self.durable_bytes, len(self.data)))

    def flip_bit(self, position: int, bit: int) -> None:
        """Damage one bit on the medium itself."""
        if not 0 <= position < len(self.data):
            raise ValueError(f"position {position} is not within {len(self.data)} bytes")
        self.data[position] ^= 1 << bit

    def replace(self, data: bytes) -> None:
        """Put other bytes on the medium itself, durably."""
        self.data = bytearray(data)
        self.durable_bytes = len(data)
        self._cut_off = b""
        self._dropped = []

    def crash(self, randomness: Randomness) -> None:
        """Become what the machine finds after a power loss."""
        for start, end in self._dropped:
            if randomness.below(2):
                self.data[start:end] = bytes(end - start)
        if self._cut_off and randomness.below(2):
            self.data[self.durable_bytes :] = self._cut_off
        else:
            self._lose_unsynced(randomness)
        self.replace(bytes(self.data))

    def _lose_unsynced(self, randomness: Randomness) -> None:
        unsynced = len(self.data) - self.durable_bytes
        if not unsynced:
            return
        match randomness.below(4):
            case 0:
                del self.data[self.durable_bytes :]
            case 1:
                del self.data[self.durable_bytes + randomness.below(unsynced + 1) :]
            case 2:
                self._lose_sectors(randomness)
            case _:
                return

    def _lose_sectors(self, randomness: Randomness) -> None:
        """Keep some sectors and not others: the file's length was stored, these bytes were not."""
        start = self.durable_bytes
        while start < len(self.data):
            end = min(len(self.data), (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
            if randomness.below(2):
                self.data[start:end] = bytes(end - start)
            start = end
