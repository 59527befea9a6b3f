"""The switches of the simulated disk: failures, crashes at a chosen operation, dead handles."""

import asyncio
import errno
from collections.abc import Awaitable, Callable

import pytest

from pydanube.runtime.files import Files
from pydanube.runtime.randomness import Randomness, SeededRandomness
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.disk_faults import Operation, SimulatedCrash
from pydanube.runtime.simulation.loop import run_simulated

Scenario = Callable[[SimulatedDisk], Awaitable[None]]


def on_a_disk(scenario: Scenario, seed: int | str = 1, **options: int) -> None:
    async def main(randomness: Randomness) -> None:
        disk = SimulatedDisk(randomness, **options)
        await disk.make_directory("/data")
        await scenario(disk)

    run_simulated(main, seed)


async def write_two_files(files: Files) -> None:
    first = await files.create("/data/first")
    await first.append([b"one"])
    await first.append_and_sync([b"two"])
    await files.rename("/data/first", "/data/second")
    await files.sync_directory("/data")
    await files.truncate("/data/second", 1)
    await files.remove("/data/second")


WORK = [
    ("create", "/data/first"),
    ("append", "/data/first"),
    ("append", "/data/first"),
    ("sync", "/data/first"),
    ("rename", "/data/second"),
    ("sync_directory", "/data"),
    ("truncate", "/data/second"),
    ("sync", "/data/second"),
    ("remove", "/data/second"),
]


def test_every_changing_operation_is_counted_and_logged() -> None:
    async def scenario(disk: SimulatedDisk) -> None:
        before = disk.operations
        await write_two_files(disk)
        await disk.list_names("/data")
        log = disk.operation_log[before:]
        assert [(operation.name, operation.path) for operation in log] == WORK
        assert [operation.number for operation in log] == list(
            range(before + 1, disk.operations + 1)
        )

    on_a_disk(scenario)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(len(WORK)))
def test_the_machine_stops_exactly_at_the_operation_asked_for(step: int, after: bool) -> None:
    async def scenario(disk: SimulatedDisk) -> None:
        number = disk.operations + 1 + step
        disk.crash_at(number, after=after)
        with pytest.raises(SimulatedCrash, match="after" if after else "before"):
            await write_two_files(disk)
        assert disk.stopped
        await disk.wait_until_stopped()
        assert disk.operations == number
        assert disk.operation_log[-1] == Operation(number, *WORK[step])
        disk.kill()
        assert not disk.stopped
        assert await state(disk) == STATES[step + after]

    on_a_disk(scenario)


async def state(disk: SimulatedDisk) -> tuple[str, bytes] | None:
    names = await disk.list_names("/data")
    return (names[0], disk.contents(f"/data/{names[0]}")) if names else None


STATES = [
    None,
    ("first", b""),
    ("first", b"one"),
    ("first", b"onetwo"),
    ("first", b"onetwo"),
    ("second", b"onetwo"),
    ("second", b"onetwo"),
    ("second", b"o"),
    ("second", b"o"),
    None,
]


def test_a_stopped_machine_does_nothing_more_until_it_is_started_again() -> None:
    async def scenario(disk: SimulatedDisk) -> None:
        file = await disk.create("/data/log")
        disk.crash_at(disk.operations + 1)
        with pytest.raises(SimulatedCrash):
            await file.append([b"x"])
        for call in (
            disk.exists("/data"),
            disk.read("/data/log", 0, 1),
            disk.create("/data/other"),
            disk.lock("/data/lock"),
            disk.make_directory("/data/a"),
        ):
            with pytest.raises(SimulatedCrash):
                await call
        await file.close()
        disk.crash(SeededRandomness(1))
        assert await disk.exists("/data")

    on_a_disk(scenario)


def test_an_operation_that_is_past_cannot_be_the_one_to_stop_at() -> None:
    async def scenario(disk: SimulatedDisk) -> None:
        with pytest.raises(ValueError, match="past"):
            disk.crash_at(disk.operations)

    on_a_disk(scenario)


