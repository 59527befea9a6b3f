"""The single-node metadata on a disk that loses, tears and fails, at every step it takes."""

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count

import pytest
from typing_extensions import override

from pydanube.errors import Conflict, Corruption, Unavailable
from pydanube.metadata.local_format import SNAPSHOT_NAME
from pydanube.metadata.local_store import LocalMetadataStore
from pydanube.metadata.store import Change, Expect, Put
from pydanube.runtime.files import AppendFile, Files
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.disk_faults import OperationName
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.runtime.tasks import TaskScope

DIRECTORY = "/data/metadata"
WRITERS = 3
ROUNDS = 5


@dataclass
class Promises:
    """What the store has acknowledged, and what it was asked for without an answer."""

    acknowledged: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(WRITERS), 0))
    attempted: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(WRITERS), 0))
    revision: int = 0
    last_id: int = 0
    last_lease: int = 0

    def check(self, store: LocalMetadataStore) -> None:
        assert store.revision >= self.revision, "the revision went back"
        for writer in range(WRITERS):
            left, right = store.get(f"/{writer}/left"), store.get(f"/{writer}/right")
            assert (left is None) == (right is None), "half a transaction"
            if left is None or right is None:
                assert self.acknowledged[writer] == 0, "an acknowledged write is lost"
                continue
            assert (left.value, left.revision) == (right.value, right.revision), "half a write"
            number = int(left.value)
            assert number >= self.acknowledged[writer], "an acknowledged write is lost"
            assert number <= self.attempted[writer], "a write nobody asked for"


class World:
    """One machine, whose program writes and may be stopped anywhere."""

    def __init__(self, randomness: Randomness, careless: frozenset[str] = frozenset()) -> None:
        self.randomness = randomness
        self.disk = SimulatedDisk(randomness)
        self.clock = SimulatedClock()
        self.promises = Promises()
        self._careless = careless

    async def run_program(self) -> bool:
        """Open, write and close; tell whether it came to its end."""
        tasks = TaskScope(lambda name, failure: None)
        try:
            store = await self.open(tasks)
            self.promises.check(store)
            await asyncio.gather(*(self._write(store, writer) for writer in range(WRITERS)))
            await store.close()
        except (Unavailable, OSError):
            return False
        else:
            return True
        finally:
            await tasks.close()

    async def open(self, tasks: TaskScope) -> LocalMetadataStore:
        files = CarelessFiles(self.disk.mount(), self._careless)
        # So small that the log starts anew several times.
        return await LocalMetadataStore.open(
            files, self.clock, tasks, DIRECTORY, log_bytes_max=1_000
        )

    async def _write(self, store: LocalMetadataStore, writer: int) -> None:
        promises = self.promises
        for _ in range(ROUNDS):
            number = promises.attempted[writer] + 1
            entry = store.get(f"/{writer}/left")
            found = entry.revision if entry else 0
            promises.attempted[writer] = number
            operations = [Put(f"/{writer}/{side}", b"%d" % number) for side in ("left", "right")]
            revision = await store.transact([Expect(f"/{writer}/left", found)], operations)
            promises.acknowledged[writer] = number
            promises.revision = max(promises.revision, revision)
            given = await store.next_id("/ids")
            assert given > promises.last_id, "a number was given twice"
            promises.last_id = given
            if writer == 0:
                lease = await store.grant_lease(3_600_000)
                assert lease > promises.last_lease, "a lease number was given twice"
                promises.last_lease = lease
            with pytest.raises(Conflict):
                await store.compare_and_swap(f"/{writer}/left", revision + 1_000, b"never")


class CarelessFiles:
    """Files of which some calls do nothing, as a program with a bug would leave them out."""

    def __init__(self, files: Files, careless: frozenset[str]) -> None:
        self._files = files
        self._careless = careless

    def __getattr__(self, name: str):
        return getattr(self._files, name)

    async def create(self, path: str) -> AppendFile:
        file = await self._files.create(path)
        kind = "snapshot" if SNAPSHOT_NAME in path else "log"
        return UnsyncedFile(file) if f"sync {kind}" in self._careless else file

    async def sync_directory(self, path: str) -> None:
        if "sync directory" not in self._careless:
            await self._files.sync_directory(path)


class UnsyncedFile(AppendFile):
    def __init__(self, file: AppendFile) -> None:
        self._file = file

    @override
    async def append(self, parts: Sequence[bytes]) -> None:
        await self._file.append(parts)

    @override
    async def sync(self) -> None:
        pass

    @override
    async def append_and_sync(self, parts: Sequence[bytes]) -> None:
        await self._file.append(parts)

    @override
    async def close(self) -> None:
        await self._file.close()


@cache
def count_operations() -> int:
    async def main(randomness: Randomness) -> int:
        world = World(randomness)
        assert await world.run_program()
        assert await world.run_program()
        return world.disk.operations

    return run_simulated(main, "count")


def crash_everywhere(seeds: int, careless: frozenset[str] = frozenset()) -> int:
    """Stop the program at each of its operations, and look what the next ones find."""

    async def main(randomness: Randomness, number: int, after: bool) -> int:
        world = World(randomness, careless)
        world.disk.crash_at(number, after=after)
        for _ in range(2):
            if not await world.run_program():
                break
        crashes = 0
        # Recovery is a program like any other: it may be stopped as well.
        for _ in range(3):
            if randomness.below(4):
                world.disk.crash(randomness)
            else:
                world.disk.kill()
            crashes += 1
            world.disk.crash_at(world.disk.operations + 1 + randomness.below(12))
            await world.run_program()
        world.disk.crash(randomness)
        assert await world.run_program()
        return crashes + 1

    return sum(
        run_simulated(lambda r, n=number, a=after: main(r, n, a), f"{number} {after} {seed}")
        for number in range(1, count_operations() + 1)
        for after in (False, True)
        for seed in range(seeds)
    )


