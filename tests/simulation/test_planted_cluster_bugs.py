"""The cluster world finds bugs of the kind that clusters have, each with a seed of its own."""

from dataclasses import replace

import pytest

from tests.support.cluster_plans import ClusterFaults, FaultName
from tests.support.cluster_world import ClusterWorld
from tests.support.planted_cluster_bugs import FOUND, Plant


def _world(seed: int, replicas: int, faults: tuple[FaultName, ...]) -> ClusterWorld:
    world = ClusterWorld(seed, ClusterFaults.only(*faults))
    world.plan = replace(world.plan, replicas=replicas)
    return world


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "seed", "replicas", "faults", "law"), FOUND, ids=[each[0].__name__ for each in FOUND]
)
def test_a_planted_bug_is_found(
    plant: Plant,
    seed: int,
    replicas: int,
    faults: tuple[FaultName, ...],
    law: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    outcome = _world(seed, replicas, faults).run()
    assert law in {violation.law for violation in outcome.violations}, outcome.report()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "replicas", "faults"), sorted({(each[1], each[2], each[3]) for each in FOUND})
)
def test_without_a_bug_nothing_is_found(
    seed: int, replicas: int, faults: tuple[FaultName, ...]
) -> None:
    _world(seed, replicas, faults).check()
