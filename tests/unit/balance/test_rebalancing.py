"""What moves, to where, and what is planned when several topics may."""

import msgspec
import pytest

from pydanube.balance.cluster import ClusterLoad, Figures, ServedTopic
from pydanube.balance.config import Level
from pydanube.balance.decisions import Decision, RebalanceRequest
from pydanube.balance.history import History
from pydanube.balance.rebalancing import decide
from pydanube.balance.settings import RebalanceSettings
from pydanube.balance.topic_patterns import TopicPatterns
from pydanube.model.ids import BrokerId
from tests.support.balance_builders import LEVELS, NOW_MS, counted, loaded, topic_name

FAIR = RebalanceSettings(enabled=True, strategy="fair")
WEIGHTED = RebalanceSettings(
    enabled=True, strategy="weighted_load", moves_per_cycle_max=100, moves_per_hour_max=100
)


def settings(base: RebalanceSettings = FAIR, **changes: object) -> RebalanceSettings:
    return msgspec.structs.replace(base, **changes)


def routes(decision: Decision) -> list[tuple[int, int]]:
    return [(each.source, each.target) for each in decision.moves]


def by_throughput(megabytes: dict[int, list[float]]) -> ClusterLoad:
    """A cluster whose `balanced` scores are about 0.09 for each MB/s."""
    cluster = loaded(megabytes)
    memory = {
        broker: msgspec.structs.replace(each, figures=each.figures.plus(Figures(memory=1e-9)))
        for broker, each in cluster.brokers.items()
    }
    return ClusterLoad(brokers=memory)


def test_an_overloaded_broker_gives_a_topic_to_the_least_loaded() -> None:
    decision = decide(counted({1: 20, 2: 10, 3: 5}), FAIR, History(), NOW_MS)
    assert decision.outcome == "move"
    assert routes(decision) == [(1, 3)]


@pytest.mark.parametrize(
    ("counts", "moving"),
    [
        # Coefficients of variation of 0.24, 0.33 and 0.41.
        ({1: 130, 2: 100, 3: 70}, ["aggressive"]),
        ({1: 140, 2: 100, 3: 60}, ["balanced", "aggressive"]),
        ({1: 150, 2: 100, 3: 50}, ["conservative", "balanced", "aggressive"]),
        ({1: 120, 2: 100, 3: 80}, []),
        # Exactly at the threshold of each.
        ({1: 14, 2: 6}, ["conservative", "balanced", "aggressive"]),
        ({1: 13, 2: 7}, ["balanced", "aggressive"]),
        ({1: 12, 2: 8}, ["aggressive"]),
    ],
)
def test_a_level_moves_from_its_imbalance_on(counts: dict[int, int], moving: list[Level]) -> None:
    for level in LEVELS:
        decision = decide(counted(counts), settings(level=level), History(), NOW_MS)
        assert (decision.outcome == "move") == (level in moving), level


@pytest.mark.parametrize(
    ("counts", "route"),
    [
        # Nobody is overloaded, but one stands out below.
        ({1: 125, 2: 112, 3: 63}, (1, 3)),
        # Nobody stands out, for two brokers never differ by more than a deviation.
        ({1: 125, 2: 75}, (1, 2)),
        # Ties break on the id.
        ({1: 20, 2: 20, 3: 5, 4: 5}, (1, 3)),
        ({4: 20, 3: 20, 2: 5, 1: 5}, (3, 1)),
    ],
)
def test_who_gives_and_who_takes(counts: dict[int, int], route: tuple[int, int]) -> None:
    decision = decide(counted(counts), settings(level="aggressive"), History(), NOW_MS)
    assert routes(decision) == [route]


@pytest.mark.parametrize("counts", [{1: 2, 2: 1, 3: 0}, {1: 4, 2: 2}, {1: 1, 2: 0}])
def test_small_numbers_are_left_alone(counts: dict[int, int]) -> None:
    decision = decide(counted(counts), settings(level="aggressive"), History(), NOW_MS)
    assert decision.outcome == "nothing_helps"
    assert "too small to stand out" in decision.reason