async def put_for_ever(store: LocalMetadataStore) -> None:
    for number in count():
        await store.put(f"/{number}", b"x" * 100)


async def read_for_ever(watch: AsyncIterator[Change]) -> None:
    async for _ in watch:
        pass


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_wherever_the_machine_stops():
    crashes = crash_everywhere(seeds=1)
    print(f"stopped at {count_operations()} operations, {crashes} crashes recovered from")


@pytest.mark.slow
@pytest.mark.parametrize("stopped_at", range(1, 7))
def test_a_process_killed_at_a_rename_may_be_followed_by_a_power_loss(stopped_at: int):
    async def find_rename(randomness: Randomness) -> int:
        world = World(randomness)
        await world.run_program()
        renames = [step.number for step in world.disk.operation_log if step.name == "rename"]
        return renames[0]

    async def main(randomness: Randomness, rename: int) -> None:
        world = World(randomness)
        world.disk.crash_at(rename, after=True)
        assert not await world.run_program()
        # The new name is visible, and not durable.
        world.disk.kill()
        world.disk.crash_at(world.disk.operations + stopped_at)
        assert not await world.run_program()
        world.disk.crash(randomness)
        assert await world.run_program()

    rename = run_simulated(find_rename, 0)
    for seed in range(40):
        run_simulated(lambda randomness: main(randomness, rename), f"{stopped_at} {seed}")


@pytest.mark.slow
@pytest.mark.parametrize("forgotten", ["sync log", "sync snapshot", "sync directory"])
def test_the_crashes_find_each_sync_that_is_forgotten(forgotten: str):
    with pytest.raises((AssertionError, Corruption)) as found:
        crash_everywhere(seeds=1, careless=frozenset({forgotten}))
    print(forgotten, "->", type(found.value).__name__, found.value)


@pytest.mark.parametrize("operation", ["append", "sync", "create", "rename", "sync_directory"])
def test_after_a_failed_operation_nothing_is_written_until_the_store_is_opened_again(
    operation: OperationName,
):
    async def main(randomness: Randomness) -> None:
        world = World(randomness)
        tasks = TaskScope(lambda name, failure: failures.append(failure))
        failures: list[BaseException] = []
        store = await world.open(tasks)
        await store.put("/a", b"1")
        watch = store.watch("/", 1)
        world.disk.fail_next(operation, OSError(errno.EIO, "the disk is ill"))
        with pytest.raises(Unavailable, match="the disk is ill"):
            await put_for_ever(store)
        operations = world.disk.operations
        with pytest.raises(Unavailable, match="the disk is ill"):
            await store.put("/c", b"")
        with pytest.raises(Unavailable, match="the disk is ill"):
            await read_for_ever(watch)
        assert "the disk is ill" in str(store.failure)
        await store.close()
        assert world.disk.operations == operations, "it wrote after the failure"
        await tasks.close()
        assert [str(failure) for failure in failures] == ["[Errno 5] the disk is ill"]
        tasks = TaskScope(lambda name, failure: None)
        store = await world.open(tasks)
        entry = store.get("/a")
        assert entry is not None
        assert entry.value == b"1"
        await store.put("/c", b"")
        await store.close()
        await tasks.close()

    run_simulated(main, operation)


@pytest.mark.parametrize("seed", range(20))
def test_what_was_once_read_is_never_taken_back_even_after_a_failed_sync(seed: int):
    async def main(randomness: Randomness) -> None:
        world = World(randomness)
        tasks = TaskScope(lambda name, failure: None)
        store = await world.open(tasks)
        await store.put("/a", b"1")
        world.disk.fail_next("sync", OSError(errno.EIO, "the disk is ill"))
        with pytest.raises(Unavailable):
            await store.put("/a", b"2")
        # The process restarts; the kernel still shows what will never reach the disk.
        world.disk.kill()
        store = await world.open(tasks)
        seen = store.get("/a")
        world.disk.crash(randomness)
        store = await world.open(tasks)
        assert store.get("/a") == seen
        await store.close()
        await tasks.close()

    run_simulated(main, seed)


def test_a_full_disk_lets_the_store_wait_and_room_lets_it_go_on():
    async def main(randomness: Randomness) -> None:
        world = World(randomness)
        tasks = TaskScope(lambda name, failure: None)
        store = await world.open(tasks)
        world.disk.capacity_bytes = 3_000
        filling = asyncio.create_task(put_for_ever(store))
        while store.waiting_for is None:
            await asyncio.sleep(0.01)
        with pytest.raises(Unavailable, match=r"No space left.*free space"):
            await store.put("/refused", b"")
        assert store.failure is None
        before = store.revision
        world.disk.capacity_bytes = 6_000
        while store.revision == before or store.waiting_for is None:
            await asyncio.sleep(0.01)
        written = store.revision
        await store.close()
        with pytest.raises(Unavailable, match="closed while it waited for room"):
            await filling
        world.disk.capacity_bytes = None
        store = await world.open(tasks)
        assert written > 0
        assert all(store.get(f"/{number}") for number in range(written))
        await store.close()
        await tasks.close()

    run_simulated(main, 0)
