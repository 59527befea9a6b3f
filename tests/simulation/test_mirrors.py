"""Journals that mirror each other, under power cuts, lost disks, cuts and owners that are none."""

import os

import pytest

from tests.support.mirror_world import MirrorWorld, Plan

SEEDS = int(os.environ.get("DANUBE_MIRROR_SEEDS", "12"))
FIRST = int(os.environ.get("DANUBE_SEED_START", "1"))


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_nothing_acknowledged_is_lost(seed: int, replicas: int) -> None:
    world = MirrorWorld(f"mirrors {replicas} {seed}", Plan(replicas=replicas)).check()
    assert world.counts["acked"] > 0
