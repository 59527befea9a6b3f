import pytest

from pydanube.dispatch.redelivery import NEVER, Waiting, is_exhausted, retry_delay_ms
from pydanube.model.policies import FailurePolicy


@pytest.mark.parametrize(
    ("attempts", "requested_ms", "expected_ms"),
    [
        (1, 0, 1_000),
        (2, 0, 2_000),
        (4, 0, 8_000),
        (7, 0, 60_000),
        (10_000, 0, 60_000),
        (1, 500, 1_000),
        (1, 5_000, 5_000),
        (1, 90_000, 60_000),
    ],
)
def test_the_delay_doubles_up_to_the_cap(
    attempts: int, requested_ms: int, expected_ms: int
) -> None:
    assert retry_delay_ms(FailurePolicy(), attempts, requested_ms) == expected_ms


def test_a_fixed_delay_stays_the_same() -> None:
    policy = FailurePolicy(backoff_strategy="Fixed")
    assert [retry_delay_ms(policy, attempts, 0) for attempts in (1, 2, 9)] == [1_000] * 3


def test_there_is_one_delivery_more_than_redeliveries() -> None:
    policy = FailurePolicy(max_redelivery_count=5)
    assert not is_exhausted(policy, 5)
    assert is_exhausted(policy, 6)
    assert is_exhausted(FailurePolicy(max_redelivery_count=0), 1)


def test_what_is_taken_from_the_middle_does_not_hold_up_the_rest() -> None:
    retries = Waiting()
    retries.schedule(0, 10, attempts=1, due_ms=50)
    assert retries.take(3, 5) == [(3, 5, 1)]
    assert retries.take_due(49) == []
    assert retries.next_due_ms() == 50
    assert retries.take_due(50) == [(0, 3, 1), (5, 10, 1)]
    assert retries.next_due_ms() == NEVER
    assert retries.count == 0


def test_settled_retries_do_not_pile_up() -> None:
    retries = Waiting()
    for offset in range(10_000):
        retries.schedule(offset, offset + 1, 1, 60_000 + offset)
        retries.take(offset, offset + 1)
    assert len(retries._due) < 100
    assert retries.next_due_ms() == NEVER
