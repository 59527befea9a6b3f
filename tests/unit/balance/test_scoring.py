"""Each strategy's number for a broker, reckoned by hand."""

import pytest

from pydanube.balance.cluster import BrokerLoad, Figures
from pydanube.balance.scoring import Strategy, move_effort, scores_of
from pydanube.model.ids import BrokerId


def scores(strategy: Strategy, *figures: Figures) -> list[float]:
    brokers = [
        BrokerLoad(broker=BrokerId(index), figures=each) for index, each in enumerate(figures, 1)
    ]
    return list(scores_of(brokers, strategy).values())


BUSY = Figures(topics=10, megabytes=20, clients=30, backlog=40_000, cpu=50, memory=60)


def test_fair_counts_topics() -> None:
    assert scores("fair", BUSY, Figures(topics=3, cpu=99), Figures(cpu=5)) == [10, 3, 0]


def test_balanced_weighs_topics_cpu_and_memory() -> None:
    of_topics = 0.2 * 10 + 0.3 * 20 + 0.3 * 30 + 0.2 * 4
    busy, idle = scores("balanced", BUSY, Figures(topics=1))
    assert busy == pytest.approx(0.3 * of_topics + 0.35 * 50 + 0.35 * 60)
    assert idle == pytest.approx(0.3 * 0.2)


def test_balanced_counts_topics_while_nobody_knows_cpu_or_memory() -> None:
    assert scores("balanced", Figures(topics=7, megabytes=99), Figures(topics=2)) == [7, 2]
    # One broker that knows is enough to weigh.
    known = scores("balanced", Figures(topics=7), Figures(topics=2, memory=1))
    assert known == pytest.approx([0.3 * 0.2 * 7, 0.3 * 0.2 * 2 + 0.35])


OF_TOPICS = Figures(topics=5)  # Makes 1.0, the least a maximum can be.
MAXIMA = Figures(topics=500, megabytes=0, cpu=100, memory=100, network=1000, disk=1000)
"""Of another broker: with its 500 topics, 100 is the cluster's maximum of topics."""


@pytest.mark.parametrize(
    ("figures", "score"),
    [
        # One resource stands out, and gets half of the weight.
        (Figures(cpu=80, memory=10, topics=50), 0.5 * 80 + 0.2 * 10 + 0.15 * 10),
        (Figures(cpu=10, memory=80, topics=50), 0.5 * 80 + 0.2 * 10 + 0.15 * 10),
        (Figures(network=800, cpu=10, memory=20), 0.5 * 80 + 0.15 * 10 + 0.15 * 20),
        (Figures(topics=400, cpu=10, memory=20), 0.5 * 80 + 0.2 * 10 + 0.2 * 20),
        # A busy disk makes topics count.
        (Figures(disk=800, topics=50, cpu=10, memory=20), 0.5 * 10 + 0.2 * 10 + 0.2 * 20),
        # Nothing does: 0.7 is not above 0.7.
        (
            Figures(cpu=70, memory=10, topics=50, network=300),
            0.25 * 10 + 0.25 * 70 + 0.25 * 10 + 0.1 * 30,
        ),
        (Figures(), 0.0),
    ],
)
def test_weighted_load_looks_at_what_is_nearest_to_its_limit(
    figures: Figures, score: float
) -> None:
    first, _ = scores("weighted_load", figures, MAXIMA)
    assert first == pytest.approx(score)


def test_weighted_load_of_throughput() -> None:
    fast = Figures(megabytes=80, network=400, cpu=10, memory=20)
    maxima = Figures(megabytes=100, network=1000, cpu=100, memory=100)
    first, _ = scores("weighted_load", fast, maxima)
    assert first == pytest.approx(0.5 * 80 + 0.2 * 40 + 0.15 * 10 + 0.15 * 20)


def test_weighted_load_takes_a_maximum_of_one_at_least() -> None:
    # A trifle of CPU is no bottleneck although nobody has more.
    assert scores("weighted_load", Figures(cpu=0.5)) == pytest.approx([0.25 * 50])
    assert scores("weighted_load", OF_TOPICS) == pytest.approx([50.0])


def test_the_effort_of_a_move_is_what_clients_feel() -> None:
    assert move_effort(BUSY) == pytest.approx(0.5 * 20 + 0.3 * 30 + 0.2 * 4)
