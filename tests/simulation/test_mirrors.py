"""Journals that mirror each other, under power cuts, lost disks, cuts and owners that are none."""

import os

import pytest

from tests.support.mirror_world import Faults, MirrorWorld, Plan

SEEDS = int(os.environ.get("DANUBE_MIRROR_SEEDS", "12"))
FIRST = int(os.environ.get("DANUBE_SEED_START", "1"))


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_nothing_acknowledged_is_lost(seed: int, replicas: int) -> None:
    world = MirrorWorld(f"mirrors {replicas} {seed}", Plan(replicas=replicas)).check()
    assert world.counts["acked"] > 0


FENCED_ALONE = 136
"""In this world an owner without mirrors is replaced while consumers settle messages."""


@pytest.mark.parametrize("seed", [FENCED_ALONE, *range(FIRST, FIRST + SEEDS // 2)])
def test_the_number_of_copies_changes_while_a_topic_is_in_use(seed: int) -> None:
    plan = Plan(replicas=1, faults=Faults(wish=6))
    world = MirrorWorld(f"wishes {seed}", plan).check()
    assert world.counts["acked"] > 0


@pytest.mark.parametrize(("seed", "way"), [(3, "grew in use"), (4, "opened to grow")])
def test_a_topic_in_use_gets_copies(seed: int, way: str) -> None:
    """An epoch that nobody has streamed goes on; any other one is followed by a new one."""
    faults = Faults(crash=8, wish=8, cut=0, move=0, wipe=0, slow_disk=0, quiet=2)
    plan = Plan(brokers=3, replicas=1, faults=faults)
    assert MirrorWorld(f"growing {seed}", plan).check().counts[way] > 0
