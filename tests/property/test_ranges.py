"""A RangeSet is a set of offsets, whatever is done to it."""

from hypothesis import given
from hypothesis import strategies as st

from pydanube.model.ranges import RangeSet

# Narrow, so that ranges touch, overlap and nest.
OFFSETS = st.integers(0, 30)
STEPS = st.lists(st.tuples(st.sampled_from(["add", "remove"]), OFFSETS, OFFSETS), max_size=30)


def both(steps: list[tuple[str, int, int]]) -> tuple[RangeSet, set[int]]:
    ranges, model = RangeSet(), set[int]()
    for step, start, end in steps:
        if step == "add":
            ranges.add(start, end)
            model |= set(range(start, end))
        else:
            ranges.remove(start, end)
            model -= set(range(start, end))
    return ranges, model


def offsets(pairs: list[tuple[int, int]]) -> set[int]:
    return {offset for start, end in pairs for offset in range(start, end)}


@given(STEPS)
def test_it_holds_what_a_set_would_hold(steps: list[tuple[str, int, int]]) -> None:
    ranges, model = both(steps)
    assert offsets(list(ranges)) == model
    assert ranges.count() == len(model)
    assert all((offset in ranges) == (offset in model) for offset in range(32))


@given(STEPS)
def test_its_ranges_are_sorted_and_never_touch(steps: list[tuple[str, int, int]]) -> None:
    ranges, _ = both(steps)
    flat = [bound for pair in ranges for bound in pair]
    assert flat == sorted(set(flat))
    assert ranges == RangeSet(list(ranges))


@given(STEPS, OFFSETS, OFFSETS)
def test_within_and_missing_divide_a_range(
    steps: list[tuple[str, int, int]], start: int, end: int
) -> None:
    ranges, model = both(steps)
    assert offsets(ranges.within(start, end)) == model & set(range(start, end))
    assert offsets(ranges.missing(start, end)) == set(range(start, end)) - model


@given(STEPS, OFFSETS)
def test_a_run_ends_at_the_first_offset_that_is_absent(
    steps: list[tuple[str, int, int]], offset: int
) -> None:
    ranges, model = both(steps)
    expected = offset
    while expected in model:
        expected += 1
    assert ranges.end_of_run(offset) == expected
