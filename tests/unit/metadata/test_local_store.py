import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pydanube.errors import (
    Conflict,
    Corruption,
    InvalidRequest,
    NotSupported,
    Overloaded,
    Unavailable,
)
from pydanube.metadata import local_store
from pydanube.metadata.local_format import log_name
from pydanube.metadata.local_store import LocalMetadataStore
from pydanube.runtime.files import write_atomically
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.runtime.tasks import TaskScope
from pydanube.storage.frames import encode_frame

DIRECTORY = "/data/metadata"
SNAPSHOT = f"{DIRECTORY}/metadata.snapshot"


class World:
    def __init__(self, randomness: Randomness) -> None:
        self.disk = SimulatedDisk(randomness)
        self.clock = SimulatedClock()
        self.tasks = TaskScope(lambda name, failure: None)

    async def open(self, log_bytes_max: int = 1_000_000) -> LocalMetadataStore:
        return await LocalMetadataStore.open(
            self.disk.mount(), self.clock, self.tasks, DIRECTORY, log_bytes_max=log_bytes_max
        )

    async def names(self) -> list[str]:
        return await self.disk.list_names(DIRECTORY)

    async def logs(self) -> list[str]:
        return [f"{DIRECTORY}/{name}" for name in await self.names() if name.endswith(".log")]