def test_handles_locks_and_mounts_of_a_crashed_incarnation_are_dead() -> None:
    async def scenario(disk: SimulatedDisk) -> None:
        old = disk.mount()
        file = await old.create("/data/log")
        await file.append_and_sync([b"x"])
        await disk.sync_directory("/data")
        lock = await old.lock("/data/lock")
        assert lock is not None
        await disk.sync_directory("/data")
        under_way = asyncio.create_task(file.append([b"late"]))
        await asyncio.sleep(0)
        disk.crash(SeededRandomness(1))
        for call in (under_way, file.append([b"y"]), old.exists("/data"), old.create("/data/z")):
            with pytest.raises(SimulatedCrash):
                await call
        assert disk.contents("/data/log") == b"x"
        successor = await disk.mount().lock("/data/lock")
        assert successor is not None
        await lock.release()
        assert await disk.lock("/data/lock") is None
        await file.close()

    on_a_disk(scenario)


def test_a_cancelled_operation_has_happened_when_the_cancellation_arrives() -> None:
    async def scenario(disk: SimulatedDisk) -> None:
        disk.slow("create", 10)
        task = asyncio.create_task(disk.create("/data/log"))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.get_running_loop().time() > 10
        assert await disk.list_names("/data") == ["log"]

    on_a_disk(scenario)


def test_closing_waits_for_an_append_whose_waiter_is_gone() -> None:
    async def scenario(disk: SimulatedDisk) -> None:
        file = await disk.create("/data/log")
        disk.slow("append", 10)
        task = asyncio.create_task(file.append([b"x"]))
        await asyncio.sleep(1)
        task.cancel()
        await file.close()
        assert disk.contents("/data/log") == b"x"

    on_a_disk(scenario)


def test_a_planned_failure_hits_one_operation_of_that_kind_and_place() -> None:
    async def scenario(disk: SimulatedDisk) -> None:
        await disk.make_directory("/data/journal")
        disk.fail_next("create", OSError(errno.EIO, "broken"), under="/data/journal")
        await disk.create("/data/elsewhere")
        with pytest.raises(OSError, match="broken"):
            await disk.create("/data/journal/log")
        assert await disk.list_names("/data/journal") == []
        await disk.create("/data/journal/log")
        disk.fail_next("read", OSError(errno.EIO, "broken"))
        with pytest.raises(OSError, match="broken"):
            await disk.read("/data/elsewhere", 0, 1)
        assert await disk.read("/data/elsewhere", 0, 1) == b""

    on_a_disk(scenario)


def test_planned_failures_go_with_the_incarnation_they_were_planned_for() -> None:
    async def scenario(disk: SimulatedDisk) -> None:
        disk.fail_next("create", OSError(errno.EIO, "broken"))
        disk.kill()
        await disk.create("/data/log")

    on_a_disk(scenario)


def test_a_failed_append_leaves_any_part_of_it_and_the_file_takes_no_more() -> None:
    found = set()

    async def scenario(disk: SimulatedDisk) -> None:
        file = await disk.create("/data/log")
        disk.fail_next("append", OSError(errno.EIO, "broken"))
        with pytest.raises(OSError, match="broken"):
            await file.append([b"abc"])
        for call in (file.append([b"x"]), file.sync(), file.append_and_sync([b"x"])):
            with pytest.raises(OSError, match="an earlier call failed"):
                await call
        found.add(disk.contents("/data/log"))

    for seed in range(40):
        on_a_disk(scenario, seed)
    assert found == {b"", b"a", b"ab", b"abc"}


def test_a_failed_sync_leaves_the_file_unsynced() -> None:
    found = set()

    async def scenario(disk: SimulatedDisk) -> None:
        file = await disk.create("/data/log")
        await disk.sync_directory("/data")
        disk.fail_next("sync", OSError(errno.EIO, "broken"))
        with pytest.raises(OSError, match="broken"):
            await file.append_and_sync([b"abc"])
        assert disk.contents("/data/log") == b"abc"
        found.update(
            disk.after_crash(SeededRandomness(seed)).contents("/data/log") for seed in range(40)
        )

    on_a_disk(scenario)
    assert {b"", b"abc", b"\0\0\0"} <= found


