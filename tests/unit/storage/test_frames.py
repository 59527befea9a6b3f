import pytest

from pydanube.storage.frames import (
    PREFIX_BYTES,
    Frame,
    FrameScan,
    Stop,
    encode_frame,
    find_frame,
)


def log_of(*payloads: bytes, base: int = 0) -> bytes:
    data = b""
    for payload in payloads:
        data += b"".join(encode_frame(7, base + len(data), base, [payload]))
    return data


def scan(data: bytes, base: int = 0) -> tuple[list[Frame], FrameScan]:
    frames = FrameScan(data, base)
    return list(frames), frames


def crc32c(data: bytes) -> int:
    """The definition, bit by bit: reflected polynomial 0x1EDC6F41, inverted at both ends."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def test_a_frame_is_laid_out_as_documented() -> None:
    (data,) = encode_frame(3, 0x1122, 0x1100, [b"ab", b"c"], version=1, flags=0x0201)
    assert data[:4] == b"DNK1"
    assert data[4:8] == crc32c(data[8:]).to_bytes(4, "little")
    assert data[8:32] == bytes.fromhex("03000000 03 01 0102 2211000000000000 0011000000000000")
    assert data[32:] == b"abc"


def test_frames_come_back_in_order_with_their_places() -> None:
    data = log_of(b"one", b"", b"three", base=1000)
    frames, end = scan(data, 1000)
    assert [data[f.start : f.end] for f in frames] == [b"one", b"", b"three"]
    assert [f.position for f in frames] == [1000, 1000 + 35, 1000 + 67]
    assert (end.stop, end.at) == (Stop.END, len(data))


def test_a_big_payload_is_not_copied() -> None:
    body = bytes(10_000)
    parts = encode_frame(1, 0, 0, [b"header", body])
    assert any(part is body for part in parts)
    frames, end = scan(b"".join(parts))
    assert len(frames) == 1
    assert end.stop is Stop.END


def test_a_payload_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydanube.storage.frames.PAYLOAD_BYTES_MAX", 10)
    with pytest.raises(ValueError, match="11 bytes"):
        encode_frame(1, 0, 0, [bytes(11)])


@pytest.mark.parametrize("cut", [1, 31, 32, 34])
def test_a_cut_frame_is_incomplete_and_says_how_much_is_needed(cut: int) -> None:
    data = log_of(b"one", b"two")
    frames, end = scan(data[: 35 + cut])
    assert len(frames) == 1
    assert (end.stop, end.at) == (Stop.INCOMPLETE, 35)
    assert end.needed == (PREFIX_BYTES if cut < PREFIX_BYTES else 35)


def test_a_frame_in_another_place_is_bad() -> None:
    frames, end = scan(log_of(b"one"), base=1)
    assert not frames
    assert (end.stop, end.at) == (Stop.BAD, 0)


def test_a_length_beyond_the_limit_is_bad_not_incomplete() -> None:
    data = bytearray(log_of(b"one"))
    data[11] = 0xFF
    _, end = scan(bytes(data))
    assert end.stop is Stop.BAD


def test_the_search_finds_the_next_frame_behind_damage() -> None:
    data = bytearray(log_of(b"one", b"two", b"three", base=50))
    data[40] ^= 1
    sighting = find_frame(bytes(data), 50, 36)
    assert sighting is not None
    assert (sighting.at, sighting.size, sighting.complete) == (70, 37, True)


def test_the_search_is_not_fooled_by_a_magic_in_a_payload() -> None:
    decoy = log_of(b"decoy")  # A valid frame, but for position 0, not for where it lies.
    data = log_of(b"x" + decoy, b"last")
    sighting = find_frame(data, 0, 1)
    assert sighting is not None
    assert sighting.at == len(data) - 36


def test_the_search_reports_a_frame_that_runs_past_the_bytes() -> None:
    data = log_of(b"one", b"two")
    sighting = find_frame(data[:-1], 0, 1)
    assert sighting is not None
    assert (sighting.at, sighting.size, sighting.complete) == (35, 35, False)


def test_the_search_ends_when_nothing_is_left() -> None:
    assert find_frame(log_of(b"one"), 0, 1) is None
