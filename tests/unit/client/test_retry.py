import pytest

from pydanube.client.retry import JITTER_MAX, JITTER_MIN, RetryPolicy


@pytest.mark.parametrize(
    ("attempt", "low", "high"),
    [(0, 0.1, 0.2), (1, 0.2, 0.4), (4, 0.5, 1.0), (24, 2.5, 5.0), (25, 2.5, 5.0), (900, 2.5, 5.0)],
)
def test_the_pause_grows_evenly_up_to_five_seconds(attempt: int, low: float, high: float) -> None:
    policy = RetryPolicy()
    assert policy.pause_seconds(attempt, JITTER_MIN) == pytest.approx(low)
    assert policy.pause_seconds(attempt, JITTER_MAX) == pytest.approx(high)


@pytest.mark.parametrize(
    ("attempt", "high"), [(0, 0.2), (1, 0.4), (2, 0.4), (15, 0.4), (16, 0.4), (17, 0.6), (900, 5.0)]
)
def test_what_has_worked_before_is_tried_again_sooner_for_a_while(
    attempt: int, high: float
) -> None:
    policy = RetryPolicy()
    assert policy.mend_pause_seconds(attempt, JITTER_MAX) == pytest.approx(high)
    assert policy.mend_pause_seconds(attempt, JITTER_MIN) == pytest.approx(high / 2)


def test_there_are_five_retries_and_so_six_attempts() -> None:
    policy = RetryPolicy()
    assert [attempt for attempt in range(10) if policy.allows(attempt)] == [0, 1, 2, 3, 4]


def test_a_jitter_that_would_skip_the_pause_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        RetryPolicy().pause_seconds(0, 0.1)
