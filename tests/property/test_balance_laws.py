"""Laws of placement and rebalancing that hold for every cluster, history and setting."""

import itertools
from collections.abc import Callable

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pydanube.balance.cluster import BrokerLoad, BrokerMode, ClusterLoad, Figures, ServedTopic
from pydanube.balance.config import Level
from pydanube.balance.decisions import Move, RebalanceRequest
from pydanube.balance.history import History
from pydanube.balance.imbalance import measure
from pydanube.balance.placement import choose_broker
from pydanube.balance.rebalancing import decide
from pydanube.balance.scoring import Strategy, scores_of
from pydanube.balance.settings import RebalanceSettings
from pydanube.balance.topic_patterns import TopicPatterns
from pydanube.model.ids import BrokerId
from tests.support.balance_builders import HOUR_MS, LEVELS, MINUTE_MS, NOW_MS

STRATEGIES: tuple[Strategy, ...] = ("fair", "balanced", "weighted_load")

# Few values of each, so that equal scores, equal times and full limits come up often.
SMALL = st.integers(0, 4)
TIMES = st.integers(0, 14).map(lambda steps: NOW_MS - steps * 5 * MINUTE_MS)


FIGURES = [
    Figures(topics=1.0),
    Figures(topics=1.0, clients=2.0),
    Figures(topics=1.0, megabytes=5.0, clients=4.0, cpu=2.0, network=500.0),
    Figures(topics=1.0, megabytes=5.0, backlog=30_000.0, cpu=3.0),
    Figures(topics=1.0, megabytes=40.0, cpu=20.0, network=4000.0),
]
TOPICS = st.builds(
    ServedTopic,
    figures=st.sampled_from(FIGURES),
    served_since_ms=st.sampled_from(
        [None, 0, 0, *(NOW_MS - age * MINUTE_MS for age in (0, 5, 10))]
    ),
    reported=st.sampled_from([True, True, True, False]),
)
MODES: list[BrokerMode] = ["draining", "drained"]


@st.composite
def clusters(draw: st.DrawFn) -> ClusterLoad:
    """Most brokers are active, or nothing would ever move."""
    brokers: dict[BrokerId, BrokerLoad] = {}
    leaving = draw(st.sampled_from([None, None, 1, 2, 3]))
    silent = draw(st.sampled_from([None, None, None, 1, 3]))
    for number in range(1, draw(st.sampled_from([3, 4, 3, 4, 2, 1])) + 1):
        count = draw(st.sampled_from([0, 9, 6, 1]))
        drawn = draw(st.lists(TOPICS, min_size=count, max_size=count))
        topics = {
            f"/{'abc'[index % 3]}/b{number}-{index}": each for index, each in enumerate(drawn)
        }
        figures = Figures(memory=float(draw(SMALL)), cpu=float(draw(SMALL)))
        for each in drawn:
            figures = figures.plus(each.figures)
        brokers[BrokerId(number)] = BrokerLoad(
            broker=BrokerId(number),
            mode=draw(st.sampled_from(MODES)) if number == leaving else "active",
            reported_ms=NOW_MS - HOUR_MS if number == silent else NOW_MS,
            figures=figures,
            topics=topics,
        )
    return ClusterLoad(brokers=brokers)


@st.composite
def all_settings(draw: st.DrawFn) -> RebalanceSettings:
    level: Level = draw(st.sampled_from(LEVELS))
    return RebalanceSettings(
        enabled=draw(st.sampled_from([True] * 9 + [False])),
        strategy=draw(st.sampled_from(STRATEGIES)),
        level=level,
        check_interval_ms=draw(SMALL) * MINUTE_MS,
        moves_per_hour_max=draw(st.sampled_from([3, 9, 1, 0])),
        moves_per_cycle_max=draw(st.integers(1, 5)),
        cooldown_ms=draw(st.sampled_from([0, 1, 6])) * MINUTE_MS,
        brokers_min=draw(st.sampled_from([2, 1, 3])),
        topic_age_min_ms=draw(SMALL) * 5 * MINUTE_MS,
        blacklist=TopicPatterns(draw(st.lists(st.sampled_from(["/a/*", "/b/b1-*"]), max_size=2))),
    )


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History(settling=draw(st.booleans()))
    for at_ms in sorted(draw(st.lists(TIMES, max_size=draw(st.sampled_from([2, 4]))))):
        topic = f"/{draw(st.sampled_from('abc'))}/b{draw(SMALL)}-{draw(SMALL)}"
        move = Move(
            topic=topic, source=BrokerId(1), target=BrokerId(2), estimated_load=1, reason="test"
        )
        history = history.after_move(move, at_ms)
    return history


