"""Segments in a directory, on the broker's own disk or on a shared file system."""

import errno
import posixpath
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from typing_extensions import override

from pydanube.runtime.files import Files, write_atomically
from pydanube.storage.errors import ObjectMissing, ObjectTooShort, StoreFailed, StoreProblem
from pydanube.storage.segments.object_store import ObjectStore

_PROBLEMS = {
    errno.EACCES: StoreProblem.CREDENTIALS,
    errno.EPERM: StoreProblem.CREDENTIALS,
    errno.EROFS: StoreProblem.CREDENTIALS,
    errno.ENOSPC: StoreProblem.FULL,
    errno.EDQUOT: StoreProblem.FULL,
    errno.ENOTDIR: StoreProblem.PLACE,
    errno.ESTALE: StoreProblem.UNREACHABLE,
    errno.ENOTCONN: StoreProblem.UNREACHABLE,
    errno.EHOSTDOWN: StoreProblem.UNREACHABLE,
    errno.ETIMEDOUT: StoreProblem.TIMEOUT,
}


class DirectoryStore(ObjectStore):
    """One file per object. File and name are synced before a write returns.

    A file is written under another name and renamed, so that a crash leaves all of it or a
    `.tmp`. Two writers of one name must be in one process; names that are used once need no more.
    """

    def __init__(self, files: Files, root: str, *, provider: str, setting: str) -> None:
        self.provider = provider
        self._files = files
        self._root = root
        self._setting = setting
        self._being_written: set[str] = set()

    @property
    @override
    def description(self) -> str:
        return f"the segment directory {self._root}"

    @override
    async def put_if_absent(self, key: str, data: bytes) -> bool:
        async with self._normalised():
            if key in self._being_written:
                return False
            with self._writing(key):
                if await self._files.exists(self._path(key)):
                    return False
                await self._write(key, data)
            return True

    @override
    async def put(self, key: str, data: bytes) -> None:
        async with self._normalised():
            with self._writing(key):
                await self._write(key, data)

    async def _write(self, key: str, data: bytes) -> None:
        directory, name = posixpath.split(self._path(key))
        await self._files.make_directory(directory)
        await write_atomically(self._files, directory, name, data)

    @contextmanager
    def _writing(self, key: str) -> Iterator[None]:
        self._being_written.add(key)
        try:
            yield
        finally:
            self._being_written.discard(key)

    @override
    async def read(self, key: str, position: int, length: int) -> bytes:
        async with self._normalised():
            try:
                data = await self._files.read(self._path(key), position, length)
            except FileNotFoundError:
                raise ObjectMissing(self.description, key) from None
        if len(data) < length:
            raise ObjectTooShort(self.description, key, position, length)
        return data

    @override
    async def size(self, key: str) -> int | None:
        async with self._normalised():
            try:
                return await self._files.size(self._path(key))
            except FileNotFoundError:
                return None

    @override
    async def list(self, directory: str) -> list[str]:
        async with self._normalised():
            names = await self._files.list_names(self._path(directory))
        return [f"{directory}{name}" for name in names]

    @override
    async def directories(self, directory: str) -> tuple[str, ...]:
        found = []
        async with self._normalised():
            for name in await self._files.list_names(self._path(directory)):
                try:
                    await self._files.list_names(self._path(f"{directory}{name}"))
                except NotADirectoryError:
                    continue
                found.append(name)
        return tuple(found)

    @override
    async def delete(self, key: str) -> None:
        async with self._normalised():
            path = self._path(key)
            try:
                await self._files.remove(path)
            except FileNotFoundError:
                return
            await self._files.sync_directory(posixpath.dirname(path))

    @override
    async def close(self) -> None:
        pass

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    @asynccontextmanager
    async def _normalised(self) -> AsyncIterator[None]:
        try:
            yield
        except OSError as error:
            problem = _PROBLEMS.get(error.errno or 0, StoreProblem.OTHER)
            raise StoreFailed(
                self.description, problem, str(error), f"see to the disk, or to {self._setting}"
            ) from error
