"""What only the machine's own files can show: system calls, threads and descriptors."""

import asyncio
import errno
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from pydanube.runtime.files import AppendFile
from pydanube.runtime.system_files import SystemFiles


@pytest.fixture
async def files() -> AsyncIterator[SystemFiles]:
    system = SystemFiles()
    yield system
    system.stop()


class Calls:
    """Records the calls that make things durable, in order, with what they were applied to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, str]] = []
        for name in ("writev", "fdatasync", "fsync", "ftruncate"):
            monkeypatch.setattr(os, name, self._recording(name, getattr(os, name)))

    def _recording(self, name, real):
        def call(descriptor, *arguments):
            self.seen.append((name, os.readlink(f"/proc/self/fd/{descriptor}")))
            return real(descriptor, *arguments)

        return call


async def test_append_and_sync_is_one_write_and_one_sync(
    files: SystemFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "log")
    file = await files.create(path)
    calls = Calls(monkeypatch)
    await file.append_and_sync([b"a", b"b", b"c"])
    assert calls.seen == [("writev", path), ("fdatasync", path)]
    await file.append([b"d"])
    assert calls.seen[2:] == [("writev", path)]
    await file.sync()
    assert calls.seen[3:] == [("fdatasync", path)]
    await file.close()


async def test_truncating_and_syncing_a_directory_reach_the_disk(
    files: SystemFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "log")
    Path(path).write_bytes(b"0123")
    calls = Calls(monkeypatch)
    await files.truncate(path, 2)
    await files.sync_directory(str(tmp_path))
    assert calls.seen == [("ftruncate", path), ("fdatasync", path), ("fsync", str(tmp_path))]


async def test_making_directories_syncs_every_parent(
    files: SystemFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(tmp_path)
    calls = Calls(monkeypatch)
    await files.make_directory(f"{root}/a/b/c")
    synced = [path for name, path in calls.seen if name == "fsync"]
    assert synced[-3:] == [root, f"{root}/a", f"{root}/a/b"]


async def test_a_directory_left_unsynced_by_a_killed_process_is_synced(
    files: SystemFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    calls = Calls(monkeypatch)
    await files.make_directory(str(tmp_path / "a"))
    assert ("fsync", str(tmp_path)) in calls.seen


async def test_short_writes_are_continued_where_they_stopped(
    files: SystemFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.writev

    def short_writev(descriptor: int, parts: Sequence[bytes]) -> int:
        return real(descriptor, [b"".join(parts)[:7]])

    monkeypatch.setattr(os, "writev", short_writev)
    parts = [b"x" * length + bytes([length]) for length in (0, 1, 5, 6, 7, 8, 13, 14, 40)]
    file = await files.create(str(tmp_path / "log"))
    await file.append([b"", *parts, b""])
    await file.close()
    assert (tmp_path / "log").read_bytes() == b"".join(parts)


async def test_a_file_system_that_takes_nothing_is_an_error_not_a_loop(
    files: SystemFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "writev", lambda descriptor, parts: 0)
    file = await files.create(str(tmp_path / "log"))
    with pytest.raises(OSError, match="took no bytes"):
        await file.append([b"x"])
    await file.close()


async def test_after_a_failed_sync_nothing_succeeds_any_more(
    files: SystemFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await files.create(str(tmp_path / "log"))

    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", failing)
        with pytest.raises(OSError, match="the disk is broken"):
            await file.append_and_sync([b"x"])
    for call in (file.sync(), file.append([b"y"]), file.append_and_sync([b"z"])):
        with pytest.raises(OSError, match="an earlier call failed"):
            await call
    await file.close()
    assert (tmp_path / "log").read_bytes() == b"x"


async def test_the_event_loop_runs_on_while_a_file_is_slow(
    files: SystemFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: release.wait(10))
    slow = await files.create(str(tmp_path / "slow"))
    quick = await files.create(str(tmp_path / "quick"))
    syncing = asyncio.create_task(slow.sync())
    await quick.append([b"not held up"])
    assert await files.read(str(tmp_path / "quick"), 0, 100) == b"not held up"
    assert not syncing.done()
    release.set()
    await syncing
    await slow.close()
    await quick.close()


async def test_a_file_has_one_thread_and_gives_it_back(files: SystemFiles, tmp_path: Path) -> None:
    file = await files.create(str(tmp_path / "segment-7"))
    await file.append([b"x"])
    (thread,) = [thread for thread in threading.enumerate() if "segment-7" in thread.name]
    assert thread.daemon
    await file.close()
    thread.join(5)
    assert not thread.is_alive()


async def test_a_cancelled_opening_leaves_no_descriptor_open(
    files: SystemFiles, tmp_path: Path
) -> None:
    for number in range(20):
        path = str(tmp_path / f"{number}")
        for call in (files.create(path), files.lock(f"{path}.lock")):
            task = asyncio.create_task(call)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    links = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    assert not [link for link in links if link.is_symlink() and str(tmp_path) in os.readlink(link)]


async def test_threads_end_with_the_files_they_served(tmp_path: Path) -> None:
    def serving() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("files-")}

    before = serving()
    files = SystemFiles()
    assert await files.exists(str(tmp_path))
    started = serving() - before
    assert started
    del files
    for thread in started:
        thread.join(5)
        assert not thread.is_alive()


async def test_errors_other_than_absence_are_not_taken_for_absence(
    files: SystemFiles, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="File name too long"):
        await files.exists(str(tmp_path / ("x" * 300)))


async def test_the_system_is_told_which_bytes_it_need_not_cache(
    files: SystemFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "log")
    Path(path).write_bytes(bytes(20_000))
    told = []

    def advise(descriptor: int, position: int, length: int, advice: int) -> None:
        told.append((os.readlink(f"/proc/self/fd/{descriptor}"), position, length, advice))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    before = len(os.listdir("/proc/self/fd"))
    await files.forget_cached(path, 4_096, 8_192)
    assert told == [(path, 4_096, 8_192, os.POSIX_FADV_DONTNEED)]
    monkeypatch.delattr(os, "posix_fadvise")
    await files.forget_cached(path, 4_096, 8_192)
    assert len(os.listdir("/proc/self/fd")) == before


def padded(file: AppendFile, place: int, number: int) -> list[bytes]:
    """A long part, with what the file wants before it."""
    part = bytes([number]) * 200_001
    return [b"." * file.padding_before(part, place), part]


class DirectWrites:
    """Records what is written past the file cache; fails or falls short as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lengths: list[int] = []
        self.error: OSError | None = None
        self.taken: int | None = None
        self._write = os.write
        monkeypatch.setattr(os, "write", self._direct_write)

    def _direct_write(self, descriptor: int, part: memoryview) -> int:
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
        self.lengths.append(len(part))
        if self.error is not None:
            raise self.error
        return self._write(descriptor, part[: self.taken])


