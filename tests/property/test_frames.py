from hypothesis import example, given, settings
from hypothesis import strategies as st

from pydanube.storage.frames import FrameScan, Stop, encode_frame, find_frame

payloads = st.lists(st.lists(st.binary(max_size=40), max_size=3), min_size=1, max_size=6)
bases = st.integers(min_value=0, max_value=2**63)


def write(base: int, payload_parts: list[list[bytes]]) -> tuple[bytes, list[int]]:
    data, starts = b"", []
    for kind, parts in enumerate(payload_parts):
        starts.append(len(data))
        data += b"".join(encode_frame(kind, base + len(data), base, parts, flags=kind * 7))
    return data, starts


@given(bases, payloads)
def test_what_is_written_is_read(base: int, payload_parts: list[list[bytes]]) -> None:
    data, starts = write(base, payload_parts)
    scan = FrameScan(data, base)
    frames = list(scan)
    assert [data[f.start : f.end] for f in frames] == [b"".join(p) for p in payload_parts]
    assert [f.position - base for f in frames] == starts
    assert [(f.kind, f.flags) for f in frames] == [(i, i * 7) for i in range(len(frames))]
    assert scan.stop is Stop.END


@given(st.binary(max_size=64), bases)
@settings(max_examples=30)
def test_every_flipped_bit_of_a_frame_is_detected(payload: bytes, base: int) -> None:
    data, _ = write(base, [[payload]])
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << (bit % 8)
        assert not list(FrameScan(bytes(flipped), base)), f"bit {bit} went unnoticed"


@given(st.integers(4_000, 4_300), st.integers(0, 5_000 * 8), bases)
@example(4_200, 95, 0)  # Its length.
def test_flipped_bits_of_long_frames_are_detected(size: int, bit: int, base: int) -> None:
    """Long ones are checked where they lie, short ones in a copy."""
    data, _ = write(base, [[bytes(size)], [b"behind"]])
    assert [frame.end - frame.start for frame in FrameScan(data, base)] == [size, 6]
    flipped = bytearray(data)
    at = bit % ((32 + size) * 8)
    flipped[at // 8] ^= 1 << (at % 8)
    assert not list(FrameScan(bytes(flipped), base))
    sighting = find_frame(bytes(flipped), base, 0)
    assert sighting is None or sighting.at > 0 or not sighting.complete


@given(bases, payloads, st.data())
def test_a_cut_log_yields_the_frames_before_the_cut(
    base: int, payload_parts: list[list[bytes]], draw: st.DataObject
) -> None:
    data, starts = write(base, payload_parts)
    cut = draw.draw(st.integers(0, len(data)))
    scan = FrameScan(data[:cut], base)
    ends = [*starts[1:], len(data)]
    assert len(list(scan)) == sum(end <= cut for end in ends)
    assert scan.at == max([0, *(end for end in ends if end <= cut)])
    assert scan.stop is (Stop.END if scan.at == cut else Stop.INCOMPLETE)


@given(bases, payloads, st.binary(max_size=50))
def test_the_search_skips_any_garbage(
    base: int, payload_parts: list[list[bytes]], garbage: bytes
) -> None:
    data, _ = write(base + len(garbage), payload_parts)
    sighting = find_frame(garbage + data, base, 0)
    assert sighting is not None
    assert sighting.complete
    assert sighting.at == len(garbage)