REQUESTS = st.none() | st.builds(RebalanceRequest, moves_max=st.none() | SMALL)
Look = tuple[ClusterLoad, RebalanceSettings, History]
LOOKS = st.tuples(clusters(), all_settings(), histories())


@given(LOOKS, REQUESTS)
def test_moves_lead_from_one_active_broker_to_another(
    look: Look, request: RebalanceRequest | None
) -> None:
    cluster, settings, history = look
    for move in decide(cluster, settings, history, NOW_MS, request).moves:
        assert cluster.brokers[move.source].mode == "active"
        assert cluster.brokers[move.target].mode == "active"
        assert move.source != move.target
        assert move.topic in cluster.brokers[move.source].topics


@given(LOOKS, REQUESTS)
def test_no_topic_moves_that_is_blacklisted_or_unknown_and_none_twice(
    look: Look, request: RebalanceRequest | None
) -> None:
    cluster, settings, history = look
    decision = decide(cluster, settings, history, NOW_MS, request)
    for move in decision.moves:
        assert not settings.blacklist.match(move.topic)
        assert cluster.brokers[move.source].topics[move.topic].reported
    assert len({each.topic for each in decision.moves}) == len(decision.moves)


@given(LOOKS)
def test_no_young_topic_moves_by_itself(look: Look) -> None:
    cluster, settings, history = look
    for move in decide(cluster, settings, history, NOW_MS).moves:
        since_ms = cluster.brokers[move.source].topics[move.topic].served_since_ms
        assert since_ms is None or NOW_MS - since_ms >= settings.topic_age_min_ms
        last = max((each.at_ms for each in history.moves if each.topic == move.topic), default=None)
        assert last is None or NOW_MS - last >= settings.topic_age_min_ms


@given(LOOKS)
def test_a_look_keeps_to_the_bounds_on_moves(look: Look) -> None:
    cluster, settings, history = look
    moves = decide(cluster, settings, history, NOW_MS).moves
    assert len(moves) <= settings.moves_per_cycle_max
    recent = [each for each in history.moves if NOW_MS - each.at_ms < HOUR_MS]
    assert not moves or len(recent) + len(moves) <= settings.moves_per_hour_max
    rested = all(NOW_MS - each.at_ms >= settings.cooldown_ms for each in history.moves)
    assert not moves or rested
    assert not moves or settings.enabled


@given(LOOKS, REQUESTS)
def test_every_move_makes_brokers_more_alike(look: Look, request: RebalanceRequest | None) -> None:
    cluster, settings, history = look
    decision = decide(cluster, settings, history, NOW_MS, request)
    then = cluster
    for move in decision.moves:
        moved = then.with_assignment(move.topic, move.target)
        before, after = (
            measure(_compared(each, settings), settings.strategy) for each in (then, moved)
        )
        assert after.coefficient_of_variation < before.coefficient_of_variation
        then = moved
    # What the decision says will be is what comes of its moves.
    assert decision.after == measure(_compared(then, settings), settings.strategy)


@given(LOOKS, REQUESTS)
def test_a_balanced_cluster_is_left_alone(look: Look, request: RebalanceRequest | None) -> None:
    cluster, settings, history = look
    decision = decide(cluster, settings, history, NOW_MS, request)
    variation = measure(_compared(cluster, settings), settings.strategy).coefficient_of_variation
    if variation <= settings.release or (variation < settings.threshold and not history.settling):
        assert decision.moves == ()


