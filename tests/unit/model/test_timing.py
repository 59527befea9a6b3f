from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.errors import InvalidRequest
from pydanube.model.batch import Batch
from pydanube.model.message import Message
from pydanube.model.timing import MILLISECONDS_MAX, HeldBack, RowTiming, check_timing

NOW = 10_000


def batch(*rows: dict[str, str] | None, time: int = 1_000) -> Batch:
    return Batch.gather(
        [
            Message(
                payload=b"x", publish_time_ms=time + n, producer_name="p", attributes=attributes
            )
            for n, attributes in enumerate(rows)
        ]
    )


def stored(of: Batch) -> Batch:
    """The same batch as it comes back from the journal."""
    return Batch.from_bytes(of.data, of.count)


@pytest.mark.parametrize("back", [lambda b: b, stored])
def test_rows_with_a_time_of_their_own_are_found(back: Any) -> None:
    mixed = back(
        batch(
            None,
            {"colour": "blue"},
            {"x-deliver-at": "5000", "colour": "red"},
            {},
            {"a": "b", "x-deliver-after": "70", "c": "d", "x-ttl-ms": "9"},
            {"x-ttl-ms": "0"},
            {"x-deliver-at": "soon"},
        )
    )
    assert list(mixed.timings()) == [
        RowTiming(2, 5000, None),
        RowTiming(4, 1_004 + 70, 9),
        RowTiming(5, 0, 0),
    ]


def test_without_attributes_nothing_is_opened() -> None:
    plain = batch(None, None)
    assert plain.timings() == ()
    assert plain.held_back(0, 2, now_ms=NOW, ttl_ms=None) == ()
    assert plain._columns is None


def test_of_an_instant_and_a_delay_the_later_one_counts() -> None:
    both = batch({"x-deliver-at": "3", "x-deliver-after": "10"}, time=100)
    assert [timing.due_ms for timing in both.timings()] == [110]
    both = batch({"x-deliver-at": "300", "x-deliver-after": "10"}, time=100)
    assert [timing.due_ms for timing in both.timings()] == [300]


def test_a_row_is_held_back_until_it_is_due_and_not_longer() -> None:
    due = batch({"x-deliver-at": "10000"}, None, {"x-deliver-at": "10001"})
    assert due.held_back(0, 3, now_ms=9_999, ttl_ms=None) == [
        HeldBack(0, 1, 10_000),
        HeldBack(2, 3, 10_001),
    ]
    assert due.held_back(0, 3, now_ms=10_000, ttl_ms=None) == [HeldBack(2, 3, 10_001)]
    assert due.held_back(0, 2, now_ms=10_000, ttl_ms=None) == []
    assert due.held_back(0, 3, now_ms=10_001, ttl_ms=None) == []


def test_a_row_lives_as_long_as_the_shorter_of_two_times_allows() -> None:
    rows = batch(None, {"x-ttl-ms": "50"}, {"x-ttl-ms": "5000"}, None, time=1_000)
    assert rows.held_back(0, 4, now_ms=1_050, ttl_ms=None) == []
    assert rows.held_back(0, 4, now_ms=1_051, ttl_ms=None) == [HeldBack(1, 2, None)]
    assert rows.held_back(0, 4, now_ms=1_099, ttl_ms=100) == [HeldBack(1, 2, None)]
    assert rows.held_back(0, 4, now_ms=1_100, ttl_ms=100) == [HeldBack(0, 2, None)]
    assert rows.held_back(0, 4, now_ms=1_103, ttl_ms=100) == [HeldBack(0, 4, None)]
    assert rows.held_back(1, 3, now_ms=1_103, ttl_ms=100) == [HeldBack(1, 3, None)]


def test_what_is_over_is_not_waited_for() -> None:
    row = batch({"x-deliver-at": "9000", "x-ttl-ms": "10"}, time=1_000)
    assert row.held_back(0, 1, now_ms=1_009, ttl_ms=None) == [HeldBack(0, 1, 9_000)]
    assert row.held_back(0, 1, now_ms=1_010, ttl_ms=None) == [HeldBack(0, 1, None)]


@pytest.mark.parametrize("value", ["", "-1", "1.5", "soon", "\uff11", "9" * 17, str(2**53)])
@pytest.mark.parametrize("name", ["x-deliver-at", "x-deliver-after", "x-ttl-ms"])
def test_a_time_that_means_nothing_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        check_timing({name: value})
    assert batch({name: value}).timings() == ()


def test_times_at_the_limits_pass() -> None:
    check_timing({"x-deliver-at": "0", "x-ttl-ms": str(MILLISECONDS_MAX), "other": "anything"})


VALUES = st.one_of(st.none(), st.integers(0, 60).map(str), st.just("soon"))
ROWS = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "x-deliver-at": VALUES,
            "x-deliver-after": VALUES,
            "x-ttl-ms": VALUES,
            "other": st.just("1"),
        },
    ).map(lambda row: {name: value for name, value in row.items() if value is not None}),
)


def expected(row: dict[str, str] | None, time: int, now: int, ttl: int | None) -> str | int:
    """The same, for one row and in words."""
    given_ms = {name: int(value) for name, value in (row or {}).items() if value.isdecimal()}
    ttls = [each for each in (given_ms.get("x-ttl-ms"), ttl) if each is not None]
    if ttls and time + min(ttls) <= now:
        return "over"
    due = given_ms.get("x-deliver-at", 0)
    if "x-deliver-after" in given_ms:
        due = max(due, time + given_ms["x-deliver-after"])
    return due if due > now else "now"


@given(
    st.lists(ROWS, min_size=1, max_size=6),
    st.integers(0, 40),
    st.integers(0, 60),
    st.one_of(st.none(), st.integers(1, 40)),
    st.data(),
)
def test_the_columns_say_what_each_row_says(
    rows: list[dict[str, str] | None], time: int, now: int, ttl: int | None, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(rows) - 1))
    end = data.draw(st.integers(first + 1, len(rows)))
    held: dict[int, str | int] = {}
    for run in stored(batch(*rows, time=time)).held_back(first, end, now_ms=now, ttl_ms=ttl):
        for row in range(run.first_row, run.end_row):
            held[row] = "over" if run.due_ms is None else run.due_ms
    for row in range(first, end):
        assert held.pop(row, "now") == expected(rows[row], time + row, now, ttl)
    assert not held
