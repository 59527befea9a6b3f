import gzip
import tracemalloc
import zlib

import pytest

from pydanube.wire.calls import CallRefused, StatusCode, whole
from pydanube.wire.http2.grpc_framing import (
    GZIP,
    IDENTITY,
    IN_PLACE_BYTES_MIN,
    MessageReader,
    read_status_code,
    read_status_text,
    status_of_http,
    status_of_reset,
    unpack,
    write_status_text,
)
from pydanube.wire.memory import allocate
from tests.support.grpc_messages import frame_messages

MIB = 1024 * 1024


def reader(encoding=IDENTITY, size=1_000, ratio=200):
    return MessageReader(encoding, size, ratio)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 6, 100])
def test_messages_are_the_same_however_they_are_cut(step):
    messages = [b"one", b"", b"three" * 10, b"x"]
    data = frame_messages(messages)
    machine, found = reader(), []
    for start in range(0, len(data), step):
        found += machine.feed(data, start, min(start + step, len(data)))
    assert found == messages
    assert machine.held_bytes == machine.missing_bytes == 0


def test_a_reader_knows_what_it_holds_and_what_is_missing():
    machine = reader()
    data = frame_messages([bytes(100)])
    machine.feed(data, 0, 3)
    assert (machine.held_bytes, machine.missing_bytes) == (3, 0)
    machine.feed(data, 3, 45)
    assert (machine.held_bytes, machine.missing_bytes) == (40, 60)


def test_a_message_that_is_too_long_is_refused_at_its_prefix():
    with pytest.raises(CallRefused, match="1001 bytes") as refused:
        reader().feed(b"\0\0\0\x03\xe9", 0, 5)
    assert refused.value.code is StatusCode.INVALID_ARGUMENT
    assert reader().feed(frame_messages([bytes(1_000)]), 0, 1_005) == [bytes(1_000)]


def test_a_message_of_many_tiny_pieces_takes_little_more_room_than_it_is_long():
    machine = reader(size=MIB)
    tracemalloc.start()
    machine.feed(b"\0\0\x10\0\0", 0, 5)
    for _ in range(200_000):
        machine.feed(b"x", 0, 1)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 400_000


def test_a_long_message_is_given_away_in_the_pieces_it_came_in():
    machine = reader(size=MIB)
    message = bytes(range(256)) * 1_000
    data = frame_messages([message])
    first, second = data[:100_000], data[100_000:]
    assert machine.feed(first, 0, len(first)) == []
    (found,) = machine.feed(second, 0, len(second))
    assert all(part.obj is piece for part, piece in zip(found, (first, second), strict=True))
    assert whole(found) == message
    assert machine.held_bytes == machine.missing_bytes == 0


def test_a_long_message_is_put_into_memory_of_its_own():
    machine = MessageReader(IDENTITY, MIB, 200, allocate)
    message = bytes(range(256)) * 2_000
    data = frame_messages([b"short", message, b"next"])
    cut = 100_000
    assert machine.feed(data, 0, cut) == [b"short"]
    assert machine.is_within_long_message
    at = cut
    room = machine.room(200_000)
    room[:] = data[at : at + 200_000]
    assert machine.feed(room[:150_000], 0, 150_000) == []
    at += 150_000
    assert machine.room(10) == data[at : at + 10]
    assert machine.held_bytes + machine.missing_bytes == len(message)
    assert len(machine.room(MIB)) == machine.missing_bytes
    (found, following) = machine.feed(data, at, len(data))
    (only,) = found
    assert (only, only.readonly, following) == (message, False, b"next")
    assert (machine.is_within_long_message, machine.room(1)) == (False, None)
    assert machine.held_bytes == machine.missing_bytes == 0


@pytest.mark.parametrize("flag", [0, 1])
def test_memory_is_set_aside_for_long_plain_messages_alone(flag):
    def never(length):
        raise AssertionError(length)

    machine = MessageReader(GZIP, MIB, 200, never)
    size = (IN_PLACE_BYTES_MIN - 1, MIB)[flag]
    machine.feed(bytes([flag]) + size.to_bytes(4), 0, 5)
    assert machine.feed(b"x", 0, 1) == []
    assert not machine.is_within_long_message
    whole_here = frame_messages([bytes(MIB)])
    assert MessageReader(IDENTITY, MIB, 200, never).feed(whole_here, 0, len(whole_here))