@given(LOOKS, REQUESTS)
def test_the_same_look_always_leads_to_the_same_decision(
    look: Look, request: RebalanceRequest | None
) -> None:
    cluster, settings, history = look
    turned = ClusterLoad(
        brokers={
            broker: msgspec.structs.replace(each, topics=dict(reversed(each.topics.items())))
            for broker, each in cluster.brokers.items()
        }
    )
    first = decide(cluster, settings, history, NOW_MS, request)
    assert decide(turned, settings, history, NOW_MS, request) == first


@given(LOOKS, REQUESTS)
def test_every_decision_has_a_reason_and_a_time_to_ask_again(
    look: Look, request: RebalanceRequest | None
) -> None:
    cluster, settings, history = look
    decision = decide(cluster, settings, history, NOW_MS, request)
    assert decision.reason
    assert (decision.outcome == "move") == bool(decision.moves)
    assert all(move.reason for move in decision.moves)
    assert decision.next_check_ms >= NOW_MS
    history = history.after_decision(decision, NOW_MS)
    assert history.decisions[-1].reason == decision.reason


def _compared(cluster: ClusterLoad, settings: RebalanceSettings) -> list[BrokerLoad]:
    return [
        each
        for each in cluster.active
        if each.reported_ms is None or NOW_MS - each.reported_ms <= settings.report_age_max_ms
    ]


@given(
    st.lists(st.integers(0, 40), min_size=2, max_size=5),
    all_settings(),
    st.lists(st.integers(0, 20 * MINUTE_MS), min_size=1, max_size=60),
)
def test_no_hour_has_more_moves_than_allowed_whenever_looks_are_taken(
    counts: list[int], settings: RebalanceSettings, pauses: list[int]
) -> None:
    settings = msgspec.structs.replace(settings, enabled=True, report_age_max_ms=1_000 * HOUR_MS)
    topics = {
        BrokerId(number): {
            f"/x/b{number}-{index}": ServedTopic(figures=Figures(topics=1.0))
            for index in range(count)
        }
        for number, count in enumerate(counts, 1)
    }
    cluster = ClusterLoad(
        brokers={
            broker: BrokerLoad(
                broker=broker, figures=Figures(topics=float(len(names))), topics=names
            )
            for broker, names in topics.items()
        }
    )
    history, now_ms = History(), NOW_MS
    for pause_ms in pauses:
        now_ms += pause_ms
        decision = decide(cluster, settings, history, now_ms)
        history = history.after_decision(decision, now_ms)
        for move in decision.moves:
            cluster = cluster.with_assignment(move.topic, move.target)
            history = history.after_move(move, now_ms)
            now_ms += settings.cooldown_ms
    times = [each.at_ms for each in history.moves]
    for start in times:
        within = sum(start <= each < start + HOUR_MS for each in times)
        assert within <= settings.moves_per_hour_max
    rests = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(rest >= settings.cooldown_ms for rest in rests)


@given(
    clusters(), st.sampled_from(STRATEGIES), st.none() | SMALL, st.none() | SMALL, st.none() | SMALL
)
def test_a_topic_never_gets_a_broker_that_is_not_active(
    cluster: ClusterLoad,
    strategy: Strategy,
    last: int | None,
    source: int | None,
    wanted: int | None,
) -> None:
    number: Callable[[int | None], BrokerId | None] = lambda each: (  # noqa: E731
        None if each is None else BrokerId(each)
    )
    placement = choose_broker(
        cluster,
        "/default/orders",
        strategy,
        last_chosen=number(last),
        source=number(source),
        wanted=number(wanted),
    )
    possible = [each for each in cluster.active if each.broker != source]
    assert placement.reason
    assert (placement.broker is None) == (not possible)
    if placement.broker is not None:
        assert placement.broker in [each.broker for each in possible]
        scores = {broker: int(each) for broker, each in scores_of(possible, strategy).items()}
        least = min(scores.values())
        if placement.broker != wanted:
            assert scores[placement.broker] <= least + max(1, least // 10)


@given(clusters())
def test_figures_survive_a_move_there_and_back(cluster: ClusterLoad) -> None:
    for broker, load in cluster.brokers.items():
        for topic in load.topics:
            for other in cluster.brokers:
                back = cluster.with_assignment(topic, other).with_assignment(topic, broker)
                assert back == cluster
