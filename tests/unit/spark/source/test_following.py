"""How far the next batch of a stream goes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.spark.errors import DataLoss
from pydanube.spark.source.following import Sizing, next_offset
from pydanube.spark.source.offsets import StreamOffset, initial_offset
from pydanube.spark.source.planning import Limits, TopicState, plan_pieces


def topic(frontier: int, earliest: int = 0, life: str = "1") -> TopicState:
    return TopicState(id=life, earliest=earliest, frontier=frontier, row_bytes=100)


def at(grid: int = 64, **positions: int) -> StreamOffset:
    return StreamOffset(grid=grid, ids=dict.fromkeys(positions, "1"), next=positions)


def follow(start, states, *, strict=True, target=None, limits=None):
    return next_offset(
        start,
        states,
        selected=lambda name: True,
        target=target,
        limits=limits or Limits(),
        sizing=Sizing(task_bytes=6400),
        strict=strict,
    )


def test_nothing_new_is_the_start_itself():
    start = at(a=5)
    assert follow(start, {"a": topic(5)}) is start


def test_a_batch_goes_as_far_as_there_is():
    end = follow(at(a=5), {"a": topic(9)})
    assert (end.next, end.from_, end.grid) == ({"a": 9}, {}, 64)


def test_the_first_batch_says_where_it_begins():
    end = follow(
        initial_offset({"a": 3, "b": 7}, {"a": "1", "b": "1"}), {"a": topic(9), "b": topic(7)}
    )
    assert end.from_ == {"a": 3, "b": 7}
    assert end.next == {"a": 9, "b": 7}


def test_a_new_topic_enters_at_its_earliest_offset_once_it_has_rows():
    start = at(a=5)
    assert follow(start, {"a": topic(5), "b": topic(0)}) is start
    end = follow(start, {"a": topic(5), "b": topic(9, earliest=4)})
    assert (end.from_, end.next) == ({"b": 4}, {"a": 5, "b": 9})


def test_a_target_is_not_passed():
    target = {"a": 7}
    end = follow(at(a=5), {"a": topic(100), "b": topic(50)}, target=target)
    assert end.next == {"a": 7}
    assert follow(end, {"a": topic(200), "b": topic(60)}, target=target) is end


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ({"a": topic(100, earliest=8)}, "the first is 8"),
        ({}, "the topic is gone"),
        ({"a": topic(100, life="2")}, "created anew"),
        ({"a": topic(3)}, "it ends at 3"),
    ],
)
def test_what_is_lost_is_an_error_that_names_the_remedies(states, words):
    with pytest.raises(DataLoss) as loss:
        follow(at(a=5), states)
    assert words in str(loss.value)
    assert "failOnDataLoss=false" in str(loss.value)


def test_what_is_lost_can_be_passed_over():
    end = follow(at(a=5), {"a": topic(20, earliest=8)}, strict=False)
    assert (end.from_, end.next) == ({"a": 8}, {"a": 20})
    end = follow(at(a=5), {"a": topic(20, life="2")}, strict=False)
    assert (end.from_, end.ids, end.next) == ({"a": 0}, {"a": "2"}, {"a": 20})
    end = follow(at(a=5, b=1), {"b": topic(2)}, strict=False)
    assert end.next == {"b": 2}


def test_a_topic_that_is_not_selected_any_more_keeps_its_place():
    start = at(a=5, b=1)
    end = next_offset(
        start,
        {"a": topic(9)},
        selected=lambda name: name == "a",
        target=None,
        limits=Limits(),
        sizing=Sizing(task_bytes=100),
        strict=True,
    )
    assert end.next == {"a": 9, "b": 1}


@given(st.lists(st.integers(0, 5), max_size=8), st.integers(1, 7), st.integers(0, 3))
def test_batches_cover_everything_once_whatever_the_limits(published, rows_max, first):
    start: StreamOffset = initial_offset({"a": first}, {"a": "1"})
    frontier, seen = first, []
    for more in [*published, 0, 0, 0, 0, 0, 0, 0, 0]:
        frontier += more
        end = follow(start, {"a": topic(frontier)}, limits=Limits(rows=rows_max))
        if end is start:
            continue
        for piece in plan_pieces(start, end):
            seen += range(piece.start, piece.end)
        start = end
    assert seen == list(range(first, first + len(seen)))
    assert len(seen) >= min(frontier - first, rows_max)
