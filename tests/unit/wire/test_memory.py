import pyarrow as pa
import pytest

from pydanube.wire.memory import allocate, put_before


@pytest.mark.parametrize("length", [1, 63, 64, 65, 1_000_003])
def test_the_end_of_a_messages_memory_is_aligned(length):
    room = allocate(length)
    assert (len(room), room.readonly) == (length, False)
    assert (pa.py_buffer(room).address + length) % 64 == 0


def test_without_room_there_is_no_memory_and_no_error():
    assert allocate(1 << 60) is None


def test_what_is_put_before_the_end_follows_directly_upon_it():
    room = allocate(20)
    room[:] = b"a longer head" + b"1234567"
    end = room[12:]
    end[:] = b"12345678"
    together = put_before(b"head", end)
    assert together == b"head12345678"
    assert together.readonly
    assert together.obj is room.obj


def test_there_is_room_for_more_than_was_there():
    room = allocate(8)
    room[:] = b"12345678"
    assert put_before(b"h" * 64, room) == b"h" * 64 + b"12345678"


@pytest.mark.parametrize(
    "end",
    [b"12345678", memoryview(b"12345678"), allocate(8).toreadonly(), allocate(7)],
    ids=["bytes", "a view of bytes", "not to be written to", "not aligned"],
)
def test_other_memory_is_left_alone(end):
    before = bytes(end)
    assert put_before(b"head", end) is None
    assert bytes(end) == before


def test_a_head_without_room_is_not_written():
    room = allocate(56)
    room[:] = b"x" * 56
    size = len(memoryview(room.obj))
    assert put_before(bytes(size - 55), room) is None
    assert put_before(b"y" * (size - 56), room) == b"y" * (size - 56) + b"x" * 56
    assert room == b"x" * 56