def test_the_topic_that_fills_the_gap_best_goes() -> None:
    cluster = by_throughput({1: [300.0, 50.0, 90.0, 60.0, 200.0], 2: [300.0, 100.0], 3: [100.0]})
    # Broker 1 has 700, 2 has 400, 3 has 100; 300 MB/s is what is wanted.
    plan = settings(strategy="balanced", moves_per_cycle_max=1)
    (move,) = decide(cluster, plan, History(), NOW_MS).moves
    assert (move.topic, move.source, move.target) == (topic_name(1, 0), 1, 3)
    assert move.estimated_load == pytest.approx(0.09 * 300 + 0.06)


def test_a_topic_as_large_as_the_gap_would_only_trade_places() -> None:
    heavy = by_throughput({1: [300.0, 5.0], 2: [1.0]})
    plan = settings(strategy="balanced", moves_per_cycle_max=9)
    decision = decide(heavy, plan, History(), NOW_MS)
    assert [each.topic for each in decision.moves] == [topic_name(1, 1)]
    alone = decide(by_throughput({1: [300.0], 2: [1.0]}), plan, History(), NOW_MS)
    assert alone.outcome == "nothing_helps"
    assert alone.reason.endswith(
        "but broker 1 cannot give: its topics are 1 too light or too heavy to help"
    )


def test_of_topics_that_help_alike_the_quietest_goes() -> None:
    cluster = loaded({1: [5.0, 1.0, 3.0, *[9.0] * 17], 2: [1.0] * 10, 3: [1.0] * 5})
    (move,) = decide(cluster, FAIR, History(), NOW_MS).moves
    assert move.topic == topic_name(1, 1)


def test_planned_moves_are_seen_by_those_planned_after_them() -> None:
    plan = settings(moves_per_cycle_max=100, moves_per_hour_max=100)
    decision = decide(counted({1: 60, 2: 0, 3: 0}), plan, History(), NOW_MS)
    # They go in turn, and end where the level ends: far from the mean of 20 on no side.
    assert routes(decision)[:4] == [(1, 2), (1, 3), (1, 2), (1, 3)]
    loads = [each.load for each in decision.after.brokers]
    assert decision.after.coefficient_of_variation <= plan.release
    assert max(loads) == loads[0] < 29
    assert len({each.topic for each in decision.moves}) == len(decision.moves)


def test_a_plan_ends_where_the_level_ends_and_not_before() -> None:
    plan = settings(moves_per_cycle_max=100, moves_per_hour_max=100)
    decision = decide(counted({1: 60, 2: 0, 3: 0}), plan, History(), NOW_MS)
    shorter = settings(plan, moves_per_cycle_max=len(decision.moves) - 1)
    almost = decide(counted({1: 60, 2: 0, 3: 0}), shorter, History(), NOW_MS)
    assert almost.after.coefficient_of_variation > plan.release
    assert almost.moves == decision.moves[:-1]


def test_when_the_most_loaded_broker_cannot_give_another_one_does() -> None:
    blacklist = TopicPatterns(["/default/b1-*"])
    plan = settings(level="aggressive", blacklist=blacklist)
    decision = decide(counted({1: 30, 2: 28, 3: 5}), plan, History(), NOW_MS)
    assert routes(decision) == [(2, 3)]


def test_brokers_that_are_not_active_neither_give_nor_take_nor_count() -> None:
    cluster = counted({1: 20, 2: 10, 3: 0, 4: 90}, {3: "draining", 4: "drained"})
    decision = decide(cluster, FAIR, History(), NOW_MS)
    assert routes(decision) == [(1, 2)]
    assert decision.before.mean_load == 15.0


def test_a_broker_that_stopped_reporting_is_left_out() -> None:
    silent = msgspec.structs.replace(
        counted({3: 0}).brokers[BrokerId(3)], reported_ms=NOW_MS - FAIR.report_age_max_ms - 1
    )
    cluster = counted({1: 20, 2: 10})
    cluster = ClusterLoad(brokers={**cluster.brokers, BrokerId(3): silent})
    assert routes(decide(cluster, FAIR, History(), NOW_MS)) == [(1, 2)]
    # One that has never reported is new, and empty.
    new = msgspec.structs.replace(silent, reported_ms=None)
    cluster = ClusterLoad(brokers={**cluster.brokers, BrokerId(3): new})
    assert routes(decide(cluster, FAIR, History(), NOW_MS)) == [(1, 3)]


