"""The machine's file system behind `runtime.files`: every blocking call runs on a thread."""

import contextlib
import ctypes
import errno
import fcntl
import os
import sys
from collections.abc import Callable, Sequence

from typing_extensions import override

from pydanube.runtime.direct_writing import BYTES_MIN, padding_before, runs_of
from pydanube.runtime.files import NO_SPACE, AppendFile, FileLock, Files, naming_no_room
from pydanube.runtime.threads import NO_THREAD, WorkerThreads

_IOVECS_MAX = os.sysconf("SC_IOV_MAX")
_READ_THREADS = 4
_DIRECT: int = getattr(os, "O_DIRECT", 0)


class SystemFiles(Files):
    """Files on disk. A few threads serve reads and directories, and one thread each open file.

    A cancelled call returns only after its operation has ended, so that nothing still changes
    a directory behind the back of whoever cleans up.
    """

    def __init__(self) -> None:
        self._threads = WorkerThreads("files", _READ_THREADS)

    def stop(self) -> None:
        """End the threads that serve reads and directories; open files are not concerned."""
        self._threads.stop()

    @override
    async def list_names(self, directory: str) -> list[str]:
        return await self._threads.run(lambda: _list_names(directory))

    @override
    async def exists(self, path: str) -> bool:
        return await self._threads.run(lambda: _exists(path))

    @override
    async def size(self, path: str) -> int:
        return await self._threads.run(lambda: os.stat(path).st_size)

    @override
    async def read(self, path: str, position: int, length: int) -> bytes:
        return await self._threads.run(lambda: _read(path, position, length))

    @override
    async def make_directory(self, path: str) -> None:
        await self._threads.run(lambda: _make_directory(path))

    @override
    async def create(self, path: str) -> AppendFile:
        return await self._open(path, os.O_CREAT | os.O_EXCL)

    @override
    async def open_append(self, path: str) -> AppendFile:
        return await self._open(path, 0)

    @override
    async def truncate(self, path: str, length: int) -> None:
        await self._threads.run(lambda: _truncate(path, length))

    @override
    async def rename(self, source: str, target: str) -> None:
        await self._threads.run(lambda: _rename(source, target))

    @override
    async def remove(self, path: str) -> None:
        await self._threads.run(lambda: os.unlink(path))

    @override
    async def sync_directory(self, path: str) -> None:
        await self._threads.run(lambda: _sync_directory(path))

    @override
    async def forget_cached(self, path: str, position: int, length: int) -> None:
        await self._threads.run(lambda: _forget_cached(path, position, length))

    @override
    async def free_bytes(self, directory: str) -> int:
        return await self._threads.run(lambda: _free_bytes(directory))

    @override
    async def lock(self, path: str) -> FileLock | None:
        descriptor = await self._threads.run(lambda: _lock(path), _close_if_open)
        return None if descriptor is None else SystemFileLock(descriptor)

    async def _open(self, path: str, flags: int) -> AppendFile:
        flags |= os.O_WRONLY | os.O_APPEND
        thread = WorkerThreads(f"append {os.path.basename(path)}", 1)
        with naming_no_room(NO_THREAD):
            thread.start()  # First, so that nothing is created where there is none.
        try:
            descriptor = await self._threads.run(lambda: _open(path, flags), os.close)
        except BaseException:
            thread.stop()
            raise
        return SystemAppendFile(descriptor, path, thread)


class SystemAppendFile(AppendFile):
    """An open file with a thread of its own.

    A call whose caller was cancelled is still carried out, whole and in its turn. After a failed
    call every later one fails: the kernel forgets that a sync failed, so a second one would
    succeed without having written anything.
    """

    def __init__(self, descriptor: int, path: str, thread: WorkerThreads) -> None:
        self._descriptor = descriptor
        self._path = path
        self._thread = thread
        self._failure: OSError | None = None
        self._closed = False
        self._is_direct = _DIRECT != 0
        """Whether long parts may go past the file cache; False once the file system refused."""

    @override
    def padding_before(self, part: bytes | memoryview, place: int) -> int:
        return padding_before(part, place) if self._is_direct else 0

    @override
    async def append(self, parts: Sequence[bytes | memoryview]) -> None:
        kept = tuple(parts)
        await self._carry_out(lambda: self._write(kept))

    @override
    async def sync(self) -> None:
        await self._carry_out(lambda: _sync_data(self._descriptor))

    @override
    async def append_and_sync(self, parts: Sequence[bytes | memoryview]) -> None:
        kept = tuple(parts)

        def work() -> None:
            self._write(kept)
            _sync_data(self._descriptor)

        await self._carry_out(work)

    @override
    async def reserve(self, length: int) -> None:
        await self._carry_out(lambda: _reserve(self._descriptor, length))

    @override
    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        closed = self._thread.submit(lambda: os.close(self._descriptor))
        self._thread.stop()
        await closed

    def _write(self, parts: Sequence[bytes | memoryview]) -> None:
        with naming_no_room(NO_SPACE):
            self._write_as_it_goes(parts)

    def _write_as_it_goes(self, parts: Sequence[bytes | memoryview]) -> None:
        if not self._is_direct or max(map(len, parts), default=0) < BYTES_MIN:
            _write_all(self._descriptor, parts)
            return
        for run in runs_of(parts, os.fstat(self._descriptor).st_size):
            if not run.direct:
                _write_all(self._descriptor, run.parts)
            elif not self._is_direct or not _write_directly(self._descriptor, *run.parts):
                self._is_direct = False
                _write_all(self._descriptor, run.parts)

    async def _carry_out(self, work: Callable[[], None]) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "file is closed", self._path)
        await self._thread.submit(lambda: self._unless_failed(work))

    def _unless_failed(self, work: Callable[[], None]) -> None:
        if self._failure is not None:
            raise OSError(errno.EIO, f"an earlier call failed ({self._failure})", self._path)
        try:
            work()
        except OSError as error:
            self._failure = error
            raise