async def test_long_parts_go_past_the_cache_in_whole_blocks(
    files: SystemFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = DirectWrites(monkeypatch)
    file = await files.create(str(tmp_path / "log"))
    await file.append([b"head"])
    first = padded(file, 4, 1)
    second = padded(file, 4 + sum(map(len, first)) + 5, 2)
    await file.append_and_sync([*first, b"short", *second])
    await file.append([b"end"])
    await file.close()
    assert len(direct.lengths) == 2
    assert all(length % 4096 == 0 and length > 190_000 for length in direct.lengths)
    expected = b"".join((b"head", *first, b"short", *second, b"end"))
    assert (tmp_path / "log").read_bytes() == expected


async def test_a_file_that_is_opened_again_is_written_past_the_cache_at_its_end(
    files: SystemFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_bytes(b"x" * 5_000)
    direct = DirectWrites(monkeypatch)
    file = await files.open_append(str(tmp_path / "log"))
    parts = padded(file, 5_000, 1)
    await file.append_and_sync(parts)
    await file.close()
    assert len(direct.lengths) == 1
    assert (tmp_path / "log").read_bytes() == b"x" * 5_000 + b"".join(parts)


async def test_parts_that_are_not_padded_go_through_the_cache(
    files: SystemFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = DirectWrites(monkeypatch)
    file = await files.create(str(tmp_path / "log"))
    padding, part = padded(file, 0, 1)
    await file.append_and_sync([padding, b"!", part])
    await file.close()
    assert direct.lengths == []
    assert (tmp_path / "log").read_bytes() == padding + b"!" + part


@pytest.mark.parametrize("refused", ["the flag", "the write"])
async def test_a_file_system_that_cannot_do_it_is_not_asked_again(
    files: SystemFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    direct = DirectWrites(monkeypatch)
    asked = []
    if refused == "the write":
        direct.error = OSError(errno.EINVAL, "Invalid argument")
    else:
        real = fcntl.fcntl

        def without_direct(descriptor: int, command: int, flags: int = 0) -> int:
            if flags & os.O_DIRECT:
                asked.append(command)
                raise OSError(errno.EINVAL, "Invalid argument")
            return real(descriptor, command, flags)

        monkeypatch.setattr(fcntl, "fcntl", without_direct)
    file = await files.create(str(tmp_path / "log"))
    first = padded(file, 0, 1)
    second = padded(file, sum(map(len, first)), 2)
    await file.append_and_sync([*first, *second])
    third = padded(file, sum(map(len, (*first, *second))), 3)
    assert third[0] == b"", "it asks for nothing any more"
    await file.append_and_sync(third)
    await file.close()
    assert len(direct.lengths) + len(asked) == 1
    assert (tmp_path / "log").read_bytes() == b"".join((*first, *second, *third))


@pytest.mark.parametrize("taken", [0, 512, 8_192, 8_292])
async def test_what_a_direct_write_leaves_is_written_through_the_cache(
    files: SystemFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    direct = DirectWrites(monkeypatch)
    direct.taken = taken
    monkeypatch.setattr(direct, "_write", short_cached_write)
    file = await files.create(str(tmp_path / "log"))
    parts = padded(file, 0, 1)
    await file.append_and_sync([*parts, b"end"])
    await file.close()
    assert len(direct.lengths) == 1
    assert (tmp_path / "log").read_bytes() == b"".join((*parts, b"end"))


def short_cached_write(descriptor: int, part: memoryview) -> int:
    """A disk that is full may take any number of bytes; this one does not take them directly."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
    return os.writev(descriptor, [part])


async def test_a_failed_direct_write_is_the_files_last(
    files: SystemFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = DirectWrites(monkeypatch)
    direct.error = OSError(errno.ENOSPC, "No space left on device")
    file = await files.create(str(tmp_path / "log"))
    with pytest.raises(OSError, match="No space left"):
        await file.append_and_sync(padded(file, 0, 1))
    for call in (file.sync(), file.append([b"y"])):
        with pytest.raises(OSError, match="an earlier call failed"):
            await call
    await file.close()
    assert len(direct.lengths) == 1
