"""How many rows a consumer asks for."""

from pydanube.client.credit import BYTES_MAX, CreditWindow


def test_who_takes_a_window_at_once_is_given_more_and_who_is_slow_less() -> None:
    window = CreditWindow(100, 10, 1_000)
    for turn in range(1, 10):
        window.took(window.rows, 1_000.0 + turn * 0.01)
    assert (window.rows, window.step) == (1_000, 250)
    for turn in range(1, 20):
        window.took(window.rows, 2_000.0 + turn * 5)
    assert window.rows == 10


def test_a_pace_between_quick_and_slow_changes_nothing() -> None:
    window = CreditWindow(100, 100, 1_000)
    window.took(100, 10.0)
    for turn in range(1, 20):
        window.took(100, 10.0 + turn * 0.5)
    assert window.rows == 100


def test_large_rows_are_bounded_by_their_bytes_and_one_may_always_come() -> None:
    window = CreditWindow(10_000, 10_000, 10_000)
    window.came(10, 10 * 1024 * 1024)
    assert window.rows == BYTES_MAX // (1024 * 1024)
    window.came(1, 2 * BYTES_MAX)
    assert (window.rows, window.step) == (1, 1)
    for _ in range(100):
        window.came(1_000, 100_000)
    assert window.rows == 10_000
