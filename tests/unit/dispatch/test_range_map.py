from hypothesis import given
from hypothesis import strategies as st

from pydanube.dispatch.range_map import RangeMap, joined

# Narrow, so that ranges touch and overlap.
STEPS = st.lists(
    st.tuples(st.sampled_from(["insert", "take", "split"]), st.integers(0, 20), st.integers(1, 6)),
    max_size=30,
)


@given(STEPS)
def test_it_holds_what_a_dict_of_offsets_would_hold(steps: list[tuple[str, int, int]]) -> None:
    ranges, model = RangeMap[int](), dict[int, int]()
    for number, (step, start, length) in enumerate(steps):
        offsets = range(start, start + length)
        if step == "insert":
            if not any(offset in model for offset in offsets):
                ranges.insert(start, start + length, number)
                model |= dict.fromkeys(offsets, number)
        elif step == "split":
            ranges.split(start)
        else:
            taken = ranges.take(start, start + length)
            assert [at for at, _, _ in taken] == sorted(at for at, _, _ in taken)
            got = {at: value for low, high, value in taken for at in range(low, high)}
            assert got == {at: model.pop(at) for at in offsets if at in model}
        held = list(ranges)
        assert {at: value for low, high, value in held for at in range(low, high)} == model
        assert ranges.count == len(model)
        assert len(ranges) == len(held)
        assert [ranges.over(at) for at in range(30)] == [model.get(at) for at in range(30)]
        assert ranges.first() == (held[0] if held else None)
    everything = ranges.take_all()
    assert sum(end - start for start, end, _ in everything) == len(model)
    assert ranges.count == 0


def test_touching_pieces_of_equal_value_become_one() -> None:
    pieces = [(0, 2, 1), (2, 3, 1), (3, 4, 2), (5, 6, 2)]
    assert joined(pieces) == [(0, 3, 1), (3, 4, 2), (5, 6, 2)]
