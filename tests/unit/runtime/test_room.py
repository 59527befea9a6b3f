"""What found no room is done again; a full file system of its own takes part where it can."""

import asyncio
import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pydanube.runtime.clock import SystemClock
from pydanube.runtime.files import NoRoom, read_whole
from pydanube.runtime.mended_file import MendedFile
from pydanube.runtime.room import Room, WaitEnded, describe
from pydanube.runtime.system_files import SystemFiles
from tests.support.small_disk import small_disk


def no_room(number: int = errno.EMFILE) -> NoRoom:
    return NoRoom(number, "nothing left")


class Work:
    """Finds no room for so many times."""

    def __init__(self, times: int) -> None:
        self.left = times

    async def __call__(self) -> str:
        if self.left:
            self.left -= 1
            raise no_room()
        return "done"


def room_of() -> tuple[Room, list[str]]:
    told: list[str] = []
    room = Room(
        SystemClock(),
        lambda lacking: told.append(f"began: {lacking}"),
        lambda waited_ms: told.append("ended"),
    )
    return room, told


async def test_what_has_room_is_done_once_and_nobody_is_told() -> None:
    room, told = room_of()
    assert await room.carry_out(Work(0)) == "done"
    assert told == []


async def test_what_finds_no_room_is_done_again_and_both_ends_are_told() -> None:
    room, told = room_of()
    assert await room.carry_out(Work(2)) == "done"
    assert [each.partition(":")[0] for each in told] == ["began", "ended"]
    assert "LimitNOFILE" in told[0]
    assert room.waiting_for is None


async def test_other_errors_are_not_waited_out() -> None:
    room, told = room_of()

    async def fail() -> None:
        raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        await room.carry_out(fail)
    assert told == []


async def test_a_wait_ends_when_its_owner_ends() -> None:
    room, _ = room_of()
    waiting = asyncio.create_task(room.carry_out(Work(1_000)))
    while room.waiting_for is None:
        await asyncio.sleep(0)
    room.end()
    with pytest.raises(WaitEnded, match="LimitNOFILE"):
        await waiting
    with pytest.raises(WaitEnded):
        await room.carry_out(Work(1))
    assert await room.carry_out(Work(0)) == "done"


def test_every_want_of_room_has_a_remedy() -> None:
    for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT):
        assert "see to descriptors" not in describe(no_room(number))


async def test_a_file_whose_thread_cannot_start_was_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    files = SystemFiles()
    await files.list_names(str(tmp_path))  # Its own threads run.
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(NoRoom, match="can't start new thread"):
        await files.create(str(tmp_path / "log"))
    with pytest.raises(OSError, match="can't start new thread"):
        await SystemFiles().list_names(str(tmp_path))
    monkeypatch.setattr(threading.Thread, "start", start)
    file = await files.create(str(tmp_path / "log"))
    await file.append_and_sync([b"all is well"])
    await file.close()
    files.stop()


@pytest.fixture
def full_soon(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, "256k") as root:
        yield root


async def test_a_file_on_a_full_file_system_goes_on_when_there_is_room(full_soon: Path) -> None:
    files = SystemFiles()
    ballast = full_soon / "ballast"
    path = str(full_soon / "log")
    length = 0
    file = MendedFile(files, path, await files.create(path), lambda: length)
    await file.append_and_sync([b"first "])
    length = 6
    ballast.write_bytes(b"x" * 200_000)
    with pytest.raises(NoRoom):
        await file.append_and_sync([b"y" * 100_000])
    with pytest.raises(NoRoom):
        await file.append_and_sync([b"y" * 100_000])
    ballast.unlink()
    await file.append_and_sync([b"y" * 100_000])
    await file.close()
    assert await read_whole(files, path) == b"first " + b"y" * 100_000
    files.stop()
