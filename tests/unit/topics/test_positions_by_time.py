import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.errors import InvalidRequest
from pydanube.model.batch import Batch
from pydanube.model.ids import Offset
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.storage.topic_log import TopicLog
from pydanube.topics.positions import DISORDER_MS, offset_at, start_offset
from tests.support.journals import instant_disk, rotating_at
from tests.support.served_topic import ServedTopic, message, served


async def publish(topic: ServedTopic, *batches: list[int]) -> TopicLog:
    for times in batches:
        rows = [message(publish_time_ms=time) for time in times]
        await topic.put(Batch.gather(rows)).over
    assert topic.topic.log is not None
    return topic.topic.log


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (None, 6),
        ("latest", 6),
        ("earliest", 0),
        ("offset:0", 0),
        ("offset:4", 4),
        ("offset:99", 6),
        ("time:0", 0),
        ("time:10", 0),
        ("time:11", 1),
        ("time:20", 1),
        ("time:21", 4),
        ("time:40", 5),
        ("time:41", 6),
        (f"time:{2**62}", 6),
    ],
)
async def test_positions_are_found(position: str | None, expected: int) -> None:
    async with served(instant_disk()) as topic:
        log = await publish(topic, [10, 20], [20, 20, 30], [40])
        assert await start_offset(log, position) == expected


async def test_in_an_empty_topic_every_position_is_the_beginning() -> None:
    async with served(instant_disk()) as topic:
        log = await publish(topic)
        for position in (None, "latest", "earliest", "offset:5", "time:0", "time:99"):
            assert await start_offset(log, position) == 0


@pytest.mark.parametrize("position", ["", "now", "offset:", "offset:-1", "time:1.5", "time:²"])
async def test_what_is_no_position_is_refused(position: str) -> None:
    async with served(instant_disk()) as topic:
        log = await publish(topic)
        if not position:
            assert await start_offset(log, position) == 0
            return
        with pytest.raises(InvalidRequest, match="start position"):
            await start_offset(log, position)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3 * DISORDER_MS), min_size=1, max_size=4), max_size=8),
    st.integers(-1, 4 * DISORDER_MS),
    st.booleans(),
)
def test_the_first_message_of_a_time_is_found_though_clocks_differ(
    batches: list[list[int]], time_ms: int, cached: bool
) -> None:
    # No message is older by more than the limit than any before it.
    latest = 0
    orderly: list[list[int]] = []
    for batch in batches:
        times = []
        for time in batch:
            times.append(max(time, latest - DISORDER_MS))
            latest = max(latest, times[-1])
        orderly.append(times)
    every = [time for batch in orderly for time in batch]
    expected = next((at for at, time in enumerate(every) if time >= time_ms), len(every))

    async def main(_: Randomness) -> None:
        config = rotating_at(3_000, tail_cache_bytes_max=10**6 if cached else 0)
        async with served(instant_disk(), config=config) as topic:
            log = await publish(topic, *orderly)
            assert await offset_at(log, time_ms) == Offset(expected)

    run_simulated(main, 0)
