import pytest

from pydanube.wire.http2.flow import ConnectionWindow, LargeRequests, grown


def test_a_window_grows_up_to_its_limit_and_no_further():
    assert grown(-5, 10) == 5
    assert grown(2**31 - 2, 1) == 2**31 - 1
    assert grown(2**31 - 1, 1) is None


def test_a_connections_window_asks_to_be_refilled_when_half_is_used():
    window = ConnectionWindow()
    assert window.widen(100_000) == 100_000 - 65_535
    window.left -= 60_000
    assert window.left < window.low
    assert window.refill() == 60_000
    assert window.left == 100_000


def test_a_window_that_was_given_cannot_be_taken_back():
    with pytest.raises(AssertionError):
        ConnectionWindow().widen(10)


def test_large_requests_are_served_first_come_first_served():
    large = LargeRequests(100)
    for stream_id, count in ((1, 60), (3, 50), (5, 10)):
        large.ask(stream_id, count)
    # The third would fit, but if it went first the second might wait for ever.
    assert list(large.give()) == [(1, 60)]
    large.end(1)
    assert list(large.give()) == [(3, 50), (5, 10)]


def test_a_request_larger_than_everything_gets_it_when_it_is_alone():
    large = LargeRequests(100)
    large.ask(1, 10)
    assert list(large.give()) == [(1, 10)]
    large.ask(3, 1_000)
    assert list(large.give()) == []
    large.end(1)
    assert list(large.give()) == [(3, 1_000)]


def test_who_was_given_a_part_never_waits_for_the_others():
    large = LargeRequests(100)
    large.ask(1, 90)
    assert list(large.give()) == [(1, 90)]
    large.ask(3, 50)
    large.ask(1, 20)
    assert list(large.give()) == [(1, 20)]
    large.end(1)
    assert list(large.give()) == [(3, 50)]


def test_who_leaves_the_line_gives_its_place_up():
    large = LargeRequests(100)
    large.ask(1, 100)
    assert list(large.give()) == [(1, 100)]
    large.ask(3, 100)
    large.ask(5, 100)
    large.end(3)
    large.end(1)
    assert list(large.give()) == [(5, 100)]
