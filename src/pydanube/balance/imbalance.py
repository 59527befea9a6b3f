"""How unevenly the brokers are loaded, and which of them stand out."""

import math
from collections.abc import Sequence

from msgspec import Struct

from pydanube.balance.cluster import BrokerLoad
from pydanube.balance.scoring import Strategy, scores_of
from pydanube.model.ids import BrokerId

DEVIATION_MIN = 2.0
"""Nobody stands out by less than this score, however small the numbers are."""
DEVIATION_OF_MEAN_MIN = 0.2
IMBALANCED_ABOVE = 0.3
"""Beyond this coefficient of variation, half the distance from the mean is enough."""


class BrokerBalance(Struct, frozen=True, kw_only=True):
    """One broker compared with the others."""

    broker: BrokerId
    load: float
    topic_count: int
    is_overloaded: bool = False
    is_underloaded: bool = False


class Balance(Struct, frozen=True, kw_only=True):
    """The scores of the brokers that were compared. With fewer than two, nothing is uneven."""

    strategy: Strategy
    coefficient_of_variation: float = 0.0
    mean_load: float = 0.0
    max_load: float = 0.0
    min_load: float = 0.0
    std_deviation: float = 0.0
    brokers: tuple[BrokerBalance, ...] = ()
    """By id."""

    @property
    def broker_count(self) -> int:
        """How many were compared."""
        return len(self.brokers)


def measure(brokers: Sequence[BrokerLoad], strategy: Strategy) -> Balance:
    """Compare brokers; pass the active ones, for others are about to have no load."""
    if not brokers:
        return Balance(strategy=strategy)
    scores = scores_of(brokers, strategy)
    mean = math.fsum(scores.values()) / len(scores)
    variance = math.fsum((score - mean) ** 2 for score in scores.values()) / len(scores)
    deviation = math.sqrt(variance)
    variation = deviation / mean if mean > 0 else 0.0
    distance = _distance(mean, deviation, variation)
    return Balance(
        strategy=strategy,
        coefficient_of_variation=variation,
        mean_load=mean,
        max_load=max(scores.values()),
        min_load=min(scores.values()),
        std_deviation=deviation,
        brokers=tuple(
            BrokerBalance(
                broker=each.broker,
                load=scores[each.broker],
                topic_count=round(each.figures.topics),
                is_overloaded=scores[each.broker] > mean + distance,
                is_underloaded=scores[each.broker] < mean - distance,
            )
            for each in sorted(brokers, key=lambda each: each.broker)
        ),
    )


def _distance(mean: float, deviation: float, variation: float) -> float:
    """Return how far from the mean a broker stands out."""
    multiplier = 0.5 if variation > IMBALANCED_ABOVE else 1.0
    return multiplier * max(deviation, DEVIATION_OF_MEAN_MIN * mean, DEVIATION_MIN)
