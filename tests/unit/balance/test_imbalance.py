"""The coefficient of variation, and who stands out."""

import pytest

from pydanube.balance.imbalance import Balance, measure
from tests.support.balance_builders import counted


def measured(*counts: int) -> Balance:
    return measure(counted(dict(enumerate(counts, 1))).active, "fair")


@pytest.mark.parametrize(
    ("counts", "variation"),
    [
        ((), 0.0),
        ((5,), 0.0),
        ((0, 0), 0.0),
        ((7, 7, 7), 0.0),
        ((3, 1), 0.5),
        ((10, 0), 1.0),
        ((130, 100, 70), 0.2449),
    ],
)
def test_imbalance_is_the_population_deviation_by_the_mean(
    counts: tuple[int, ...], variation: float
) -> None:
    assert measured(*counts).coefficient_of_variation == pytest.approx(variation, abs=1e-4)


@pytest.mark.parametrize(
    ("counts", "overloaded", "underloaded"),
    [
        # Above 0.3 half a deviation is enough, below a whole one is needed.
        ((200, 100, 60), [1], [3]),
        ((130, 100, 70), [1], [3]),
        ((125, 112, 63), [], [3]),
        # A deviation below a fifth of the mean makes nobody stand out.
        ((110, 100, 90), [], []),
        ((121, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100), [], []),
        ((130, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100), [1], []),
        # Nor does less than a score of 2, or of 1 when the imbalance is large.
        ((2, 1, 0), [], []),
        ((3, 0), [1], [2]),
        ((4, 1, 0), [1], [3]),
    ],
)
def test_brokers_far_from_the_mean_stand_out(
    counts: tuple[int, ...], overloaded: list[int], underloaded: list[int]
) -> None:
    balance = measured(*counts)
    assert [each.broker for each in balance.brokers if each.is_overloaded] == overloaded
    assert [each.broker for each in balance.brokers if each.is_underloaded] == underloaded


def test_the_report_names_every_broker_by_its_id() -> None:
    balance = measured(4, 0, 2)
    assert [(each.broker, each.load, each.topic_count) for each in balance.brokers] == [
        (1, 4.0, 4),
        (2, 0.0, 0),
        (3, 2.0, 2),
    ]
    assert (balance.mean_load, balance.max_load, balance.min_load) == (2.0, 4.0, 0.0)
    assert balance.broker_count == 3
