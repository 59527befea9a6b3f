"""Which offsets a table lacks, and when it must not go on."""

import pytest

from pydanube.errors import Corruption
from pydanube.spark.source.planning import Limits, TopicState
from pydanube.tables.errors import TableDataLoss, TableOfAnotherTopic
from pydanube.tables.state import (
    Position,
    Span,
    advanced,
    backlog,
    decode_positions,
    encode_positions,
    plan_spans,
)

NO_LIMITS = Limits()


def topic(frontier: int, *, id: str = "a", earliest: int = 0) -> TopicState:
    return TopicState(id=id, earliest=earliest, frontier=frontier, row_bytes=10)


def test_a_topic_enters_at_its_first_offset_and_goes_on_at_the_next_one() -> None:
    assert plan_spans({}, {"t": topic(1)}, {}, NO_LIMITS) == {"t": Span("a", 0, 1)}
    known = {"t": Position("a", 1)}
    assert plan_spans(known, {"t": topic(1)}, {}, NO_LIMITS) == {}
    assert plan_spans(known, {"t": topic(3)}, {}, NO_LIMITS) == {"t": Span("a", 1, 3)}


def test_a_start_counts_only_until_the_table_knows_better() -> None:
    assert plan_spans({}, {"t": topic(9)}, {"t": 5}, NO_LIMITS) == {"t": Span("a", 5, 9)}
    known = {"t": Position("a", 2)}
    assert plan_spans(known, {"t": topic(9)}, {"t": 5}, NO_LIMITS) == {"t": Span("a", 2, 9)}


def test_limits_leave_every_topic_a_share() -> None:
    topics = {"t-part-0": topic(100), "t-part-1": topic(1)}
    spans = plan_spans({}, topics, {}, Limits(rows=10))
    assert spans["t-part-1"].rows == 1
    assert 1 <= spans["t-part-0"].rows <= 10


@pytest.mark.parametrize(
    ("position", "state", "error"),
    [
        (Position("a", 1), topic(5, id="b"), TableOfAnotherTopic),
        (Position("a", 1), topic(5, earliest=2), TableDataLoss),
        (Position("a", 6), topic(5), TableDataLoss),
    ],
)
def test_a_table_never_goes_on_over_a_gap(
    position: Position, state: TopicState, error: type[Exception]
) -> None:
    with pytest.raises(error):
        plan_spans({"t": position}, {"t": state}, {}, NO_LIMITS)


def test_positions_never_go_back() -> None:
    known = {"t": Position("a", 9), "u": Position("b", 1)}
    assert advanced(known, {"t": Span("a", 2, 5)}) == known
    assert advanced(known, {"u": Span("b", 1, 4)})["u"] == Position("b", 4)


def test_positions_are_read_as_they_were_written() -> None:
    known = {"u": Position("b", 0), "t": Position("a", 2**62)}
    assert decode_positions(encode_positions(known)) == known
    with pytest.raises(Corruption, match="cannot read"):
        decode_positions("{")


def test_a_backlog_is_what_the_table_lacks() -> None:
    assert backlog({}, {"t": topic(9, earliest=4)}, {}) == (5, 50)
    assert backlog({"t": Position("a", 7)}, {"t": topic(9)}, {}) == (2, 20)
