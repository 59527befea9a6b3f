"""The files of a Raft node: a snapshot, the log since, and the node's number."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from msgspec import Struct

from pydanube.errors import Conflict, Corruption, InvalidRequest
from pydanube.metadata.commands import MIB
from pydanube.metadata.raft.entries import HardState, LogEntry, Snapshot, Stored
from pydanube.metadata.raft_format import (
    LOCK_NAME,
    NEXT_STEP,
    NODE_ID_NAME,
    SNAPSHOT_NAME,
    encode_closed,
    encode_group,
    encode_log_start,
    encode_snapshot_file,
    join,
    log_name,
    log_position,
    read_log,
    read_snapshot_file,
)
from pydanube.runtime.files import (
    AppendFile,
    FileLock,
    Files,
    NoRoom,
    read_whole,
    write_atomically,
)
from pydanube.runtime.mended_file import MendedFile

RESERVED_BYTES = 8 * MIB
"""Set aside for each log: a disk that others fill does not stop a node at its next vote or entry,
only when the log is due to be cut."""


class Found(Struct, frozen=True):
    """What a directory held when it was opened."""

    node: int | None
    stored: Stored | None
    """None if no Raft node has lived here yet."""
    end: int


class RaftDisk:
    """Makes a node's promises durable. After a failed call only opening anew tells what is held.

    After NoRoom, `write`, `write_snapshot` and `begin_log` may be called again with the same: that
    is all that may follow then.
    """

    def __init__(self, files: Files, directory: str, lock: FileLock, found: Found) -> None:
        self._files = files
        self._directory = directory
        self._lock = lock
        self._file: AppendFile | None = None
        self._start = found.end
        self._end = found.end
        self._begun = found.end
        self.found = found
        self.node = found.node or 0

    @property
    def grown_bytes(self) -> int:
        """How much was written since the log was begun."""
        return self._end - self._begun

    @classmethod
    async def open(cls, files: Files, directory: str) -> Self:
        """Take the directory and read what it holds; nothing is changed yet.

        Corruption if stored bytes are damaged or missing, InvalidRequest if the directory is
        somebody else's, Conflict if another process uses it.
        """
        await _check_ours(files, directory)
        await files.make_directory(directory)
        lock = await files.lock(f"{directory}/{LOCK_NAME}")
        if lock is None:
            raise Conflict(
                f"the metadata in {directory} is in use by another process; stop that one, or "
                "choose a data directory of its own (--data-dir)"
            )
        try:
            return cls(files, directory, lock, await _find(files, directory))
        except BaseException:
            await lock.release()
            raise

    async def begin(self, node: int, stored: Stored) -> None:
        """Make durable what the node starts with, be it found or new.

        What was found may have been read from the operating system's cache alone.
        """
        self.node = node
        await self._files.sync_directory(self._directory)
        await self.write_snapshot(stored.snapshot)
        await self.begin_log(stored)
        path = f"{self._directory}/{NODE_ID_NAME}"
        if not await self._files.exists(path):
            # Last, so that a number without a log means that the log is lost.
            await write_atomically(self._files, self._directory, NODE_ID_NAME, b"%d\n" % node)

    async def write(self, hard_state: HardState | None, entries: Sequence[LogEntry]) -> None:
        """Write a group; it is durable on return. Entries replace those from their first on."""
        assert self._file is not None, "the log has not begun"
        parts = encode_group(hard_state, entries, self._end)
        await self._file.append_and_sync(parts)
        self._end += sum(map(len, parts))

    async def write_snapshot(self, snapshot: Snapshot) -> None:
        """Put a snapshot in place of the former one, durably."""
        data = encode_snapshot_file(snapshot)
        await write_atomically(self._files, self._directory, SNAPSHOT_NAME, data)

    async def begin_log(self, stored: Stored) -> None:
        """Put a new log in place of the former one; its snapshot is durable already.

        After a crash between any two of these steps the old log or the new one is complete.
        """
        data = b"".join(encode_log_start(self.node, stored, self._end))
        name = log_name(self._end)
        await write_atomically(self._files, self._directory, name, data)
        path = f"{self._directory}/{name}"
        file = self._mended(path, await self._files.open_append(path))
        await file.reserve(RESERVED_BYTES)
        await self._release_file()
        self._file = file
        self._start, self._end = self._end, self._end + len(data)
        self._begun = self._end
        with suppress(NoRoom):  # Those that stay go when the next log is begun.
            await self._remove_old_logs()

    def _mended(self, path: str, file: AppendFile) -> MendedFile:
        """Return the log that begins where the former one ends."""
        start = self._end

        async def ends_well() -> bool:
            return read_log(await read_whole(self._files, path), start, path).end == self._end

        return MendedFile(self._files, path, file, lambda: self._end - start, ends_well)

    async def close_in_order(self) -> None:
        """Say that all is well up to here, so that damage to the last group will be seen."""
        if self._file is not None:
            await self._file.append_and_sync(encode_closed(self._end))

    async def release(self) -> None:
        """Let go of the files, as they are."""
        await self._release_file()
        await self._lock.release()

    async def _release_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            await file.close()

    async def _remove_old_logs(self) -> None:
        for name in await self._files.list_names(self._directory):
            start = log_position(name)
            if start is not None and start < self._start:
                await self._files.remove(f"{self._directory}/{name}")


async def _check_ours(files: Files, directory: str) -> None:
    names = await files.list_names(directory)
    ours = ("raft", "metadata", NODE_ID_NAME)
    foreign = [name for name in names if not name.startswith(ours)]
    if foreign and SNAPSHOT_NAME not in names:
        raise InvalidRequest(
            f"{directory} is not empty and holds no PyDanube metadata (but {foreign[0]}): "
            "choose another directory"
        )


async def _find(files: Files, directory: str) -> Found:
    names = await files.list_names(directory)
    number = await _read_number(files, directory) if NODE_ID_NAME in names else None
    logs = sorted(start for start in map(log_position, names) if start is not None)
    if SNAPSHOT_NAME not in names and not logs:
        if number is not None and not any(name.startswith("metadata") for name in names):
            raise Corruption(
                f"{directory} belongs to node {number}, but its Raft log is missing. {NEXT_STEP}."
            )
        return Found(number, None, 0)
    if SNAPSHOT_NAME not in names:
        raise Corruption(f"{directory} has a Raft log but no {SNAPSHOT_NAME}. {NEXT_STEP}.")
    path = f"{directory}/{SNAPSHOT_NAME}"
    snapshot = read_snapshot_file(await read_whole(files, path), path)
    if not logs:
        if number is None and snapshot.index <= 1:
            return Found(None, None, 0)  # A crash came before the very first log.
        raise Corruption(f"{directory} has {SNAPSHOT_NAME} but no Raft log. {NEXT_STEP}.")
    path = f"{directory}/{log_name(logs[-1])}"
    log = read_log(await read_whole(files, path), logs[-1], path)
    if number is not None and number != log.node:
        raise Corruption(
            f"{directory}/{NODE_ID_NAME} says {number}, but the log is node {log.node}'s. "
            f"{NEXT_STEP}."
        )
    if log.base_index > snapshot.index:
        raise Corruption(
            f"{path} begins behind entry {log.base_index}, where {SNAPSHOT_NAME} ends at "
            f"{snapshot.index}, so entries are missing. {NEXT_STEP}."
        )
    return Found(log.node, join(snapshot, log), log.end)


async def _read_number(files: Files, directory: str) -> int:
    path = f"{directory}/{NODE_ID_NAME}"
    text = (await read_whole(files, path)).strip()
    if not text.isdigit() or not 1 <= int(text) < 2**64:
        raise Corruption(f"{path} should hold the node's number and holds {text[:40]!r}")
    return int(text)
