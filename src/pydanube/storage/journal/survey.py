"""Reads a journal's files from front to back and tells what is good, torn or damaged.

It changes nothing: `recovery` and `quarantine` act on what it finds.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from pydanube.errors import InvalidRequest
from pydanube.model.ids import JournalPosition
from pydanube.runtime.files import Files, read_whole
from pydanube.storage.errors import DamagedRange
from pydanube.storage.frames import PREFIX_BYTES, FrameScan, Stop, find_frame
from pydanube.storage.journal.contents import JournalContents, JournalFile, index_name
from pydanube.storage.journal.index_file import FileIndex, decode_index

CHUNK_BYTES = 8 * 1024 * 1024
_LOG_NAME = re.compile(r"journal-(\d{20})\.log", re.ASCII)


class TornTail(Struct, frozen=True):
    """From `position` on the newest file holds what was never known to be synced."""

    file: JournalFile
    position: JournalPosition


class Survey(Struct, frozen=True, kw_only=True):
    """What a journal holds. Damage and a torn tail are folded into `contents` as if cut out."""

    files: list[JournalFile]
    contents: JournalContents
    damaged: list[DamagedRange]
    torn: TornTail | None


class _After(Struct, frozen=True):
    """What lies behind a bad place: the next good frame, and whether the place was synced once."""

    next_frame: int | None
    was_synced: bool


async def list_journal(files: Files, directory: str) -> list[JournalFile]:
    """Return the journal files in a directory, oldest first, with the sizes they have."""
    found = []
    for name in await files.list_names(directory):
        match = _LOG_NAME.fullmatch(name)
        if match is None:
            continue
        start = int(match[1])
        size = await files.size(f"{directory}/{name}")
        found.append(
            JournalFile(
                start=JournalPosition(start), end=JournalPosition(start + size), topics=set()
            )
        )
    return found


async def survey(
    files: Files,
    directory: str,
    listing: Sequence[JournalFile],
    *,
    use_indexes: bool,
    tells_apart: bool = False,
) -> Survey:
    """Read all frames, and fold them.

    With `use_indexes`, files that have a sound index are not read; damage inside them shows when
    they are. Their progress is not folded, so the newest file's prologue must be whole. With
    `tells_apart`, an id that two topics were given does not end the reading.
    """
    contents = JournalContents(tells_apart=tells_apart)
    damaged: list[DamagedRange] = []
    torn: TornTail | None = None
    for number, file in enumerate(listing):
        following = listing[number + 1] if number + 1 < len(listing) else None
        if following is not None and use_indexes:
            index = await _sound_index(files, directory, file, following)
            if index is not None:
                index.enter(contents, file)
                continue
        reading = _FileReading(files, directory, file, contents)
        if following is None:
            torn = await reading.read_newest(damaged)
        else:
            await reading.read_finished(following.start, damaged)
    return Survey(files=list(listing), contents=contents, damaged=damaged, torn=torn)


async def _sound_index(
    files: Files, directory: str, file: JournalFile, following: JournalFile
) -> FileIndex | None:
    path = f"{directory}/{index_name(file.start)}"
    if not await files.exists(path):
        return None
    index = decode_index(await read_whole(files, path), file.start)
    if index is None or not index.end == file.end == following.start:
        return None
    return index


class _FileReading:
    """Reads one file into the contents. Places inside are byte offsets in the file."""

    def __init__(
        self, files: Files, directory: str, file: JournalFile, contents: JournalContents
    ) -> None:
        self._files = files
        self._path = f"{directory}/{file.name}"
        self._file = file
        self._size: int = file.end - file.start
        self._contents = contents

    async def read_newest(self, damaged: list[DamagedRange]) -> TornTail | None:
        at = await self._fold_from(0)
        while at < self._size:
            after = await self._look_behind(at)
            if not after.was_synced or after.next_frame is None:
                return TornTail(self._file, JournalPosition(self._file.start + at))
            self._give_up(at, after.next_frame, damaged)
            at = await self._fold_from(after.next_frame)
        return None

    async def read_finished(self, end: JournalPosition, damaged: list[DamagedRange]) -> None:
        """Read a file that a later file proves to have been synced up to `end`."""
        whole = end - self._file.start
        surplus = self._size - whole
        self._size = min(self._size, whole)
        at = await self._fold_from(0)
        while at < whole:
            after = await self._look_behind(at)
            next_frame = whole if after.next_frame is None else after.next_frame
            self._give_up(at, next_frame, damaged)
            at = await self._fold_from(next_frame)
        if surplus > 0:
            damaged.append(DamagedRange(self._file.name, end, JournalPosition(end + surplus)))

    def _give_up(self, at: int, next_frame: int, damaged: list[DamagedRange]) -> None:
        start, end = self._file.start + at, self._file.start + next_frame
        damaged.append(DamagedRange(self._file.name, JournalPosition(start), JournalPosition(end)))
        self._contents.fold_hole(start, end, self._file)

    async def _fold_from(self, at: int) -> int:
        """Fold frames from `at` on; return the end of the last one."""
        needed = 0
        while at < self._size:
            data = await self._read(at, max(CHUNK_BYTES, needed))
            scan = FrameScan(data, self._file.start + at)
            self._contents.fold(data, scan, self._file)
            at += scan.at
            needed = scan.needed
            runs_on = scan.stop is Stop.INCOMPLETE and at + needed <= self._size
            if scan.stop is not Stop.END and not runs_on:
                break
        return at

    async def _look_behind(self, bad: int) -> _After:
        """Find the next frame behind a bad place, and any that says the place was synced."""
        bad_position = self._file.start + bad
        first: int | None = None
        at = bad + PREFIX_BYTES  # No frame is shorter.
        while at + PREFIX_BYTES <= self._size:
            data = await self._read(at, CHUNK_BYTES)
            sighting = find_frame(data, self._file.start + at, 0)
            if sighting is None:
                at += max(len(data) - PREFIX_BYTES + 1, 1)
                continue
            at += sighting.at
            if at + sighting.size > self._size:
                at += 1
                continue
            scan = FrameScan(
                await self._read(at, max(CHUNK_BYTES, sighting.size)), self._file.start + at
            )
            for frame in scan:
                if first is None:
                    first = frame.position - self._file.start
                if frame.durable > bad_position:
                    return _After(first, was_synced=True)
            at += max(scan.at, 1)
        return _After(first, was_synced=False)

    async def _read(self, at: int, length: int) -> bytes:
        data = await self._files.read(self._path, at, min(length, self._size - at))
        if not data:
            raise InvalidRequest(
                f"{self._path} shrank while it was read; stop the process that uses it"
            )
        return data
