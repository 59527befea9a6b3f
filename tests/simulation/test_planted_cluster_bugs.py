"""The cluster world finds bugs of the kind that clusters have, each with a seed of its own."""

import pytest

from tests.support.planted_cluster_bugs import FOUND, Case

SEEDS_MAX = 4
"""The first one finds the bug; should a change of how brokers work keep it from that, a few others
are asked."""

WORLDS = {
    (each.seed, each.faults, each.replicas, each.gap_seconds, each.best_effort, each.churns): each
    for each in FOUND
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", FOUND, ids=[f"{each.plant.__name__}: {each.law}" for each in FOUND]
)
def test_a_planted_bug_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.plant(monkeypatch)
    reports: list[str] = []
    for number in range(SEEDS_MAX):
        outcome = case.world(number).run()
        if case.law in {violation.law for violation in outcome.violations}:
            break
        reports.append(outcome.report())
    assert len(reports) < SEEDS_MAX, f"{case.plant.__name__} was not found:\n{reports[-1]}"


@pytest.mark.slow
@pytest.mark.parametrize("case", WORLDS.values(), ids=[str(each) for each in WORLDS])
def test_without_a_bug_nothing_is_found(case: Case) -> None:
    case.world().check()
