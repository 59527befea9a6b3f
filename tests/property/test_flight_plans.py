"""A plan covers its range exactly, in order, and no piece reaches over a segment's end."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pydanube.broker.servicers.flight_plan import PIECES_MAX, plan_pieces
from pydanube.model.ids import Offset, TopicId
from pydanube.storage.segments.catalog import SegmentEntry


def segment(base: int, end: int, *, lost: bool = False, raw_bytes: int = 1_000) -> SegmentEntry:
    return SegmentEntry(
        key="" if lost else f"segment-{base}",
        topic="/default/orders",
        topic_id=TopicId(1),
        base=Offset(base),
        end=Offset(end),
        rows=end - base,
        bytes=100,
        raw_bytes=raw_bytes,
        crc32c=0,
        min_time_ms=0,
        max_time_ms=0,
        epoch=0,
        schema_ids=None,
        created_ms=0,
    )


@st.composite
def histories(draw: st.DrawFn) -> list[SegmentEntry]:
    edges = sorted(draw(st.sets(st.integers(0, 60), max_size=8)))
    return [
        segment(low, high, lost=draw(st.booleans()), raw_bytes=draw(st.integers(0, 500)))
        for low, high in pairwise(edges)
    ]


@given(
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(1, 100),
    st.integers(1, 2_000),
    histories(),
)
def test_pieces_lie_side_by_side_and_within_segments(first, last, row_bytes, piece_bytes, segments):
    start, end = min(first, last), max(first, last)
    pieces = plan_pieces(start, end, row_bytes, piece_bytes, segments)
    offsets = [offset for piece in pieces for offset in range(piece.start, piece.end)]
    assert offsets == list(range(start, end))
    assert all(piece.rows > 0 and piece.bytes >= 0 for piece in pieces)
    for piece in pieces:
        touched = [each for each in segments if each.base < piece.end and piece.start < each.end]
        assert len(touched) <= 1
        assert piece.segment == (touched[0].key or None if touched else None)
        if touched:
            assert touched[0].base <= piece.start
            assert piece.end <= touched[0].end
    again = plan_pieces(start, end, row_bytes, piece_bytes, segments)
    assert again == pieces


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(1, 10**6), st.integers(1, 10**9))
def test_a_plan_never_has_too_many_pieces(start, rows, row_bytes, piece_bytes):
    pieces = plan_pieces(start, start + rows, row_bytes, piece_bytes)
    assert len(pieces) <= PIECES_MAX + 1
    assert sum(piece.rows for piece in pieces) == rows


def test_a_piece_is_about_as_large_as_asked_for():
    pieces = plan_pieces(0, 10_000, 100, 100_000)
    assert {piece.rows for piece in pieces[:-1]} == {512}
