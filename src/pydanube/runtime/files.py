"""Files, as the rest of PyDanube may know them: the interface, and what can be built upon it."""

import contextlib
import errno
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT})
"""How a system says that descriptors, memory or space have run out."""
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""How it says so of a write."""


class NoRoom(OSError):
    """The system had no room for it now: no descriptor, no memory, no space. It may have later.

    Raised by calls that changed nothing then, and by `append` and `append_and_sync` of a file when
    a write came to no space: then some of the parts may lie behind what was appended before, and
    nothing else has happened. A sync that fails is never called so, whatever its reason.
    """


@contextlib.contextmanager
def naming_no_room(numbers: frozenset[int] = NO_ROOM) -> Iterator[None]:
    """Raise NoRoom where an error of the system says that; around what changes nothing then."""
    try:
        yield
    except OSError as error:
        if error.errno not in numbers or isinstance(error, NoRoom):
            raise
        raise NoRoom(error.errno, error.strerror, error.filename) from error


class AppendFile(Protocol):
    """A file that only grows. One caller at a time; calls are carried out in order.

    After a call failed, what the file holds is unknown: close it and let recovery decide. But after
    NoRoom it is known up to where it was, so that it may be cut there and opened again.
    """

    async def append(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write the parts one after another at the end of the file. Not durable yet."""

    async def sync(self) -> None:
        """Make everything appended so far durable (fdatasync)."""

    async def append_and_sync(self, parts: Sequence[bytes | memoryview]) -> None:
        """Append the parts and make them durable, in one hop to the file's thread."""

    def padding_before(self, part: bytes | memoryview, place: int) -> int:
        """Return how many bytes more before a part, which would lie at `place` of the file, let it
        go to the disk from where it is in memory; 0 also if no number of bytes does.

        Whoever cannot put anything there need not ask: the part is copied then.
        """
        return 0

    async def reserve(self, length: int) -> None:
        """Set space aside for what will be appended, if that can be done; harmless if not.

        The file stays as long as it is; only others cannot take that space any more.
        """

    async def close(self) -> None:
        """Release the file. What was not synced stays unsynced."""


class FileLock(Protocol):
    """Held until released, or until the process ends."""

    async def release(self) -> None:
        """Let others have it."""


class Files(Protocol):
    """A file system. No call blocks the event loop; paths are absolute or relative strings.

    Creating, renaming and removing a file is durable only after `sync_directory` on its directory.
    Errors are OSError. What cannot be opened, created or renamed for want of room raises NoRoom.
    """

    async def list_names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory; an absent directory is empty."""

    async def exists(self, path: str) -> bool:
        """Tell whether a file or directory is there."""

    async def size(self, path: str) -> int:
        """Return a file's length in bytes."""

    async def read(self, path: str, position: int, length: int) -> bytes:
        """Return up to `length` bytes from `position`; fewer only at the end of the file."""

    async def make_directory(self, path: str) -> None:
        """Create the directory and its parents as needed, durably."""

    async def create(self, path: str) -> AppendFile:
        """Create a file that does not exist yet (FileExistsError otherwise)."""

    async def open_append(self, path: str) -> AppendFile:
        """Open an existing file to append at its end."""

    async def truncate(self, path: str, length: int) -> None:
        """Cut a file to `length` bytes and make that durable."""

    async def rename(self, source: str, target: str) -> None:
        """Give a file another name, replacing what had it."""

    async def remove(self, path: str) -> None:
        """Delete a file."""

    async def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in the directory durable."""

    async def forget_cached(self, path: str, position: int, length: int) -> None:
        """Let the system take back the memory in which it keeps synced bytes of a file.

        Nothing but time is lost: whoever reads them next waits for the disk. Where the system
        cannot be told so, nothing happens.
        """

    async def free_bytes(self, directory: str) -> int:
        """Return how much space its file system has left."""

    async def lock(self, path: str) -> FileLock | None:
        """Take an exclusive lock on `path`, creating it; None if somebody holds it."""


async def read_whole(files: Files, path: str) -> bytes:
    """Return all of a small file."""
    return await files.read(path, 0, await files.size(path))


async def write_atomically(files: Files, directory: str, name: str, data: bytes) -> None:
    """Put a whole file in place durably: a crash leaves the old one or the new one, never a mix."""
    temporary = f"{directory}/{name}.tmp"
    if await files.exists(temporary):
        await files.remove(temporary)  # Left behind by a crash before the rename.
    file = await files.create(temporary)
    try:
        await file.append_and_sync([data])
    except NoRoom:
        await file.close()
        await files.remove(temporary)  # It would take the little room that there is.
        raise
    finally:
        await file.close()
    await files.rename(temporary, f"{directory}/{name}")
    await files.sync_directory(directory)
