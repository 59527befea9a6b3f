"""The files of the single-node metadata: a snapshot, and the log of the commands since."""

from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from pydanube.errors import Corruption, InvalidRequest
from pydanube.metadata.commands import Command
from pydanube.metadata.local_format import (
    SNAPSHOT_NAME,
    encode_closed,
    encode_commands,
    encode_snapshot_file,
    log_name,
    log_position,
    read_log,
    read_snapshot_file,
)
from pydanube.runtime.files import AppendFile, Files, NoRoom, read_whole, write_atomically
from pydanube.runtime.mended_file import MendedFile


class Recovered(Struct, frozen=True):
    """What a directory held when it was opened."""

    state: bytes | None
    """The snapshot, None if the directory is new."""
    commands: list[Command]
    log_start: int
    log_end: int
    """The position after the last good command; what follows was never acknowledged."""


async def check_ours(files: Files, directory: str) -> None:
    """Refuse a directory that somebody else uses, before anything is put into it."""
    names = await files.list_names(directory)
    foreign = [name for name in names if not name.startswith("metadata")]
    if foreign and SNAPSHOT_NAME not in names:
        raise InvalidRequest(
            f"{directory} is not empty and holds no PyDanube metadata (but {foreign[0]}): "
            "choose another directory"
        )


async def recover(files: Files, directory: str) -> Recovered:
    """Read what the directory holds and change nothing; refuse what is damaged or foreign."""
    names = await files.list_names(directory)
    logs = sorted(start for start in map(log_position, names) if start is not None)
    if SNAPSHOT_NAME not in names:
        if logs:
            raise Corruption(
                f"{directory} has the log {log_name(logs[-1])} but no {SNAPSHOT_NAME}. Nothing "
                "was changed. Restore the directory from a backup."
            )
        return Recovered(None, [], 0, 0)
    snapshot_path = f"{directory}/{SNAPSHOT_NAME}"
    start, state = read_snapshot_file(await read_whole(files, snapshot_path), snapshot_path)
    if logs and logs[-1] > start:
        raise Corruption(
            f"{directory}/{log_name(logs[-1])} begins behind position {start}, where "
            f"{snapshot_path} ends, so the commands between are missing. Nothing was changed. "
            "Restore the directory from a backup."
        )
    if start not in logs:
        # A crash came after the snapshot was in place and before its log was.
        return Recovered(state, [], start, start)
    log_path = f"{directory}/{log_name(start)}"
    contents = read_log(await read_whole(files, log_path), start, log_path)
    return Recovered(state, contents.commands, start, contents.end)


class LocalLog:
    """Makes commands durable. After a call has failed, only opening anew tells what is held.

    After NoRoom, `append` and `start_anew` may be called again with the same: that is all that may
    follow then.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._file: AppendFile | None = None
        self._start = 0
        self._end = 0

    @property
    def size(self) -> int:
        """How many bytes the log has since the last snapshot."""
        return self._end - self._start

    async def begin(self, recovered: Recovered, state: bytes) -> None:
        """Make what was recovered durable; `state` is that of all its commands applied."""
        self._end = recovered.log_end
        # The names that were found may be known to the operating system's cache alone.
        await self._files.sync_directory(self._directory)
        if recovered.state is None or recovered.log_end > recovered.log_start:
            await self.start_anew(state)
            return
        self._start = recovered.log_start
        path = self._path(self._start)
        if await self._files.exists(path):
            # It holds nothing good, at most the torn first group.
            await self._files.truncate(path, 0)
            file = await self._files.open_append(path)
        else:
            file = await self._files.create(path)
        self._file = self._mended(path, file)
        await self._files.sync_directory(self._directory)
        await self._remove_old_logs()

    async def append(self, payloads: Sequence[bytes]) -> None:
        """Write encoded commands as one group; they are durable on return."""
        assert self._file is not None, "the log has not begun"
        parts = encode_commands(payloads, self._end)
        await self._file.append_and_sync(parts)
        self._end += sum(map(len, parts))

    async def start_anew(self, state: bytes) -> None:
        """Replace everything so far by a snapshot, and go on with an empty log.

        After a crash between any two of these steps the old files or the new ones are complete.
        """
        snapshot = encode_snapshot_file(self._end, state)
        await write_atomically(self._files, self._directory, SNAPSHOT_NAME, snapshot)
        path = self._path(self._end)
        if await self._files.exists(path):
            await self._files.remove(path)  # Empty: there was no room for what follows here.
        file = await self._files.create(path)
        try:
            # Commands in a log whose name a crash could take away would not be durable.
            await self._files.sync_directory(self._directory)
        except BaseException:
            await file.close()
            raise
        await self.release()
        self._file = self._mended(path, file)
        self._start = self._end
        await self._remove_old_logs()

    async def close_in_order(self) -> None:
        """Say that all is well up to here, so that damage to the last group will be seen."""
        if self._file is not None and self.size:
            await self._file.append_and_sync(encode_closed(self._end))
        await self.release()

    async def release(self) -> None:
        """Let go of the file, as it is."""
        file, self._file = self._file, None
        if file is not None:
            await file.close()

    async def _remove_old_logs(self) -> None:
        with suppress(NoRoom):  # Those that stay go when the next log is begun.
            for name in await self._files.list_names(self._directory):
                start = log_position(name)
                if start is not None and start < self._start:
                    await self._files.remove(f"{self._directory}/{name}")

    def _mended(self, path: str, file: AppendFile) -> MendedFile:
        """Return an empty log to append to."""
        start = self._end

        async def ends_well() -> bool:
            return read_log(await read_whole(self._files, path), start, path).end == self._end

        return MendedFile(self._files, path, file, lambda: self._end - start, ends_well)

    def _path(self, start: int) -> str:
        return f"{self._directory}/{log_name(start)}"
