"""What a power loss may do to a simulated disk, and what it must never do."""

from collections.abc import Awaitable, Callable

import pytest

from pydanube.runtime.files import write_atomically
from pydanube.runtime.randomness import Randomness, SeededRandomness
from pydanube.runtime.simulation.contents import SECTOR_BYTES
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import run_simulated

SEEDS = range(60)
SYNCED = bytes(range(1, 251)) * 4
UNSYNCED = bytes(range(1, 251)) * 20


def after_crashes(prepare: Callable[[SimulatedDisk], Awaitable[None]]) -> list[SimulatedDisk]:
    """Return the disks that may be found when the power fails after `prepare`, one per seed."""

    async def main(randomness: Randomness) -> list[SimulatedDisk]:
        disk = SimulatedDisk(randomness)
        await disk.make_directory("/data")
        await prepare(disk)
        return [disk.after_crash(SeededRandomness(seed)) for seed in SEEDS]

    return run_simulated(main, "laws")


def names(disk: SimulatedDisk, directory: str = "/data") -> tuple[str, ...]:
    async def main(randomness: Randomness) -> list[str]:
        return await disk.list_names(directory)

    return tuple(run_simulated(main, "look"))


async def durable_file(disk: SimulatedDisk, path: str, data: bytes) -> None:
    file = await disk.create(path)
    await file.append_and_sync([data])
    await file.close()
    await disk.sync_directory("/data")


async def unsynced_tail(disk: SimulatedDisk) -> None:
    file = await disk.create("/data/log")
    await file.append([SYNCED[:100], SYNCED[100:]])
    await file.sync()
    await disk.sync_directory("/data")
    await file.append([UNSYNCED])


def test_synced_bytes_in_a_synced_directory_survive_every_crash() -> None:
    for disk in after_crashes(unsynced_tail):
        assert disk.contents("/data/log").startswith(SYNCED)


def test_unsynced_bytes_are_lost_kept_cut_and_torn() -> None:
    tails = [disk.contents("/data/log")[len(SYNCED) :] for disk in after_crashes(unsynced_tail)]
    kinds = {_kind(tail) for tail in tails}
    assert kinds == {"lost", "kept", "cut", "torn"}


def _kind(tail: bytes) -> str:
    if not tail:
        return "lost"
    if tail == UNSYNCED:
        return "kept"
    return "cut" if UNSYNCED.startswith(tail) else "torn"


def test_torn_bytes_are_whole_sectors_and_come_in_any_order() -> None:
    later_without_earlier = 0
    for disk in after_crashes(unsynced_tail):
        found = disk.contents("/data/log")
        if _kind(found[len(SYNCED) :]) != "torn":
            continue
        whole = SYNCED + UNSYNCED
        assert len(found) == len(whole)
        kept = []
        for start in range(0, len(whole), SECTOR_BYTES):
            first = max(start, len(SYNCED))
            last = start + SECTOR_BYTES
            if last > len(SYNCED):
                piece = found[first:last]
                assert piece in (whole[first:last], bytes(len(piece)))
                kept.append(any(piece))
        later_without_earlier += sorted(kept, reverse=True) != kept
    assert later_without_earlier


def test_a_created_file_may_vanish_until_its_directory_is_synced() -> None:
    async def create(disk: SimulatedDisk) -> None:
        file = await disk.create("/data/log")
        await file.append_and_sync([SYNCED])

    assert {names(disk) for disk in after_crashes(create)} == {(), ("log",)}

    async def create_and_sync(disk: SimulatedDisk) -> None:
        await create(disk)
        await disk.sync_directory("/data")

    disks = after_crashes(create_and_sync)
    assert {disk.contents("/data/log") for disk in disks} == {SYNCED}


def test_a_rename_may_be_undone_until_the_directory_is_synced() -> None:
    async def rename(disk: SimulatedDisk) -> None:
        await durable_file(disk, "/data/new.tmp", b"new")
        await durable_file(disk, "/data/state", b"old")
        await disk.rename("/data/new.tmp", "/data/state")

    outcomes = {(names(disk), disk.contents("/data/state")) for disk in after_crashes(rename)}
    assert outcomes == {(("new.tmp", "state"), b"old"), (("state",), b"new")}

    async def rename_and_sync(disk: SimulatedDisk) -> None:
        await rename(disk)
        await disk.sync_directory("/data")

    outcomes = {
        (names(disk), disk.contents("/data/state")) for disk in after_crashes(rename_and_sync)
    }
    assert outcomes == {(("state",), b"new")}