class SystemFileLock(FileLock):
    """An flock; the kernel releases it when the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @override
    async def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        # Closing the only descriptor of a lock file has nothing to flush, so it does not block.
        _close_if_open(descriptor)


def _open(path: str, flags: int) -> int:
    """Open a file for a while or for long; all descriptors of this module come from here."""
    with naming_no_room():
        return os.open(path, flags, 0o644)


def _rename(source: str, target: str) -> None:
    with naming_no_room():
        os.rename(source, target)


def _list_names(directory: str) -> list[str]:
    try:
        with naming_no_room():
            return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def _exists(path: str) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _read(path: str, position: int, length: int) -> bytes:
    descriptor = _open(path, os.O_RDONLY)
    try:
        # Memory is taken for what the file holds, not for what the caller hoped for.
        length = min(length, os.fstat(descriptor).st_size - position)
        pieces = []
        while length > 0 and (piece := os.pread(descriptor, length, position)):
            pieces.append(piece)
            position += len(piece)
            length -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    finally:
        os.close(descriptor)


def _make_directory(path: str) -> None:
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = _parent(path)
    # A process that died between making this directory and syncing it left it undurable. Where
    # the parent may not be opened, it was not this process that made the directory.
    with contextlib.suppress(PermissionError):
        _sync_directory(_parent(path))
    for directory in reversed(missing):
        try:
            with naming_no_room():
                os.mkdir(directory)
        except FileExistsError:
            if not os.path.isdir(directory):
                raise
        _sync_directory(_parent(directory))


def _parent(path: str) -> str:
    return os.path.dirname(os.path.normpath(path)) or "."


def _truncate(path: str, length: int) -> None:
    descriptor = _open(path, os.O_WRONLY)
    try:
        if length > os.fstat(descriptor).st_size:
            raise OSError(errno.EINVAL, f"cannot cut to {length} bytes, it is shorter", path)
        os.ftruncate(descriptor, length)
        _sync_data(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(path: str) -> None:
    descriptor = _open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _forget_cached(path: str, position: int, length: int) -> None:
    advise = getattr(os, "posix_fadvise", None)
    descriptor = _open(path, os.O_RDONLY)
    try:
        if advise is not None:
            advise(descriptor, position, length, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _free_bytes(directory: str) -> int:
    file_system = os.statvfs(directory)
    return file_system.f_bavail * file_system.f_frsize


def _lock(path: str) -> int | None:
    descriptor = _open(path, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _close_if_open(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


_KEEP_SIZE = 1


def _reserve(descriptor: int, length: int) -> None:
    """Allocate blocks behind the end of a file, where the system and the file system can."""
    allocate = getattr(ctypes.CDLL(None), "fallocate", None)
    if allocate is not None:
        allocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        # What it returns does not matter: without the space, an append will say so in its time.
        allocate(descriptor, _KEEP_SIZE, os.fstat(descriptor).st_size, length)


def _sync_data(descriptor: int) -> None:
    if sys.platform == "darwin":
        # There, fsync leaves the bytes in the drive's own cache.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def _write_directly(descriptor: int, part: bytes | memoryview) -> bool:
    """Write a part past the file cache; False, and nothing is written, if that cannot be done."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _DIRECT)
        written = os.write(descriptor, part)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    # What a disk did not take, for it may be full, is not made of whole blocks.
    _write_all(descriptor, [memoryview(part)[written:]])
    return True


def _write_all(descriptor: int, parts: Sequence[bytes | memoryview]) -> None:
    for start in range(0, len(parts), _IOVECS_MAX):
        _write_vector(descriptor, parts[start : start + _IOVECS_MAX])


def _write_vector(descriptor: int, parts: Sequence[bytes | memoryview]) -> None:
    remaining = sum(map(len, parts))
    while remaining:
        written = os.writev(descriptor, parts)
        if not written:
            raise OSError(errno.EIO, "the file system took no bytes")
        remaining -= written
        if remaining:
            parts = _after(parts, written)


def _after(parts: Sequence[bytes | memoryview], written: int) -> list[bytes | memoryview]:
    """Return what is left of `parts` without their first `written` bytes."""
    for index, part in enumerate(parts):
        if written < len(part):
            return [part[written:], *parts[index + 1 :]]
        written -= len(part)
    return []
