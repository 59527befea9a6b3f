"""Giving damaged bytes up, on a disk that loses and tears, stopped at every step."""

import contextlib

import pytest

from pydanube.errors import Corruption
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.disk_faults import SimulatedCrash
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.storage.errors import JournalDamaged
from pydanube.storage.journal.quarantine import quarantine
from tests.support.journals import DIRECTORY, Broker, broker_on, rotating_at

MESSAGES = 12


async def damaged_disk(randomness: Randomness) -> SimulatedDisk:
    """A closed journal of three files, the first and the last of them damaged."""
    disk = SimulatedDisk(randomness)
    async with broker_on(disk, rotating_at(3000, journal_direct_bytes_min=1)) as broker:
        for number in range(MESSAGES):
            await broker.append(1, b"%d" % number)
    paths = await log_paths(disk)
    for path in (paths[0], paths[-1]):
        disk.flip_bit(path, 1500, 0)
    return disk


async def log_paths(disk: SimulatedDisk) -> list[str]:
    names = await disk.list_names(DIRECTORY)
    return [f"{DIRECTORY}/{name}" for name in names if name.endswith(".log")]


async def check(disk: SimulatedDisk, originals: dict[str, bytes]) -> None:
    async with broker_on(disk) as broker:
        found = await broker.read_all(1)
        assert found.items() < {n: b"%d" % n for n in range(MESSAGES)}.items()
        assert len(found) == MESSAGES - 2
        assert await broker.append(1, b"next") >= MESSAGES
    aside = f"{DIRECTORY}/quarantine"
    copies = [disk.contents(f"{aside}/{name}") for name in await disk.list_names(aside)]
    for path, original in originals.items():
        assert disk.contents(path)[: len(original)] == original or original in copies


async def operations(randomness: Randomness) -> list[str]:
    """What a quarantine does, in order."""
    disk = await damaged_disk(randomness)
    before = disk.operations
    await quarantine(disk, DIRECTORY, SimulatedClock())
    return [operation.name for operation in disk.operation_log[before:]]


def stop_and_repeat(number: int, *, after: bool, seed: int) -> None:
    """Stop a quarantine at one of its operations, cut the power, and run it again."""

    async def main(randomness: Randomness) -> None:
        disk = await damaged_disk(randomness)
        originals = {path: disk.contents(path) for path in await log_paths(disk)}
        disk.crash_at(disk.operations + number, after=after)
        with pytest.raises(SimulatedCrash):
            await quarantine(disk.mount(), DIRECTORY, SimulatedClock())
        disk.crash(randomness)
        if randomness.below(2):
            # The broker may be started in between: it refuses, or all damage is gone by now.
            with contextlib.suppress(JournalDamaged):
                await (await Broker.start(disk.mount())).stop()
        await quarantine(disk.mount(), DIRECTORY, SimulatedClock())
        await check(disk, originals)

    run_simulated(main, f"{number} {after} {seed}")


@pytest.mark.slow
def test_a_quarantine_that_is_stopped_anywhere_can_be_repeated() -> None:
    for number in range(1, len(run_simulated(operations, 0)) + 1):
        for after in (False, True):
            for seed in range(2):
                stop_and_repeat(number, after=after, seed=seed)


@pytest.mark.slow
def test_an_index_never_survives_the_file_it_speaks_of() -> None:
    rename = run_simulated(operations, 0).index("rename") + 1
    for seed in range(100):
        stop_and_repeat(rename, after=True, seed=seed)


def test_damage_that_an_index_hides_is_given_up_too() -> None:
    async def main(randomness: Randomness) -> None:
        disk = await damaged_disk(randomness)
        paths = await log_paths(disk)
        originals = {path: disk.contents(path) for path in paths}
        with pytest.raises(Corruption):
            await Broker.start(disk)
        report = await quarantine(disk, DIRECTORY, SimulatedClock())
        assert {part.file_name for part in report.damaged} == {
            path.rsplit("/", 1)[1] for path in (paths[0], paths[-1])
        }
        await check(disk, originals)

    run_simulated(main, 0)
