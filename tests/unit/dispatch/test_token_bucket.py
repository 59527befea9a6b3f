from hypothesis import given
from hypothesis import strategies as st

from pydanube.dispatch.token_bucket import TokenBucket


@given(st.integers(1, 50), st.lists(st.integers(0, 3_000), max_size=30))
def test_no_span_of_time_sees_more_than_the_rate_and_one_second_saved_up(
    rate: int, pauses: list[int]
) -> None:
    bucket, now_ms, sent = TokenBucket(rate, 0), 0, list[tuple[int, int]]()
    for pause in pauses:
        now_ms += pause
        count = bucket.allowance(now_ms)
        bucket.spend(count)
        sent.append((now_ms, count))
    for first, (from_ms, _) in enumerate(sent):
        for last in range(first, len(sent)):
            until_ms = sent[last][0]
            count = sum(number for _, number in sent[first : last + 1])
            assert count <= rate + rate * (until_ms - from_ms) / 1_000


@given(st.integers(1, 3_000), st.integers(0, 999))
def test_it_tells_exactly_when_the_next_one_may_go(rate: int, pause_ms: int) -> None:
    bucket = TokenBucket(rate, 0)
    bucket.spend(bucket.allowance(0))
    bucket.spend(bucket.allowance(pause_ms))
    next_at_ms = bucket.next_at_ms()
    assert bucket.allowance(next_at_ms - 1) == 0 or next_at_ms - 1 < pause_ms
    assert bucket.allowance(next_at_ms) >= 1


def test_a_changed_rate_keeps_what_was_saved_up_as_far_as_it_fits() -> None:
    bucket = TokenBucket(100, 0)
    bucket.change_rate(10, 0)
    assert bucket.allowance(0) == 10
    bucket.spend(10)
    bucket.change_rate(1_000, 0)
    assert bucket.allowance(5) == 5
