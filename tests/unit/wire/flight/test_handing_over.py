"""Batches in shared memory: no place is given twice at a time, and nothing is read beyond one."""

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pydanube.errors import InvalidRequest, Unavailable
from pydanube.wire.flight.descriptors import MemoryPlace
from pydanube.wire.flight.framing import encapsulate
from pydanube.wire.flight.handing_over import (
    BATCH_BYTES_MIN,
    HandedOver,
    Ring,
    is_readable,
    open_memory,
    take_over,
)

SIZE = 1024
LIMIT = 16 * 1024 * 1024


FEW = 5 * 64
"""So small a ring is often full, and often begun anew."""


@given(st.lists(st.sampled_from([None, None, None, 1, 64, 64, 65, 192, 320, 321]), max_size=60))
@example([64, 64, 192, None, 64, 64])
@example([320, None, 320, 1])
def test_places_never_overlap_and_come_back_in_order(steps):
    ring = Ring(FEW)
    taken: list[tuple[int, int]] = []
    for length in steps:
        if length is None:
            if taken:
                taken.pop(0)
                ring.give_back()
            continue
        start = ring.take(length)
        if start is None:
            assert taken or length > FEW, "an empty ring has room"
            continue
        assert start >= 0
        assert start + length <= FEW
        assert all(start + length <= first or start >= last for first, last in taken)
        taken.append((start, start + length))


def test_a_ring_is_used_to_its_end_and_from_its_beginning_again():
    ring = Ring(SIZE)
    assert [ring.take(256) for _ in range(5)] == [0, 256, 512, 768, None]
    ring.give_back()
    assert ring.take(320) is None
    assert ring.take(200) == 0
    assert ring.take(64) is None
    ring.give_back()
    assert ring.take(256) == 256


def rows(count: int) -> pa.RecordBatch:
    payloads = pa.array([bytes([number % 251]) * 1024 for number in range(count)], pa.binary())
    return pa.record_batch({"payload": payloads})


def read(memory: memoryview, place: MemoryPlace, schema: pa.Schema) -> pa.RecordBatch:
    message = encapsulate(*take_over(memory, place, LIMIT))
    return pa.ipc.read_record_batch(pa.py_buffer(message), schema)


def test_batches_come_out_as_they_went_in_round_after_round():
    handed = HandedOver()
    memory = open_memory(handed.name)
    for number in range(200):
        sent = rows(1000 + number)
        place = handed.put(sent)
        assert place is not None
        assert read(memory, place, sent.schema) == sent
        handed.answered()


def test_a_batch_stays_until_it_is_answered():
    handed = HandedOver()
    memory = open_memory(handed.name)
    sent = []
    while (place := handed.put(batch := rows(4000 + len(sent)))) is not None:
        sent.append((batch, place))
    assert len(sent) > 8, "what a task of Spark has on its way finds room"
    for batch, place in sent:
        assert read(memory, place, batch.schema) == batch


def test_short_batches_are_sent():
    assert HandedOver().put(rows(BATCH_BYTES_MIN // 1024 - 8)) is None


def test_what_the_owner_does_later_does_not_change_what_was_taken():
    handed = HandedOver()
    memory = open_memory(handed.name)
    sent = rows(1000)
    place = handed.put(sent)
    assert place is not None
    header, body = take_over(memory, place, LIMIT)
    handed.answered()
    assert handed.put(rows(999)) is not None
    assert pa.ipc.read_record_batch(pa.py_buffer(encapsulate(header, body)), sent.schema) == sent


@pytest.mark.parametrize(
    ("start", "length"), [(0, LIMIT + 1), (48 << 20, 16), ((48 << 20) - 8, 16), (2**62, 2**20)]
)
def test_places_outside_the_memory_are_refused(start, length):
    handed = HandedOver()
    with pytest.raises(InvalidRequest, match="not within"):
        take_over(open_memory(handed.name), MemoryPlace(start=start, length=length), LIMIT)


@pytest.mark.parametrize(
    "begins",
    [
        bytes(8),
        b"\xff" * 8,
        b"\xff\xff\xff\xff\x00\x00\x00\x01",
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
    ],
)
def test_memory_without_a_message_is_refused(begins):
    memory = memoryview(begins + bytes(1016))
    with pytest.raises(InvalidRequest, match="no Arrow message"):
        take_over(memory, MemoryPlace(start=0, length=1024), LIMIT)


def test_memory_that_is_not_there_is_told():
    handed = HandedOver()
    assert is_readable(handed.name)
    name = handed.name
    del handed
    assert not is_readable(name), "it is gone with its owner"
    with pytest.raises(Unavailable, match="action share"):
        open_memory("1/2/" + "0" * 32)
