"""The strategies: how figures become one number per broker. Less is less loaded.

Each strategy is a set of weights, so that a broker's score and what one topic adds to it are
reckoned alike.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, assert_never

from pydanube.balance.cluster import BrokerLoad, Figures
from pydanube.model.ids import BrokerId

Strategy: TypeAlias = Literal["fair", "balanced", "weighted_load"]

BACKLOG_UNIT = 10_000
"""This many unacknowledged messages weigh as much as one MB/s."""
BOTTLENECK_RATIO = 0.7

_BY_COUNT = Figures(topics=1.0)
_OF_TOPICS = Figures(topics=0.2, megabytes=0.3, clients=0.3, backlog=0.2 / BACKLOG_UNIT)
_MOVE_EFFORT = Figures(megabytes=0.5, clients=0.3, backlog=0.2 / BACKLOG_UNIT)

# Parts of the score by what is nearest to the cluster's maximum.
_BOTTLENECKS: dict[str, dict[str, float]] = {
    "cpu": {"cpu": 0.5, "memory": 0.2, "throughput": 0.15, "topics": 0.15},
    "memory": {"memory": 0.5, "cpu": 0.2, "throughput": 0.15, "topics": 0.15},
    "throughput": {"throughput": 0.5, "network": 0.2, "cpu": 0.15, "memory": 0.15},
    "network": {"network": 0.5, "throughput": 0.2, "cpu": 0.15, "memory": 0.15},
    "topics": {"topics": 0.5, "cpu": 0.2, "memory": 0.2, "throughput": 0.1},
    "disk": {"topics": 0.5, "cpu": 0.2, "memory": 0.2, "throughput": 0.1},
}
_NO_BOTTLENECK = {"topics": 0.25, "cpu": 0.25, "memory": 0.25, "throughput": 0.15, "network": 0.1}


def weights_of(brokers: Sequence[BrokerLoad], strategy: Strategy) -> Mapping[BrokerId, Figures]:
    """Return how much each figure counts on each of the brokers that are compared."""
    match strategy:
        case "fair":
            return dict.fromkeys((each.broker for each in brokers), _BY_COUNT)
        case "balanced":
            return dict.fromkeys((each.broker for each in brokers), _balanced(brokers))
        case "weighted_load":
            largest = _largest(brokers)
            return {each.broker: _weighted(each.figures, largest) for each in brokers}
        case _:
            assert_never(strategy)


def scores_of(brokers: Sequence[BrokerLoad], strategy: Strategy) -> Mapping[BrokerId, float]:
    """Score the brokers that are compared; whole numbers are what placement looks at."""
    weights = weights_of(brokers, strategy)
    return {each.broker: each.figures.weighed(weights[each.broker]) for each in brokers}


def move_effort(topic: Figures) -> float:
    """Return how much a topic's clients would feel a move: rate, connections and backlog."""
    return topic.weighed(_MOVE_EFFORT)


def _balanced(brokers: Sequence[BrokerLoad]) -> Figures:
    if not any(each.figures.cpu or each.figures.memory for each in brokers):
        return _BY_COUNT  # Nobody has reported yet what its machine does.
    topics = _scaled(_OF_TOPICS, 0.3)
    return topics.plus(Figures(cpu=0.35, memory=0.35))


def _largest(brokers: Sequence[BrokerLoad]) -> dict[str, float]:
    """Return the cluster's maximum of each resource, 1 at least."""
    all_parts = [_parts(each.figures) for each in brokers]
    return {name: max([1.0, *(parts[name] for parts in all_parts)]) for name in _BOTTLENECKS}


def _parts(figures: Figures) -> dict[str, float]:
    return {
        "cpu": figures.cpu,
        "memory": figures.memory,
        "throughput": figures.megabytes,
        "network": figures.network,
        "topics": figures.weighed(_OF_TOPICS),
        "disk": figures.disk,
    }


def _weighted(figures: Figures, largest: Mapping[str, float]) -> Figures:
    ratios = {name: value / largest[name] for name, value in _parts(figures).items()}
    # The first of equals, in the order of the table.
    highest = max(ratios, key=lambda name: ratios[name])
    parts = _BOTTLENECKS[highest] if ratios[highest] > BOTTLENECK_RATIO else _NO_BOTTLENECK
    per_unit = {name: 100 * part / largest[name] for name, part in parts.items()}
    topics = _scaled(_OF_TOPICS, per_unit.get("topics", 0.0))
    return topics.plus(
        Figures(
            megabytes=per_unit.get("throughput", 0.0),
            cpu=per_unit.get("cpu", 0.0),
            memory=per_unit.get("memory", 0.0),
            network=per_unit.get("network", 0.0),
        )
    )


def _scaled(figures: Figures, factor: float) -> Figures:
    return Figures(
        topics=figures.topics * factor,
        megabytes=figures.megabytes * factor,
        clients=figures.clients * factor,
        backlog=figures.backlog * factor,
    )
