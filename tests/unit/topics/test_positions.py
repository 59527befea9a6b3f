"""Start positions, over a log that is nothing but batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.errors import InvalidRequest
from pydanube.model.batch import Batch
from pydanube.model.ids import Offset
from pydanube.model.message import Message
from pydanube.storage.topic_log import Piece
from pydanube.topics.positions import DISORDER_MS, offset_at, start_offset

UNIT_MS = 10 * DISORDER_MS
"""So far apart that what clocks may differ by does not matter."""


class Log:
    """Batches of messages with the given times, in units; a number is that many lost messages."""

    def __init__(self, first: int, *batches: list[int] | int) -> None:
        self.first_offset = Offset(first)
        self.pieces: list[Piece] = []
        self.times: dict[int, int] = {}
        self.reads = 0
        at = first
        for times in batches:
            if isinstance(times, int):
                at += times
                continue
            batch = Batch.gather(
                [
                    Message(payload=b"", publish_time_ms=each * UNIT_MS, producer_name="p")
                    for each in times
                ]
            )
            self.pieces.append(Piece(Offset(at), batch, 0, batch.count))
            self.times |= {at + row: each for row, each in enumerate(times)}
            at += batch.count
        self.durable_end = Offset(at)

    async def read(self, start: Offset, end: Offset, *, bytes_max: int) -> list[Piece]:
        self.reads += 1
        found = (piece.between(start, end) for piece in self.pieces if piece.end > start)
        return [piece for piece in found if piece.start < end][:1]


async def at(log: Log, time_ms: int) -> int:
    return await offset_at(log, time_ms * UNIT_MS)  # type: ignore[arg-type]


async def test_a_time_is_found_between_and_within_batches() -> None:
    log = Log(10, [5, 5, 7], [8], [8, 20, 30])
    expected = {0: 10, 5: 10, 6: 12, 7: 12, 8: 13, 9: 15, 20: 15, 21: 16, 30: 16, 31: 17}
    assert {time: await at(log, time) for time in expected} == expected


async def test_a_topic_without_messages_begins_where_it_ends() -> None:
    assert await at(Log(4), 1) == 4


@given(
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4) | st.integers(1, 3), max_size=12),
    st.integers(0, 31),
)
async def test_times_that_grow_are_found_exactly(parts: list[list[int] | int], time: int) -> None:
    grown = sorted(each for part in parts if isinstance(part, list) for each in part)
    values = iter(grown)
    batches = [[next(values) for _ in part] if isinstance(part, list) else part for part in parts]
    log = Log(3, *batches)
    found = await at(log, time)
    later = [offset for offset, each in log.times.items() if each >= time]
    earlier = [offset for offset, each in log.times.items() if each < time]
    assert all(found <= offset for offset in later)
    assert all(found > offset for offset in earlier)
    assert log.reads <= 10


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), max_size=8))
async def test_times_that_do_not_grow_still_give_an_offset_of_the_topic(
    batches: list[list[int]],
) -> None:
    log = Log(3, *batches)
    for time in range(11):
        assert 3 <= await at(log, time) <= log.durable_end


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        (None, 13),
        ("latest", 13),
        ("earliest", 10),
        ("offset:11", 11),
        ("offset:0", 10),
        ("offset:99", 13),
        (f"time:{6 * UNIT_MS}", 11),
    ],
)
async def test_start_positions_are_read(text: str | None, offset: int) -> None:
    log = Log(10, [5, 6, 7])
    assert await start_offset(log, text) == offset  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "first", "offset:", "offset:-1", "offset:²", "time:now"])
async def test_what_is_no_start_position_is_refused(text: str) -> None:
    if not text:
        text = " "
    with pytest.raises(InvalidRequest, match="none of earliest"):
        await start_offset(Log(0), text)  # type: ignore[arg-type]
