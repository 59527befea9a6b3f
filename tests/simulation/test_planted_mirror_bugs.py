"""The mirror world is worth its time only if it finds bugs: each of these must not survive it."""

import pytest

from tests.support.mirror_world import MirrorWorld, Plan
from tests.support.planted_mirror_bugs import PLANTS, Plant

SEEDS_MAX = 12


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(1, SEEDS_MAX + 1):
        for replicas in (2, 3):
            plan = Plan(replicas=replicas, news_seconds=4.0, seconds=6.0)
            world = MirrorWorld(f"planted {replicas} {seed}", plan).run()
            if world.violations:
                return
    pytest.fail(f"{plant.__name__} was not found in {SEEDS_MAX} seeds")
