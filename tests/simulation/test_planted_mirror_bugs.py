"""The mirror world is worth its time only if it finds bugs: each of these must not survive it."""

import pytest

from tests.support.planted_mirror_bugs import FOUND, Case

SEEDS_MAX = 12


@pytest.mark.parametrize("case", FOUND, ids=[each.plant.__name__ for each in FOUND])
def test_a_planted_bug_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.plant(monkeypatch)
    for seed in range(case.first, case.first + SEEDS_MAX):
        for replicas in case.replicas:
            if case.world(seed, replicas).run().violations:
                return
    pytest.fail(f"{case.plant.__name__} was not found in {SEEDS_MAX} seeds")


@pytest.mark.parametrize("case", FOUND[3:], ids=[each.plant.__name__ for each in FOUND[3:]])
def test_without_a_bug_nothing_is_found(case: Case) -> None:
    for replicas in case.replicas:
        case.world(case.first, replicas).check()
