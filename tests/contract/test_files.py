"""What every `Files` promises, over the machine's files and over the simulated disk."""

import asyncio
import errno
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pydanube.runtime.files import Files, NoRoom, read_whole, write_atomically
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.system_files import SystemFiles


@dataclass
class World:
    files: Files
    root: str

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    async def write(self, name: str, data: bytes) -> str:
        path = self.path(name)
        file = await self.files.create(path)
        await file.append([data])
        await file.close()
        return path


@pytest.fixture(params=["system", "simulated"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    if request.param == "system":
        system = SystemFiles()
        yield World(system, str(tmp_path))
        system.stop()
    else:
        disk = SimulatedDisk(delay_seconds=(0.0, 0.0))
        await disk.make_directory("/data")
        yield World(disk, "/data")


async def test_appended_parts_follow_each_other(world: World) -> None:
    file = await world.files.create(world.path("log"))
    await file.append([b"one ", b"", b"two "])
    await file.append_and_sync([b"three"])
    await file.append([])
    await file.sync()
    await file.close()
    assert await read_whole(world.files, world.path("log")) == b"one two three"


async def test_more_parts_than_one_system_call_takes_arrive_in_order(world: World) -> None:
    parts = [str(number).encode() for number in range(3_000)]
    file = await world.files.create(world.path("log"))
    await file.append_and_sync(parts)
    await file.close()
    assert await read_whole(world.files, world.path("log")) == b"".join(parts)


async def test_an_existing_file_is_appended_at_its_end(world: World) -> None:
    path = await world.write("log", b"first ")
    file = await world.files.open_append(path)
    await file.append([b"second"])
    await file.close()
    assert await read_whole(world.files, path) == b"first second"


async def test_creating_a_file_that_exists_is_refused_and_harms_nothing(world: World) -> None:
    path = await world.write("log", b"precious")
    with pytest.raises(FileExistsError):
        await world.files.create(path)
    assert await read_whole(world.files, path) == b"precious"


async def test_what_is_absent_is_reported_as_such(world: World) -> None:
    path = world.path("absent")
    assert not await world.files.exists(path)
    assert not await world.files.exists(f"{path}/below")
    assert await world.files.list_names(path) == []
    for call in (
        world.files.size(path),
        world.files.read(path, 0, 1),
        world.files.open_append(path),
        world.files.truncate(path, 0),
        world.files.rename(path, world.path("other")),
        world.files.remove(path),
        world.files.sync_directory(path),
        world.files.create(f"{path}/below"),
    ):
        with pytest.raises(FileNotFoundError):
            await call


async def test_a_file_is_no_directory(world: World) -> None:
    path = await world.write("file", b"x")
    with pytest.raises(NotADirectoryError):
        await world.files.list_names(path)
    with pytest.raises(NotADirectoryError):
        await world.files.create(f"{path}/below")
    with pytest.raises(FileExistsError):
        await world.files.make_directory(path)
    with pytest.raises(NotADirectoryError):
        await world.files.sync_directory(path)


async def test_reading_stops_at_the_end_of_the_file(world: World) -> None:
    path = await world.write("log", b"0123456789")
    assert await world.files.size(path) == 10
    assert await world.files.read(path, 3, 4) == b"3456"
    assert await world.files.read(path, 8, 1 << 40) == b"89"
    assert await world.files.read(path, 10, 5) == b""
    assert await world.files.read(path, 99, 5) == b""
    assert await world.files.read(path, 2, 0) == b""
    with pytest.raises(OSError, match="Invalid argument"):
        await world.files.read(path, -1, 5)


async def test_names_are_sorted_and_only_of_that_directory(world: World) -> None:
    await world.files.make_directory(world.path("b/below"))
    await world.write("c", b"")
    await world.write("a", b"")
    assert await world.files.list_names(world.root) == ["a", "b", "c"]
    assert await world.files.list_names(world.path("b")) == ["below"]


async def test_making_a_directory_again_is_harmless(world: World) -> None:
    for _ in range(2):
        await world.files.make_directory(world.path("a/b/c"))
    assert await world.files.exists(world.path("a/b/c"))
    await asyncio.gather(*(world.files.make_directory(world.path("x/y/z")) for _ in range(5)))
    assert await world.files.exists(world.path("x/y/z"))


async def test_truncating_cuts_and_never_extends(world: World) -> None:
    path = await world.write("log", b"0123456789")
    await world.files.truncate(path, 4)
    assert await read_whole(world.files, path) == b"0123"
    with pytest.raises(OSError, match="shorter"):
        await world.files.truncate(path, 5)
    assert await read_whole(world.files, path) == b"0123"


async def test_renaming_replaces_the_target(world: World) -> None:
    source = await world.write("source", b"new")
    target = await world.write("target", b"old")
    await world.files.rename(source, target)
    await world.files.sync_directory(world.root)
    assert await world.files.list_names(world.root) == ["target"]
    assert await read_whole(world.files, target) == b"new"


async def test_a_removed_file_is_gone_and_its_name_is_free(world: World) -> None:
    path = await world.write("log", b"old")
    await world.files.remove(path)
    assert not await world.files.exists(path)
    await world.write("log", b"new")
    assert await read_whole(world.files, path) == b"new"


async def test_an_open_file_follows_its_rename(world: World) -> None:
    file = await world.files.create(world.path("early"))
    await file.append([b"one "])
    await world.files.rename(world.path("early"), world.path("late"))
    await file.append([b"two"])
    await file.close()
    assert await read_whole(world.files, world.path("late")) == b"one two"


async def test_writing_atomically_replaces_what_was_there(world: World) -> None:
    await world.write("state.tmp", b"left behind by a crash")
    for text in (b"first", b"second, which is longer", b"3"):
        await write_atomically(world.files, world.root, "state", text)
        assert await read_whole(world.files, world.path("state")) == text
    assert await world.files.list_names(world.root) == ["state"]


async def test_free_space_is_known(world: World) -> None:
    assert await world.files.free_bytes(world.root) > 0


async def test_a_lock_is_held_by_one_until_released(world: World) -> None:
    path = world.path("lock")
    lock = await world.files.lock(path)
    assert lock is not None
    assert await world.files.lock(path) is None
    await lock.release()
    await lock.release()
    again = await world.files.lock(path)
    assert again is not None
    # The second release of the first holder must not have taken it from the second one.
    assert await world.files.lock(path) is None
    await again.release()


async def test_a_closed_file_takes_nothing_more(world: World) -> None:
    file = await world.files.create(world.path("log"))
    await file.close()
    await file.close()
    with pytest.raises(OSError, match="closed") as caught:
        await file.append([b"late"])
    assert caught.value.errno == errno.EBADF


async def test_appends_in_flight_keep_their_order_when_waiters_are_cancelled(world: World) -> None:
    file = await world.files.create(world.path("log"))
    parts = [f"{number};".encode() for number in range(200)]
    tasks = [asyncio.create_task(file.append([part])) for part in parts]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await file.append([b"end"])
    await file.close()
    assert all(task.cancelled() for task in tasks[::3])
    assert await read_whole(world.files, world.path("log")) == b"".join(parts) + b"end"


async def test_closing_waits_for_appends_whose_waiters_are_gone(world: World) -> None:
    file = await world.files.create(world.path("log"))
    task = asyncio.create_task(file.append_and_sync([b"x" * 1_000_000]))
    await asyncio.sleep(0)
    task.cancel()
    await file.close()
    assert await world.files.size(world.path("log")) == 1_000_000


async def test_a_cancelled_creation_has_ended_when_the_cancellation_arrives(world: World) -> None:
    task = asyncio.create_task(world.files.create(world.path("log")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    names = await world.files.list_names(world.root)
    for _ in range(20):
        await asyncio.sleep(0.0005)
    assert await world.files.list_names(world.root) == names


async def test_the_parts_given_are_written_although_the_list_changes(world: World) -> None:
    file = await world.files.create(world.path("log"))
    parts = [b"kept"]
    # The parts wait behind a long write, so that there is time to change them.
    tasks = [asyncio.create_task(file.append([bytes(20_000_000)]))]
    tasks += [asyncio.create_task(append(parts)) for append in (file.append, file.append_and_sync)]
    await asyncio.sleep(0)
    parts[0] = b"changed"
    await asyncio.gather(*tasks)
    await file.close()
    assert await world.files.read(world.path("log"), 20_000_000, 100) == b"keptkept"


async def test_reserved_space_makes_no_file_longer(world: World) -> None:
    file = await world.files.create(world.path("log"))
    await file.append_and_sync([b"one"])
    await file.reserve(1_000_000)
    assert await world.files.size(world.path("log")) == 3
    await file.append_and_sync([b"two"])
    await file.close()
    assert await read_whole(world.files, world.path("log")) == b"onetwo"


async def test_what_the_cache_forgets_is_still_in_the_file(world: World) -> None:
    path = await world.write("log", b"0123456789" * 10_000)
    await world.files.forget_cached(path, 0, 100_000)
    await world.files.forget_cached(path, 8_192, 10_000_000)
    assert await read_whole(world.files, path) == b"0123456789" * 10_000
    with pytest.raises(FileNotFoundError):
        await world.files.forget_cached(world.path("absent"), 0, 1)


@contextmanager
def without_descriptors(world: World) -> Iterator[None]:
    """Let nothing be opened; what is open stays."""
    if isinstance(world.files, SimulatedDisk):
        world.files.exhaust(errno.EMFILE)
        yield
        world.files.exhaust(None)
        return
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_what_cannot_be_opened_for_want_of_descriptors_changes_nothing(
    world: World,
) -> None:
    path = await world.write("log", b"first ")
    file = await world.files.open_append(path)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: world.files.create(world.path("new")),
        lambda: world.files.open_append(path),
        lambda: world.files.read(path, 0, 5),
        lambda: world.files.truncate(path, 1),
        lambda: world.files.sync_directory(world.root),
        lambda: world.files.list_names(world.root),
        lambda: world.files.lock(world.path("lock")),
    ]
    for call in calls:
        with without_descriptors(world), pytest.raises(NoRoom) as caught:
            await call()
        assert caught.value.errno == errno.EMFILE
    with without_descriptors(world):
        await file.append_and_sync([b"second"])
    await file.close()
    assert await world.files.list_names(world.root) == ["log"]
    assert await read_whole(world.files, path) == b"first second"


async def test_a_whole_file_that_finds_no_room_leaves_nothing_of_itself(world: World) -> None:
    await write_atomically(world.files, world.root, "state", b"old")
    with without_descriptors(world), pytest.raises(NoRoom):
        await write_atomically(world.files, world.root, "state", b"new")
    assert await world.files.list_names(world.root) == ["state"]
    assert await read_whole(world.files, world.path("state")) == b"old"
    await write_atomically(world.files, world.root, "state", b"new")
    assert await read_whole(world.files, world.path("state")) == b"new"