def test_a_full_disk_takes_what_fits_at_most_and_says_so() -> None:
    found = set()

    async def scenario(disk: SimulatedDisk) -> None:
        other = await disk.create("/data/other")
        await other.append([b"x" * 90])
        assert await disk.free_bytes("/data") == 10
        file = await disk.create("/data/log")
        with pytest.raises(OSError, match="No space left") as caught:
            await file.append([b"y" * 11])
        assert caught.value.errno == errno.ENOSPC
        found.add(len(disk.contents("/data/log")))
        await disk.remove("/data/other")
        again = await disk.open_append("/data/log")
        await again.append_and_sync([b"z" * 80])
        disk.capacity_bytes = None
        await again.append_and_sync([b"z" * 1_000])

    for seed in range(60):
        on_a_disk(scenario, seed, capacity_bytes=100)
    assert found == set(range(11))


def test_a_flipped_bit_is_read_and_stays_after_a_crash() -> None:
    async def scenario(disk: SimulatedDisk) -> None:
        file = await disk.create("/data/log")
        await file.append_and_sync([b"\x00\x00\x00"])
        await disk.sync_directory("/data")
        disk.flip_bit("/data/log", 1, 7)
        assert await disk.read("/data/log", 0, 3) == b"\x00\x80\x00"
        disk.crash(SeededRandomness(1))
        assert await disk.read("/data/log", 0, 3) == b"\x00\x80\x00"
        with pytest.raises(ValueError, match="not within"):
            disk.flip_bit("/data/log", 3, 0)
        disk.replace_contents("/data/log", b"anything")
        assert await disk.read("/data/log", 0, 9) == b"anything"

    on_a_disk(scenario)


def test_slow_operations_take_virtual_time() -> None:
    async def scenario(disk: SimulatedDisk) -> None:
        loop = asyncio.get_running_loop()
        file = await disk.create("/data/log")
        disk.slow("sync", 30)
        started = loop.time()
        await file.append([b"x"])
        assert loop.time() - started < 1
        await file.append_and_sync([b"x"])
        assert 30 < loop.time() - started < 31
        disk.slow("sync", 0)
        await file.sync()
        assert loop.time() - started < 31

    on_a_disk(scenario)


def test_every_operation_lets_others_run_and_the_seed_decides_who_is_first() -> None:
    winners = set()

    async def scenario(disk: SimulatedDisk) -> None:
        finished: list[str] = []

        async def create(name: str) -> None:
            await disk.create(f"/data/{name}")
            finished.append(name)

        await asyncio.gather(create("a"), create("b"))
        winners.add(finished[0])

    for seed in range(20):
        on_a_disk(scenario, seed)
    assert winners == {"a", "b"}


def test_a_crash_while_a_sync_is_under_way_may_lose_the_bytes() -> None:
    found: list[bytes] = []

    async def scenario(disk: SimulatedDisk) -> None:
        file = await disk.create("/data/log")
        await disk.sync_directory("/data")
        disk.slow("sync", 10)
        syncing = asyncio.create_task(file.append_and_sync([b"abc"]))
        await asyncio.sleep(5)
        disk.crash(SeededRandomness(len(found)))
        with pytest.raises(SimulatedCrash):
            await syncing
        found.append(disk.contents("/data/log"))

    for seed in range(30):
        on_a_disk(scenario, seed)
    assert {b"", b"abc"} < set(found)


def test_writes_hang_until_they_are_let_go() -> None:
    async def scenario(disk: SimulatedDisk) -> None:
        hangs, other = await disk.create("/data/hangs"), await disk.create("/data/other")
        disk.hang(under="/data/hangs")
        writing = asyncio.create_task(hangs.append_and_sync([b"late"]))
        await other.append_and_sync([b"in time"])
        await asyncio.sleep(100)
        assert not writing.done()
        assert disk.contents("/data/hangs") == b""
        disk.let_go()
        await writing
        assert disk.contents("/data/hangs") == b"late"
        await hangs.append_and_sync([b"r"])

    on_a_disk(scenario)


def test_a_write_that_hangs_ends_with_its_process_and_writes_nothing() -> None:
    async def scenario(disk: SimulatedDisk) -> None:
        file = await disk.mount().create("/data/hangs")
        disk.hang()
        writing = asyncio.create_task(file.append([b"never"]))
        await asyncio.sleep(1)
        disk.kill()
        with pytest.raises(SimulatedCrash):
            await writing
        assert disk.contents("/data/hangs") == b""
        await (await disk.open_append("/data/hangs")).append_and_sync([b"anew"])
        assert disk.contents("/data/hangs") == b"anew"

    on_a_disk(scenario)
