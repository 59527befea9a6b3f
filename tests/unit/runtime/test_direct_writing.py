import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.runtime.direct_writing import ALIGNMENT, BYTES_MIN, Run, padding_before, runs_of


def memory(length: int, behind: int = 0) -> memoryview:
    """Bytes that differ from place to place, so far behind a whole block."""
    room = pa.allocate_buffer(length + 2 * ALIGNMENT)
    first = (behind - room.address) % ALIGNMENT
    view = memoryview(room).cast("B")[first : first + length]
    view[:] = bytes(n * n // 7 % 251 for n in range(length))
    return view


def joined(runs: list[Run]) -> bytes:
    return b"".join(part for run in runs for part in run.parts)


lengths = st.one_of(st.integers(0, 200), st.integers(BYTES_MIN - 2, BYTES_MIN + 3 * ALIGNMENT))


@given(
    st.lists(st.tuples(lengths, st.integers(0, ALIGNMENT - 1), st.booleans()), max_size=5),
    st.integers(0, 3 * ALIGNMENT),
)
def test_everything_is_written_once_and_what_is_direct_is_whole_blocks(
    wanted: list[tuple[int, int, bool]], start: int
) -> None:
    parts: list[bytes | memoryview] = []
    place, padded = start, 0
    for length, behind, is_padded in wanted:
        part = memory(length, behind)
        padding = padding_before(part, place) if is_padded else 0
        parts += [bytes(padding), part]
        place += padding + length
        padded += is_padded and length >= BYTES_MIN
    runs = list(runs_of(parts, start))
    assert joined(runs) == b"".join(parts)
    assert sum(run.direct for run in runs) >= padded
    at = start
    for run in runs:
        size = sum(map(len, run.parts))
        if run.direct:
            (part,) = run.parts
            assert pa.py_buffer(part).address % ALIGNMENT == 0
            assert at % ALIGNMENT == size % ALIGNMENT == 0
            assert size > BYTES_MIN - 2 * ALIGNMENT
        at += size


def test_short_parts_need_nothing_and_stay_together() -> None:
    parts = [b"a" * 10, memory(BYTES_MIN - 1), b"b"]
    assert padding_before(parts[1], 10) == 0
    (run,) = runs_of(parts, 17)
    assert not run.direct
    assert run.parts == tuple(parts)


@pytest.mark.parametrize("place", [0, 1, 4095, 4096, 70_000])
def test_padding_makes_a_part_direct(place: int) -> None:
    part = memory(BYTES_MIN, behind=123)
    padding = padding_before(part, place)
    assert (place + padding) % ALIGNMENT == 123
    assert [run.direct for run in runs_of([part], place + padding)] == [False, True, False]