def test_a_removed_file_may_come_back_until_the_directory_is_synced() -> None:
    async def remove(disk: SimulatedDisk) -> None:
        await durable_file(disk, "/data/log", SYNCED)
        await disk.remove("/data/log")

    assert {names(disk) for disk in after_crashes(remove)} == {(), ("log",)}


def test_changes_of_different_names_survive_independently() -> None:
    async def create_three(disk: SimulatedDisk) -> None:
        for name in ("a", "b", "c"):
            await disk.create(f"/data/{name}")

    outcomes = {names(disk) for disk in after_crashes(create_three)}
    assert ("c",) in outcomes
    assert ("a",) in outcomes
    assert ("a", "b", "c") in outcomes
    assert () in outcomes


def test_a_change_never_survives_an_earlier_one_of_the_same_name_that_is_lost() -> None:
    async def replace(disk: SimulatedDisk) -> None:
        await durable_file(disk, "/data/log", b"first")
        await disk.remove("/data/log")
        file = await disk.create("/data/log")
        await file.append_and_sync([b"second"])
        await disk.rename("/data/log", "/data/kept")

    allowed = {("log", b"first"), ("log", b"second"), ("kept", b"second"), None}
    found = set()
    for disk in after_crashes(replace):
        left = names(disk)
        assert len(left) <= 1
        found.add((left[0], disk.contents(f"/data/{left[0]}")) if left else None)
    assert found == allowed


def test_a_new_file_never_takes_the_name_of_one_whose_move_away_is_lost() -> None:
    async def rotate(disk: SimulatedDisk) -> None:
        await durable_file(disk, "/data/log", b"first")
        await disk.rename("/data/log", "/data/log.old")
        file = await disk.create("/data/log")
        await file.append_and_sync([b"second"])

    found = set()
    for disk in after_crashes(rotate):
        left = names(disk)
        found.add(tuple((name, disk.contents(f"/data/{name}")) for name in left))
    assert found == {
        (("log", b"first"),),
        (("log.old", b"first"),),
        (("log", b"second"), ("log.old", b"first")),
    }


def test_moving_to_another_directory_is_durable_once_the_target_is_synced() -> None:
    async def move(disk: SimulatedDisk) -> None:
        await disk.make_directory("/data/done")
        await durable_file(disk, "/data/part", SYNCED)
        await disk.rename("/data/part", "/data/done/part")
        # Syncing only where it came from does not settle where it is.
        await disk.sync_directory("/data")

    outcomes = {(names(disk, "/data"), names(disk, "/data/done")) for disk in after_crashes(move)}
    assert outcomes == {(("done", "part"), ()), (("done",), ("part",))}

    async def move_and_sync(disk: SimulatedDisk) -> None:
        await move(disk)
        await disk.sync_directory("/data/done")

    outcomes = {
        (names(disk, "/data"), names(disk, "/data/done")) for disk in after_crashes(move_and_sync)
    }
    assert outcomes == {(("done",), ("part",))}


def test_moving_there_and_back_leaves_the_file_where_the_last_sync_says() -> None:
    async def there_and_back(disk: SimulatedDisk) -> None:
        await disk.make_directory("/data/done")
        await durable_file(disk, "/data/part", SYNCED)
        await disk.rename("/data/part", "/data/done/part")
        await disk.rename("/data/done/part", "/data/part")
        await disk.sync_directory("/data")

    assert {names(disk) for disk in after_crashes(there_and_back)} == {("done", "part")}


def test_directories_made_are_durable_with_all_their_parents() -> None:
    async def make(disk: SimulatedDisk) -> None:
        await disk.make_directory("/data/a/b/c")

    assert {names(disk, "/data/a/b") for disk in after_crashes(make)} == {("c",)}


async def make_directory_and_be_killed(disk: SimulatedDisk) -> None:
    disk.crash_at(disk.operations + 2, after=True)
    with pytest.raises(OSError, match=r"stopped after .*make_directory /data/a"):
        await disk.make_directory("/data/a")
    disk.kill()


def test_what_is_in_a_directory_that_vanishes_vanishes_with_it() -> None:
    async def use_directory(disk: SimulatedDisk) -> None:
        await make_directory_and_be_killed(disk)
        await disk.create("/data/a/log")
        await disk.sync_directory("/data/a")

    outcomes = {(names(disk), names(disk, "/data/a")) for disk in after_crashes(use_directory)}
    assert outcomes == {((), ()), (("a",), ("log",))}


