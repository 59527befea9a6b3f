"""Tasks and batches: cut by offsets alone, shared by backlog."""

from hypothesis import given
from hypothesis import strategies as st

from pydanube.spark.source.offsets import StreamOffset, initial_offset
from pydanube.spark.source.planning import (
    WHOLE,
    Limits,
    admit,
    choose_grid,
    cut,
    plan_pieces,
)


def end_at(grid: int, begins: dict[str, int] | None = None, **positions: int) -> StreamOffset:
    ids = {name: f"id-{name}" for name in positions}
    return StreamOffset(grid=grid, from_=begins or {}, ids=ids, next=positions)


def bounds(pieces):
    return [(piece.topic, piece.start, piece.end) for piece in pieces]


def test_cuts_lie_at_multiples_of_the_grid():
    pieces = plan_pieces(end_at(0, a=3), end_at(4, a=10))
    assert bounds(pieces) == [("a", 3, 4), ("a", 4, 8), ("a", 8, 10)]


def test_offset_0_is_a_normal_offset():
    assert bounds(plan_pieces(end_at(0, a=0), end_at(4, a=1))) == [("a", 0, 1)]


def test_what_an_offset_says_of_its_start_wins_over_what_spark_says():
    asked_again = initial_offset({"a": 90}, {"a": "id-a"})
    assert bounds(plan_pieces(asked_again, end_at(64, {"a": 10}, a=20))) == [("a", 10, 20)]


def test_a_topic_may_enter_later():
    end = end_at(64, {"b": 5}, a=4, b=9)
    assert bounds(plan_pieces(end_at(64, a=4), end)) == [("b", 5, 9)]


def test_an_empty_first_batch_is_empty_when_it_is_planned_again():
    first = initial_offset({"a": 10}, {"a": "id-a"})
    asked_again = initial_offset({"a": 90}, {"a": "id-a"})
    assert plan_pieces(asked_again, first) == []


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 5))
def test_pieces_cover_a_range_once_and_in_order(start, rows, power):
    pieces = cut("a", "1", start, start + rows, 1 << power)
    assert [at for piece in pieces for at in range(piece.start, piece.end)] == list(
        range(start, start + rows)
    )


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.integers(0, 4))
def test_a_longer_range_has_the_same_cuts(start, rows, more, power):
    grid = 1 << power
    edges = {piece.start for piece in cut("a", "1", start, start + rows, grid)}
    longer = {piece.start for piece in cut("a", "1", start, start + rows + more, grid)}
    assert edges <= longer


def test_a_grid_is_a_power_of_two_that_suits_the_size_of_rows():
    def grid(**options):
        given = {"task_bytes": 64 << 20, "tasks_min": None, "split": True, **options}
        return choose_grid([(100_000, 1024)], **given)

    assert grid() == 65_536
    assert grid(task_bytes=100) == 1
    assert grid(tasks_min=10) == 8192
    assert grid(tasks_min=10**9) == 1
    assert grid(split=False) == WHOLE
    assert choose_grid([], task_bytes=1, tasks_min=None, split=True) == WHOLE


def test_shares_go_by_backlog_and_nobody_starves():
    ends = admit({"a": 0, "b": 100}, {"a": 900, "b": 110}, {"a": 1, "b": 1}, Limits(rows=91))
    assert ends == {"a": 90, "b": 101}
    ends = admit({"a": 0, "b": 0}, {"a": 10**6, "b": 1}, {"a": 1, "b": 1}, Limits(rows=10))
    assert ends["b"] == 1


def test_the_smaller_limit_wins():
    args = ({"a": 0}, {"a": 1000}, {"a": 10})
    assert admit(*args, Limits(rows=500, bytes=1000)) == {"a": 100}
    assert admit(*args, Limits(rows=50, bytes=1000)) == {"a": 50}
    assert admit(*args, Limits()) == {"a": 1000}


_positions = st.dictionaries(st.sampled_from("abc"), st.integers(0, 20), min_size=1)


@given(_positions, st.data())
def test_a_batch_never_goes_back_nor_beyond_what_there_is(starts, data):
    ends = {name: at + data.draw(st.integers(0, 20)) for name, at in starts.items()}
    limits = Limits(
        rows=data.draw(st.none() | st.integers(1, 30)),
        bytes=data.draw(st.none() | st.integers(1, 90)),
    )
    reached = admit(starts, ends, dict.fromkeys(ends, 3), limits)
    for name, at in reached.items():
        assert starts[name] <= at <= ends[name]
        assert at > starts[name] or ends[name] == starts[name], (
            "a topic with a backlog stands still"
        )
