"""Whole brokers under faults, by seed.

DANUBE_SEEDS and DANUBE_SEED_START choose how many seeds and which; one seed alone is replayed by
the command that a failure prints.
"""

import os
import subprocess
import sys

import pytest

from tests.support.nemesis import Faults
from tests.support.world import World

SEEDS = int(os.environ.get("DANUBE_SEEDS", "400"))
FIRST = int(os.environ.get("DANUBE_SEED_START", "1"))
GROUP = 20

# A seed whose world has most of what there is: see that it stays so when drawing changes.
RICH_SEED = 5


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, GROUP))
def test_every_law_holds_for_seeds(first: int) -> None:
    faults: dict[str, int] = {}
    operations = boots = 0
    for seed in range(first, min(first + GROUP, FIRST + SEEDS)):
        outcome = World(seed).check()
        operations += outcome.operations
        boots += outcome.boots
        for name, count in outcome.faults.items():
            faults[name] = faults.get(name, 0) + count
    print(f"seeds from {first}: {operations} operations checked, {boots} starts, faults {faults}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_in_a_calm_world_everything_comes_once_and_at_once(seed: int) -> None:
    outcome = World(seed, Faults()).check()
    assert outcome.boots == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_every_law_holds_when_everything_goes_wrong_at_once(seed: int) -> None:
    outcome = World(seed, Faults.every()).check()
    assert outcome.faults


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_broker_that_runs_out_of_room_needs_no_restart(seed: int) -> None:
    outcome = World(seed, Faults(no_descriptors=True, full_disk=True)).check()
    assert outcome.boots == 1


def test_a_seed_does_the_same_twice() -> None:
    assert World(RICH_SEED).run().trace == World(RICH_SEED).run().trace


def test_another_seed_does_something_else() -> None:
    assert World(RICH_SEED).run().trace != World(RICH_SEED + 1).run().trace


@pytest.mark.slow
def test_a_seed_does_the_same_in_another_process() -> None:
    program = (
        "from tests.support.world import World; "
        f"print('\\n'.join(World({RICH_SEED}, faults=None).run().trace))"
    )
    traces = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": "."},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert traces[0]
    assert traces[0] == traces[1]
