"""What only the machine's own files can show: system calls, threads and descriptors."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

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
