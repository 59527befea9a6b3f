"""Clusters with skewed load come to rest: 3 brokers, 1,000 topics, in virtual time."""

import random
from itertools import pairwise

import pytest

from pydanube.balance.scoring import Strategy
from pydanube.balance.settings import RebalanceSettings
from pydanube.model.ids import BrokerId
from tests.support.balance_builders import HOUR_MS
from tests.support.balance_world import BalanceWorld

BROKERS = [BrokerId(1), BrokerId(2), BrokerId(3)]
TOPICS = 1_000
MEGABYTES = 200.0


def aggressive(strategy: Strategy, moves_per_cycle_max: int = 1) -> RebalanceSettings:
    """What the guide suggests for the level."""
    return RebalanceSettings(
        enabled=True,
        strategy=strategy,
        level="aggressive",
        check_interval_ms=120_000,
        moves_per_hour_max=20,
        moves_per_cycle_max=moves_per_cycle_max,
        cooldown_ms=30_000,
    )


def zipf_rates(seed: int, topics: int) -> dict[str, float]:
    """Of a thousand topics the busiest has an eighth of all bytes, most next to none."""
    weights = [1 / rank for rank in range(1, topics + 1)]
    random.Random(seed).shuffle(weights)
    total = sum(weights)
    return {
        f"/default/t{index}": MEGABYTES * weight / total for index, weight in enumerate(weights)
    }


def world(seed: int, shares: tuple[int, int, int], topics: int = TOPICS) -> BalanceWorld:
    """Topics spread over the brokers by those shares."""
    rates = zipf_rates(seed, topics)
    chance = random.Random(seed)
    owners = {topic: chance.choices(BROKERS, weights=shares)[0] for topic in rates}
    return BalanceWorld(seed, rates=rates, owners=owners, noise=0.3)


def check_the_limits(lived: BalanceWorld, settings: RebalanceSettings) -> None:
    times = [each.at_ms for each in lived.moves]
    for start in times:
        within = sum(start <= each < start + HOUR_MS for each in times)
        assert within <= settings.moves_per_hour_max
    assert all(later - earlier >= settings.cooldown_ms for earlier, later in pairwise(times))
    assert all(each.reason for each in lived.moves)


def check_that_nothing_went_back(lived: BalanceWorld) -> None:
    left = {(each.topic, each.source) for each in lived.moves}
    assert not left & {(each.topic, each.target) for each in lived.moves}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "shares", "topics"),
    [
        ("balanced", (6, 2, 2), TOPICS),
        # Memory is even everywhere, and so is half of these scores.
        ("weighted_load", (8, 1, 1), TOPICS),
        ("weighted_load", (1, 1, 14), TOPICS),
        # The number of topics is all that counts, so fewer will do.
        ("fair", (6, 2, 2), 200),
    ],
)
def test_skewed_load_comes_to_rest_within_the_limits(
    strategy: Strategy, shares: tuple[int, int, int], topics: int
) -> None:
    settings = aggressive(strategy)
    lived = world(1, shares, topics)
    assert lived.variation(settings) > 0.2
    lived.run(settings, hours_max=12, until_rest=True)
    assert lived.variation(settings) < 0.2
    settled = len(lived.moves)
    assert settled > 0
    lived.run(settings, hours_max=2)
    assert len(lived.moves) == settled
    assert lived.variation(settings) < 0.2
    check_that_nothing_went_back(lived)
    check_the_limits(lived, settings)


@pytest.mark.slow
def test_looks_more_frequent_than_reports_do_not_overshoot() -> None:
    """Between two reports several cycles move topics: each sees what the ones before did."""
    settings = RebalanceSettings(
        enabled=True,
        strategy="weighted_load",
        level="aggressive",
        check_interval_ms=5_000,
        moves_per_hour_max=500,
        moves_per_cycle_max=2,
        cooldown_ms=1_000,
        topic_age_min_ms=0,
    )
    lived = world(5, (8, 1, 1), 200)
    lived.run(settings, hours_max=0.5)
    assert lived.variation(settings) < 0.2
    assert 0 < len(lived.moves) < 60
    check_that_nothing_went_back(lived)
    check_the_limits(lived, settings)