def test_making_a_directory_again_makes_durable_what_a_killed_process_left() -> None:
    async def make_again(disk: SimulatedDisk) -> None:
        await make_directory_and_be_killed(disk)
        await disk.make_directory("/data/a/b")

    assert {names(disk, "/data/a") for disk in after_crashes(make_again)} == {("b",)}


def test_writing_atomically_leaves_the_old_or_the_new_whatever_happens_when() -> None:
    async def main(randomness: Randomness) -> set[bytes]:
        first = SimulatedDisk(randomness)
        await first.make_directory("/data")
        await write_atomically(first, "/data", "state", b"old" * 500)
        found = set()
        begin = first.operations
        await write_atomically(first, "/data", "state", b"new" * 700)
        for number in range(begin + 1, first.operations + 1):
            for after in (False, True):
                disk = SimulatedDisk(randomness)
                await disk.make_directory("/data")
                await write_atomically(disk, "/data", "state", b"old" * 500)
                disk.crash_at(number, after=after)
                with pytest.raises(OSError, match="stopped"):
                    await write_atomically(disk, "/data", "state", b"new" * 700)
                for seed in SEEDS:
                    found.add(disk.after_crash(SeededRandomness(seed)).contents("/data/state"))
        return found

    assert run_simulated(main, "atomic") == {b"old" * 500, b"new" * 700}


def test_a_killed_process_leaves_everything_that_was_written() -> None:
    async def main(randomness: Randomness) -> None:
        disk = SimulatedDisk(randomness)
        await disk.make_directory("/data")
        await unsynced_tail(disk)
        disk.kill()
        assert disk.contents("/data/log") == SYNCED + UNSYNCED

    for seed in SEEDS:
        run_simulated(main, seed)


def test_bytes_on_which_a_sync_failed_may_be_lost_although_a_later_sync_succeeds() -> None:
    async def fail_and_sync_again(disk: SimulatedDisk) -> None:
        file = await disk.create("/data/log")
        await file.append_and_sync([SYNCED])
        await disk.sync_directory("/data")
        disk.fail_next("sync", OSError(5, "broken"))
        with pytest.raises(OSError, match="broken"):
            await file.append_and_sync([b"dropped"])
        again = await disk.open_append("/data/log")
        await again.append_and_sync([b"synced"])
        assert disk.contents("/data/log") == SYNCED + b"dropped" + b"synced"

    found = {disk.contents("/data/log") for disk in after_crashes(fail_and_sync_again)}
    assert found == {SYNCED + b"dropped" + b"synced", SYNCED + bytes(7) + b"synced"}


def test_a_cut_that_was_not_synced_may_be_undone() -> None:
    async def cut(disk: SimulatedDisk) -> None:
        await durable_file(disk, "/data/log", SYNCED)
        disk.crash_at(disk.operations + 1, after=True)
        with pytest.raises(OSError, match=r"stopped after .*truncate"):
            await disk.truncate("/data/log", 10)

    assert {disk.contents("/data/log") for disk in after_crashes(cut)} == {SYNCED, SYNCED[:10]}


def test_a_cut_that_returned_is_durable() -> None:
    async def cut(disk: SimulatedDisk) -> None:
        await durable_file(disk, "/data/log", SYNCED)
        await disk.truncate("/data/log", 10)

    assert {disk.contents("/data/log") for disk in after_crashes(cut)} == {SYNCED[:10]}


def test_what_a_crash_left_is_durable_from_then_on() -> None:
    async def crash(disk: SimulatedDisk) -> None:
        await unsynced_tail(disk)
        await disk.create("/data/other")
        disk.crash(SeededRandomness(3))

    disks = after_crashes(crash)
    assert len({(names(disk), disk.contents("/data/log")) for disk in disks}) == 1


def test_looking_at_what_a_crash_would_leave_changes_nothing() -> None:
    async def main(randomness: Randomness) -> None:
        disk = SimulatedDisk(randomness)
        await disk.make_directory("/data")
        await unsynced_tail(disk)
        for seed in SEEDS:
            copy = disk.after_crash(SeededRandomness(seed))
            copy.flip_bit("/data/log", 0, 0)
        assert disk.contents("/data/log") == SYNCED + UNSYNCED

    run_simulated(main, 1)
