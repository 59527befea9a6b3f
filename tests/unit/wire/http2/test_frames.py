import pytest

from pydanube.wire.http2.errors import ConnectionFault, ErrorCode
from pydanube.wire.http2.frames import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    CutFrame,
    frame,
    goaway_frame,
    header_frames,
    unpadded,
)
from tests.support.http2_peers import split_frames


def test_a_frame_is_length_type_flags_stream_and_payload():
    assert frame(1, 5, 7, b"abc") == b"\x00\x00\x03\x01\x05\x00\x00\x00\x07abc"


def test_goaway_names_the_last_stream_the_code_and_the_reason():
    payload = b"\0\0\0\x09" + b"\0\0\0\x0b" + b"calm"
    assert goaway_frame(9, ErrorCode.ENHANCE_YOUR_CALM, "calm") == frame(7, 0, 0, payload)


@pytest.mark.parametrize("length", [0, 1, 10, 11, 20, 21, 35])
def test_a_long_block_continues_and_only_its_last_frame_ends_it(length):
    block = bytes(range(length))
    frames = split_frames(header_frames(3, block, END_STREAM, 10))
    assert b"".join(found.payload for found in frames) == block
    assert [found.kind for found in frames] == [HEADERS] + [CONTINUATION] * (len(frames) - 1)
    assert [bool(found.flags & END_HEADERS) for found in frames] == [False] * (len(frames) - 1) + [
        True
    ]
    assert frames[0].flags & END_STREAM
    assert all(len(found.payload) <= 10 for found in frames)


@pytest.mark.parametrize(
    ("payload", "content"), [(b"\x00abc", b"abc"), (b"\x02abc\0\0", b"abc"), (b"\x01\0", b"")]
)
def test_padding_is_taken_off(payload, content):
    start, end = unpadded(b"x" + payload, 1, 1 + len(payload))
    assert (b"x" + payload)[start:end] == content


def test_padding_that_leaves_no_room_for_its_own_length_is_a_fault():
    with pytest.raises(ConnectionFault, match="longer than its frame") as fault:
        unpadded(b"\x02\0", 0, 2)
    assert fault.value.code is ErrorCode.PROTOCOL_ERROR
    with pytest.raises(ConnectionFault) as fault:
        unpadded(b"", 0, 0)
    assert fault.value.code is ErrorCode.FRAME_SIZE_ERROR


@pytest.mark.parametrize("payload", [b"", b"a", bytes(40)])
@pytest.mark.parametrize("step", [1, 2, 7, 100])
def test_a_cut_frame_is_whole_again_however_it_arrives(payload, step):
    whole = frame(0, 0, 1, payload)
    for first in range(1, len(whole)):
        cut = CutFrame(100)
        cut.keep(whole[:first], 0)
        for start in range(first, len(whole), step):
            assert cut.take() is None
            cut.fill(whole[start : start + step], 0)
        assert cut.take() == whole


def test_a_cut_frame_takes_no_more_than_what_completes_it():
    whole = frame(0, 0, 1, b"abcdef")
    cut = CutFrame(100)
    cut.keep(b"before" + whole[:4], 6)
    assert cut.fill(whole[4:11], 0) == 7
    assert cut.take() is None
    assert cut.fill(whole[11:] + b"next frame", 0) == 4
    assert cut.take() == whole
    assert len(cut) == 0


def test_a_frame_that_is_too_long_is_refused_at_its_header():
    cut = CutFrame(100)
    with pytest.raises(ConnectionFault) as fault:
        cut.keep(frame(0, 0, 1, bytes(101))[:9], 0)
    assert fault.value.code is ErrorCode.FRAME_SIZE_ERROR
    assert len(cut) == 9