def packed(message):
    body = gzip.compress(message, mtime=0)  # A time would make the names of tests differ.
    return b"\x01" + len(body).to_bytes(4) + body


def test_a_compressed_message_is_unpacked():
    data = packed(b"hello" * 20)
    assert reader(GZIP).feed(data, 0, len(data)) == [b"hello" * 20]


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        (IDENTITY, packed(b"x")),
        (GZIP, b"\x01\0\0\0\x03abc"),
        (GZIP, b"\x01\0\0\0\0"),
        (GZIP, b"\x02\0\0\0\0"),
    ],
)
def test_what_cannot_be_unpacked_is_refused(encoding, data):
    with pytest.raises(CallRefused) as refused:
        reader(encoding).feed(data, 0, len(data))
    assert refused.value.code is StatusCode.INTERNAL


@pytest.mark.parametrize("tail", [b"more", gzip.compress(b"x", mtime=0)])
def test_a_member_that_is_continued_or_cut_is_refused(tail):
    with pytest.raises(CallRefused):
        unpack(gzip.compress(b"x", mtime=0) + tail, 100, 200)
    with pytest.raises(CallRefused):
        unpack(gzip.compress(b"x", mtime=0)[:-1], 100, 200)


def test_a_message_that_expands_beyond_its_limit_is_stopped_while_it_is_unpacked():
    bomb = gzip.compress(bytes(256 * MIB), compresslevel=9)
    tracemalloc.start()
    with pytest.raises(CallRefused, match="expands") as refused:
        unpack(bomb, 4 * MIB, 10_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused.value.code is StatusCode.INVALID_ARGUMENT
    assert peak < 12 * MIB


def test_above_one_mebibyte_a_message_may_not_expand_out_of_proportion():
    bomb = gzip.compress(bytes(3 * MIB))
    with pytest.raises(CallRefused, match="expands"):
        unpack(bomb, 64 * MIB, 200)
    assert unpack(gzip.compress(bytes(MIB)), 64 * MIB, 2) == bytes(MIB)
    assert unpack(bomb, 64 * MIB, 2_000) == bytes(3 * MIB)


def test_raw_deflate_is_not_gzip():
    with pytest.raises(CallRefused):
        unpack(zlib.compress(b"hello"), 100, 200)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("plain text.", b"plain text."),
        ("100 %", b"100 %25"),
        ("späti\n", b"sp%C3%A4ti%0A"),
        (" edges ", b"%20edges%20"),
        (" ", b"%20"),
        ("~!\x7f", b"~!%7F"),
    ],
)
def test_a_status_text_is_written_as_grpc_asks_and_read_back(text, written):
    assert write_status_text(text) == written
    assert read_status_text(written) == text


def test_a_long_status_text_is_cut_between_characters():
    written = write_status_text("ä" * 5_000)
    assert len(written) <= 8_000
    assert set(read_status_text(written)) == {"ä"}


def test_any_bytes_are_read_as_some_text():
    assert read_status_text(b"%zz%f%C3") == "%zz%f\ufffd"
    assert write_status_text("\ud800") == b"?"


def test_a_status_code_that_is_none_is_unknown():
    assert read_status_code(b"5") is StatusCode.NOT_FOUND
    assert read_status_code(b"17") is StatusCode.UNKNOWN
    assert read_status_code(b"x") is StatusCode.UNKNOWN


def test_http_and_reset_codes_have_meanings_for_callers():
    assert status_of_http(503) is StatusCode.UNAVAILABLE
    assert status_of_http(418) is StatusCode.UNKNOWN
    assert status_of_reset(7) is StatusCode.UNAVAILABLE
    assert status_of_reset(8) is StatusCode.CANCELLED
    assert status_of_reset(99) is StatusCode.INTERNAL
