"""The cluster world finds bugs of the kind that clusters have, each with a seed of its own."""

import pytest

from tests.support.cluster_world import ClusterWorld
from tests.support.planted_cluster_bugs import FOUND, Case

WORLDS = {(each.seed, each.faults, each.replicas, each.gap_seconds): each for each in FOUND}


def _world(case: Case) -> ClusterWorld:
    return ClusterWorld.plain(
        case.seed, *case.faults, replicas=case.replicas, gap_seconds=case.gap_seconds
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", FOUND, ids=[each.plant.__name__ for each in FOUND])
def test_a_planted_bug_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.plant(monkeypatch)
    outcome = _world(case).run()
    assert case.law in {violation.law for violation in outcome.violations}, outcome.report()


@pytest.mark.slow
@pytest.mark.parametrize("case", WORLDS.values(), ids=[str(each) for each in WORLDS])
def test_without_a_bug_nothing_is_found(case: Case) -> None:
    _world(case).check()
