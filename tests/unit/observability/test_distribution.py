import pytest

from pydanube.observability.distribution import Distribution


def test_quantiles_are_right_to_some_percent_from_microseconds_to_gigabytes() -> None:
    for unit in (0.01, 1, 1_000_000):
        sizes = Distribution()
        for number in range(1, 1_001):
            sizes.observe(number * unit)
        for quantile, value in sizes.quantiles():
            assert value == pytest.approx(quantile * 1_000 * unit, rel=0.03)


def test_what_is_below_or_above_all_buckets_is_still_told() -> None:
    for value in (0.0, 5e12):
        sizes = Distribution()
        sizes.observe(value)
        assert {found for _, found in sizes.quantiles()} == {value}


def test_one_observation_may_stand_for_many() -> None:
    sizes = Distribution()
    sizes.observe(90 * 5, 90)
    sizes.observe(10 * 1_000, 10)
    assert (sizes.total, sizes.count) == (10_450, 100)
    found = dict(sizes.quantiles())
    assert (found[0.5], found[0.99]) == (5, 1_000)


def test_distributions_that_are_added_up_are_one() -> None:
    both, one, other = Distribution(), Distribution(), Distribution()
    for number in range(1, 101):
        (one if number % 3 else other).observe(number)
        both.observe(number)
    one.turn()
    merged = Distribution()
    for each in (one, other):
        merged.merge(each)
    assert list(merged.quantiles()) == list(both.quantiles())
    assert (merged.total, merged.count) == (both.total, both.count)


def test_nothing_observed_has_no_quantiles() -> None:
    assert list(Distribution().quantiles()) == []