def in_a_world(body: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    async def run(randomness: Randomness) -> None:
        world = World(randomness)
        await body(world)
        await world.tasks.close()

    def test() -> None:
        run_simulated(run, body.__name__)

    test.__name__ = body.__name__
    return test


@in_a_world
async def test_writes_that_wait_together_share_one_sync(world: World):
    store = await world.open()
    operations = world.disk.operations
    await store.put("/first", b"")
    assert world.disk.operations == operations + 2  # One append and one sync.
    await asyncio.gather(*(store.put(f"/{number}", b"") for number in range(500)))
    assert world.disk.operations <= operations + 6
    await store.close()


@in_a_world
async def test_nothing_shows_before_it_is_durable(world: World):
    store = await world.open()
    watch = store.watch("/", 0)
    world.disk.slow("sync", 5.0)
    write = asyncio.create_task(store.put("/a", b"1"))
    seen = asyncio.create_task(anext(watch))
    await world.clock.sleep(4)
    assert (store.get("/a"), store.revision, write.done(), seen.done()) == (None, 0, False, False)
    await write
    assert (await seen).key == "/a"
    await store.close()


@in_a_world
async def test_a_cancelled_writer_disturbs_nobody(world: World):
    store = await world.open()
    writes = [asyncio.create_task(store.put(f"/{number}", b"")) for number in range(3)]
    await asyncio.sleep(0)
    writes[1].cancel()
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert (results[0], results[2]) == (1, 3)
    assert isinstance(results[1], asyncio.CancelledError)
    await store.close()


@in_a_world
async def test_the_log_starts_anew_when_it_is_full_and_old_ones_go(world: World):
    store = await world.open(log_bytes_max=2_000)
    for number in range(200):
        await store.put("/a", b"%d" % number)
    logs = await world.logs()
    assert len(logs) == 1
    assert logs != [f"{DIRECTORY}/{log_name(0)}"]
    assert await world.disk.size(logs[0]) <= 2_100
    assert await world.names() == [
        logs[0].removeprefix(f"{DIRECTORY}/"),
        "metadata.lock",
        "metadata.snapshot",
    ]
    await store.close()


@in_a_world
async def test_a_full_disk_does_not_keep_a_store_from_closing(world: World):
    store = await world.open()
    await store.put("/a", b"1")
    world.disk.capacity_bytes = 0
    await store.close()
    world.disk.capacity_bytes = None
    again = await world.open()
    assert again.get("/a") is not None
    await again.close()


@in_a_world
async def test_opening_and_closing_without_a_write_changes_no_file(world: World):
    await (await world.open()).close()
    before = world.disk.contents(SNAPSHOT), await world.logs()
    await (await world.open()).close()
    assert (world.disk.contents(SNAPSHOT), await world.logs()) == before


@in_a_world
async def test_a_torn_tail_is_left_behind(world: World):
    store = await world.open()
    await store.put("/a", b"1")
    (log,) = await world.logs()
    whole = world.disk.contents(log)
    await store.put("/b", b"2")
    torn = world.disk.contents(log)[:-1]
    for tail in (torn, whole + b"\x00" * 700, whole + bytes(range(256))):
        world.disk.kill()
        for name in await world.logs():
            await world.disk.remove(name)
        file = await world.disk.create(log)
        await file.append_and_sync([tail])
        await write_atomically(world.disk, DIRECTORY, "metadata.snapshot", EMPTY)
        store = await world.open()
        assert [entry.key for entry in store.list("/")] == ["/a"]
        assert await store.put("/c", b"3") == 2
        await store.close()


@in_a_world
async def test_a_torn_first_group_is_left_behind(world: World):
    await (await world.open()).close()
    (log,) = await world.logs()
    for tail in (b"\x00" * 100, b"DNK1", b"x"):
        world.disk.replace_contents(log, tail)
        await (await world.open()).close()
        assert world.disk.contents(log) == b""


@in_a_world
async def test_damage_is_refused_and_nothing_is_changed(world: World):
    store = await world.open()
    await store.put("/a", b"1")
    await store.put("/b", b"2")
    await store.close()
    (log,) = await world.logs()
    for path in (log, SNAPSHOT):
        world.disk.flip_bit(path, 40, 3)
        before = {name: world.disk.contents(f"{DIRECTORY}/{name}") for name in await world.names()}
        for _ in range(2):
            with pytest.raises(Corruption, match=path):
                await world.open()
        assert before == {
            name: world.disk.contents(f"{DIRECTORY}/{name}") for name in await world.names()
        }
        world.disk.flip_bit(path, 40, 3)
    store = await world.open()
    assert len(store.list("/")) == 2
    await store.close()


@in_a_world
async def test_the_operator_may_cut_a_damaged_log_where_the_error_says(world: World):
    store = await world.open()
    await store.put("/a", b"1")
    (log,) = await world.logs()
    good = len(world.disk.contents(log))
    await store.put("/b", b"2")
    await store.close()
    world.disk.flip_bit(log, good + 40, 0)
    with pytest.raises(Corruption, match=f"cut the file to {good} bytes"):
        await world.open()
    await world.disk.truncate(log, good)
    store = await world.open()
    assert [entry.key for entry in store.list("/")] == ["/a"]
    await store.close()


@in_a_world
async def test_a_log_without_its_snapshot_is_refused(world: World):
    store = await world.open()
    await store.put("/a", b"1")
    await store.close()
    await world.disk.remove(SNAPSHOT)
    with pytest.raises(Corruption, match=r"no metadata\.snapshot"):
        await world.open()


@in_a_world
async def test_a_snapshot_older_than_its_log_is_refused(world: World):
    store = await world.open()
    old = world.disk.contents(SNAPSHOT)
    await store.put("/a", b"1")
    await store.close()
    await (await world.open()).close()
    world.disk.replace_contents(SNAPSHOT, old)
    with pytest.raises(Corruption, match="commands between are missing"):
        await world.open()


@in_a_world
async def test_a_directory_of_somebody_else_is_refused_and_left_alone(world: World):
    await world.disk.make_directory(DIRECTORY)
    await write_atomically(world.disk, DIRECTORY, "letters.txt", b"dear")
    with pytest.raises(InvalidRequest, match=r"letters\.txt"):
        await world.open()
    assert await world.names() == ["letters.txt"]


@in_a_world
async def test_a_directory_of_a_newer_version_is_refused(world: World):
    await (await world.open()).close()
    frame = b"".join(encode_frame(3, 0, 0, [b"of the future"], version=2))
    world.disk.replace_contents(SNAPSHOT, frame)
    with pytest.raises(NotSupported, match="newer PyDanube"):
        await world.open()


@in_a_world
async def test_a_directory_has_one_user_at_a_time(world: World):
    store = await world.open()
    with pytest.raises(Conflict, match="in use by another process"):
        await world.open()
    await store.close()
    await (await world.open()).close()


@in_a_world
async def test_a_failed_opening_gives_the_lock_back(world: World):
    await world.disk.make_directory(DIRECTORY)
    world.disk.fail_next("rename", OSError(5, "the disk is ill"))
    with pytest.raises(Unavailable, match="the disk is ill"):
        await world.open()
    await (await world.open()).close()


@in_a_world
async def test_more_waiting_writes_than_allowed_are_refused_at_once(world: World):
    store = await world.open()
    world.disk.slow("sync", 1.0)
    allowed = local_store.WAITING_COMMANDS_MAX
    writes = [asyncio.create_task(store.next_id("/n")) for _ in range(allowed + 7)]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert sum(isinstance(result, Overloaded) for result in results) == 7
    assert await store.next_id("/n") == allowed + 1
    await store.close()


@in_a_world
async def test_cancelling_its_tasks_stops_the_store_and_answers_everybody(world: World):
    store = await world.open()
    write = asyncio.create_task(store.put("/a", b""))
    watch = store.watch("/", 0)
    await asyncio.sleep(0)
    await world.tasks.close()
    for attempt in (write, store.put("/b", b""), anext(watch)):
        with pytest.raises(Unavailable, match="its tasks were cancelled"):
            await attempt
    await store.close()


@in_a_world
async def test_a_store_whose_writer_never_began_can_be_closed(world: World):
    await world.tasks.close()
    store = await world.open()
    write = asyncio.create_task(store.put("/a", b""))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(Unavailable):
        await write


@in_a_world
async def test_changes_found_in_the_log_can_be_watched_after_opening(world: World):
    store = await world.open()
    for number in range(3):
        await store.put("/a", b"%d" % number)
    await store.close()
    store = await world.open()
    watch = store.watch("/", 1)
    assert [(await anext(watch)).value for _ in range(2)] == [b"1", b"2"]
    await store.close()


@pytest.mark.parametrize(
    ("wall_clock_moved_ms", "lives_seconds"),
    [(4_000, 6.0), (60_000, 0.0), (-3_600_000, 10.0)],
    ids=["within its time", "after its time", "with a clock set back"],
)
def test_a_lease_lives_through_a_reboot_by_the_wall_clock(
    wall_clock_moved_ms: int, lives_seconds: float
):
    disk = SimulatedDisk()

    async def open_store(clock: SimulatedClock) -> LocalMetadataStore:
        tasks = TaskScope(lambda name, failure: None)
        return await LocalMetadataStore.open(disk.mount(), clock, tasks, DIRECTORY)

    async def before(_: Randomness) -> None:
        clock = SimulatedClock()
        await clock.sleep(100)
        store = await open_store(clock)
        await store.put("/a", b"", lease=await store.grant_lease(10_000))

    async def after(_: Randomness) -> None:
        # A new loop: monotonic time begins anew, as it does when a machine boots.
        store = await open_store(SimulatedClock(skew_ms=100_000 + wall_clock_moved_ms))
        opened = asyncio.get_running_loop().time()
        async with asyncio.timeout(1_000):
            await anext(store.watch("/", 1))
        lived = asyncio.get_running_loop().time() - opened
        assert lived == pytest.approx(lives_seconds, abs=0.05)

    run_simulated(before, 0)
    disk.kill()
    run_simulated(after, 0)


def _empty_snapshot() -> bytes:
    async def main(randomness: Randomness) -> bytes:
        world = World(randomness)
        await (await world.open()).close()
        return world.disk.contents(SNAPSHOT)

    return run_simulated(main, 0)


EMPTY = _empty_snapshot()