def test_a_topic_whose_load_is_unknown_stays() -> None:
    cluster = counted({1: 0, 2: 0})
    for index in range(10):
        cluster = cluster.with_assignment(f"/default/new-{index}", BrokerId(1))
    decision = decide(cluster, FAIR, History(), NOW_MS)
    assert decision.outcome == "nothing_helps"
    assert "10 in no report yet" in decision.reason


def test_the_share_of_the_machine_moves_with_the_topic() -> None:
    cluster = loaded({1: [10.0, 10.0, 10.0, 10.0], 2: [10.0]})
    busy = {
        name: ServedTopic(figures=each.figures.plus(Figures(cpu=20.0)), served_since_ms=0)
        for name, each in cluster.brokers[BrokerId(1)].topics.items()
    }
    first = msgspec.structs.replace(
        cluster.brokers[BrokerId(1)],
        topics=busy,
        figures=cluster.brokers[BrokerId(1)].figures.plus(Figures(cpu=80.0)),
    )
    cluster = ClusterLoad(brokers={**cluster.brokers, BrokerId(1): first})
    plan = settings(strategy="balanced", moves_per_cycle_max=9)
    decision = decide(cluster, plan, History(), NOW_MS)
    assert routes(decision) == [(1, 2), (1, 2)]
    first_load, second_load = (each.load for each in decision.after.brokers)
    assert first_load == pytest.approx(0.35 * 40 + 0.09 * 20 + 0.06 * 2)
    assert second_load == pytest.approx(0.35 * 40 + 0.09 * 30 + 0.06 * 3)


def test_every_move_says_why() -> None:
    (move,) = decide(counted({1: 20, 2: 10, 3: 6}), FAIR, History(), NOW_MS).moves
    assert move.reason == (
        "broker 1 has load 20.0 and broker 3 6.0, the mean is 12.0; the topic takes 1.00 along, "
        "imbalance 0.491 becomes 0.425"
    )


def test_a_request_plans_until_the_cluster_is_balanced() -> None:
    disabled = settings(enabled=False, moves_per_hour_max=0)
    everything = decide(counted({1: 60, 2: 0}), disabled, History(), NOW_MS, RebalanceRequest())
    assert everything.after.coefficient_of_variation <= disabled.release
    assert len(everything.moves) == 24
    some = RebalanceRequest(moves_max=3)
    assert len(decide(counted({1: 60, 2: 0}), disabled, History(), NOW_MS, some).moves) == 3
    none = RebalanceRequest(moves_max=0)
    assert decide(counted({1: 60, 2: 0}), disabled, History(), NOW_MS, none).moves == ()


def test_a_request_moves_young_topics_but_no_blacklisted_ones() -> None:
    young = loaded({1: [0.0] * 20, 2: [], 3: []}, served_since_ms=NOW_MS)
    assert decide(young, FAIR, History(), NOW_MS).moves == ()
    assert decide(young, FAIR, History(), NOW_MS, RebalanceRequest()).moves
    kept = settings(blacklist=TopicPatterns(["/default/*"]))
    assert decide(young, kept, History(), NOW_MS, RebalanceRequest()).moves == ()


@pytest.mark.parametrize(
    ("counts", "outcome"),
    [({1: 20, 2: 18}, "balanced"), ({1: 20}, "too_few_brokers"), ({}, "too_few_brokers")],
)
def test_a_request_is_refused_when_there_is_nothing_to_do(
    counts: dict[int, int], outcome: str
) -> None:
    assert decide(counted(counts), FAIR, History(), NOW_MS, RebalanceRequest()).outcome == outcome


def test_weighted_load_brings_brokers_of_all_kinds_together() -> None:
    decision = decide(loaded({1: [9.0] * 30, 2: [3.0] * 10, 3: []}), WEIGHTED, History(), NOW_MS)
    assert decision.outcome == "move"
    variation = decision.before.coefficient_of_variation
    assert decision.after.coefficient_of_variation < variation / 2
