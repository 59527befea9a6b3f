"""Files of which some syncs do nothing, as a program with a bug would leave them out."""

from collections.abc import Sequence

from typing_extensions import override

from pydanube.runtime.files import AppendFile, Files

SEGMENTS = "/data/segments"


class CarelessFiles:
    """Forgets "sync segment" or "sync segment directory"; everything else is done."""

    def __init__(self, files: Files, careless: frozenset[str]) -> None:
        self._files = files
        self._careless = careless

    def __getattr__(self, name: str):
        return getattr(self._files, name)

    async def create(self, path: str) -> AppendFile:
        file = await self._files.create(path)
        forgets = "sync segment" in self._careless and path.startswith(SEGMENTS)
        return UnsyncedFile(file) if forgets else file

    async def sync_directory(self, path: str) -> None:
        if not ("sync segment directory" in self._careless and path.startswith(SEGMENTS)):
            await self._files.sync_directory(path)


class UnsyncedFile(AppendFile):
    def __init__(self, file: AppendFile) -> None:
        self._file = file

    @override
    async def append(self, parts: Sequence[bytes]) -> None:
        await self._file.append(parts)

    @override
    async def sync(self) -> None:
        pass

    @override
    async def append_and_sync(self, parts: Sequence[bytes]) -> None:
        await self._file.append(parts)

    @override
    async def close(self) -> None:
        await self._file.close()
