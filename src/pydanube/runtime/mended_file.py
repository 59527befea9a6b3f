"""A file to append to that survives a full disk: what a failed write left is cut off again."""

import errno
from collections.abc import Awaitable, Callable, Sequence

from typing_extensions import override

from pydanube.runtime.files import AppendFile, Files, NoRoom

Check = Callable[[], Awaitable[bool]]
"""Reads back what the file ends with, and tells whether it is what was written."""


class MendedFile(AppendFile):
    """After NoRoom the call may be repeated, with the same parts or others.

    Whoever appends knows up to where the file is good, and `length` asks for it.
    The next call cuts off what the failed write left behind, makes the cut durable, checks what is
    before it, and opens the file again. That is safe only because no sync has failed: whatever was
    synced is on the disk, and nobody was told of anything behind it. Every other error is final, of
    the mending too, as it is for any file.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        file: AppendFile,
        length: Callable[[], int],
        check: Check | None = None,
    ) -> None:
        self._files = files
        self._path = path
        self._file = file
        self._length = length
        self._check = check
        self._reserved_bytes = 0
        self._broken = False
        self._dead: OSError | None = None

    @override
    def padding_before(self, part: bytes | memoryview, place: int) -> int:
        return self._file.padding_before(part, place)

    @override
    async def append(self, parts: Sequence[bytes | memoryview]) -> None:
        await self._carry_out(lambda: self._file.append(parts))

    @override
    async def sync(self) -> None:
        try:
            await self._file.sync()
        except OSError as error:
            self._dead = error
            raise

    @override
    async def append_and_sync(self, parts: Sequence[bytes | memoryview]) -> None:
        await self._carry_out(lambda: self._file.append_and_sync(parts))

    @override
    async def reserve(self, length: int) -> None:
        self._reserved_bytes = length
        await self._file.reserve(length)

    @override
    async def close(self) -> None:
        await self._file.close()

    async def _carry_out(self, write: Callable[[], Awaitable[None]]) -> None:
        if self._dead is not None:
            raise OSError(errno.EIO, f"an earlier call failed ({self._dead})", self._path)
        try:
            if self._broken:
                await self._mend()
            await write()
        except NoRoom:
            self._broken = True
            raise
        except OSError as error:
            self._dead = error
            raise

    async def _mend(self) -> None:
        length = self._length()
        await self._file.close()
        if await self._files.size(self._path) < length:
            raise OSError(errno.EIO, "the file is shorter than what was written to it", self._path)
        await self._files.truncate(self._path, length)
        if self._check is not None and not await self._check():
            raise OSError(errno.EIO, "the file ends otherwise than it was written", self._path)
        self._file = await self._files.open_append(self._path)
        self._broken = False
        if self._reserved_bytes:
            await self._file.reserve(self._reserved_bytes)
