"""Long records lie where the disk takes them from memory; what is before them means nothing."""

import pytest

from pydanube.runtime.randomness import SeededRandomness
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.storage.config import StorageConfig
from pydanube.storage.frames import PREFIX_BYTES, Frame, FrameScan
from pydanube.storage.journal.contents import log_name
from pydanube.storage.journal.records import BATCH_HEADER, Kind
from tests.support.journals import DIRECTORY, Broker, batch_of, broker_on, instant_disk, rotating_at

FIRST = f"{DIRECTORY}/{log_name(0)}"
BLOCK_BYTES = 64
"""Of the simulated disk."""
PADDED = StorageConfig(journal_direct_bytes_min=2_000)
SHORT, LONG = b"short", b"long" * 700


def frames_of(disk: SimulatedDisk, path: str = FIRST) -> list[Frame]:
    return list(FrameScan(disk.contents(path), int(path.removesuffix(".log")[-20:])))


def bodies_of(disk: SimulatedDisk) -> list[tuple[int, int]]:
    """Where the bodies of batches begin, and how long they are."""
    return [
        (frame.start + BATCH_HEADER.size, frame.end - frame.start - BATCH_HEADER.size)
        for frame in frames_of(disk)
        if frame.kind == Kind.BATCH
    ]


async def test_long_bodies_begin_at_a_block_and_short_ones_anywhere() -> None:
    disk = instant_disk()
    payloads = [SHORT, LONG, LONG + b"!", SHORT, LONG]
    async with broker_on(disk, PADDED) as broker:
        waiting = [broker.begin_append(1, payload)[1] for payload in payloads]
        for over in waiting:
            await over
        assert await broker.read_all(1) == dict(enumerate(payloads))
    long = [start for start, length in bodies_of(disk) if length >= 2_000]
    assert len(long) == 3
    assert all(start % BLOCK_BYTES == 0 for start in long)
    assert [frame.kind for frame in frames_of(disk)].count(Kind.PADDING) <= 3
    async with broker_on(disk, PADDED) as broker:
        assert await broker.read_all(1) == dict(enumerate(payloads))


async def test_a_block_is_counted_from_where_its_file_begins() -> None:
    disk = instant_disk()
    config = rotating_at(4_000, journal_direct_bytes_min=2_000)
    async with broker_on(disk, config) as broker:
        for more in range(6):
            await broker.append(1, LONG + bytes(8 * more))
    names = [name for name in await disk.list_names(DIRECTORY) if name.endswith(".log")]
    assert {int(name[-24:-4]) % BLOCK_BYTES for name in names} > {0}
    for name in names:
        batches = [f for f in frames_of(disk, f"{DIRECTORY}/{name}") if f.kind == Kind.BATCH]
        assert all((f.start + BATCH_HEADER.size) % BLOCK_BYTES == 0 for f in batches)


async def test_where_a_body_lies_well_by_itself_nothing_is_put_before_it() -> None:
    disk = instant_disk()
    between = PREFIX_BYTES + BATCH_HEADER.size
    fitting = next(
        payload
        for payload in (LONG + bytes(more) for more in range(BLOCK_BYTES))
        if (len(batch_of(payload).data) + between) % BLOCK_BYTES == 0
    )
    async with broker_on(disk, PADDED) as broker:
        for _ in range(3):
            await broker.append(1, fitting)
    kinds = [frame.kind for frame in frames_of(disk)]
    assert kinds[-5:] == [Kind.PADDING, Kind.BATCH, Kind.BATCH, Kind.BATCH, Kind.CLOSED]


async def test_without_the_setting_frames_lie_side_by_side() -> None:
    disk = instant_disk()
    async with broker_on(disk, StorageConfig(journal_direct_bytes_min=None)) as broker:
        await broker.append(1, LONG)
    assert Kind.PADDING not in {frame.kind for frame in frames_of(disk)}


async def test_a_journal_may_end_with_padding() -> None:
    disk = instant_disk()
    broker = await Broker.start(disk, PADDED)
    await broker.append(1, SHORT)
    await broker.append(1, LONG)
    disk.kill()
    await broker.abandon()
    # Of the last group, only its first frame has reached the disk.
    last = [frame for frame in frames_of(disk) if frame.kind == Kind.PADDING][-1]
    disk.replace_contents(FIRST, disk.contents(FIRST)[: last.end + 50])
    async with broker_on(disk, PADDED) as broker:
        assert await broker.read_all(1) == {0: SHORT}
        assert await broker.append(1, LONG) == 1
    async with broker_on(disk, PADDED) as broker:
        assert await broker.read_all(1) == {0: SHORT, 1: LONG}


@pytest.mark.parametrize("seed", range(20))
async def test_padding_that_is_torn_takes_nothing_with_it(seed: int) -> None:
    disk = instant_disk()
    broker = await Broker.start(disk, PADDED)
    await broker.append(1, SHORT, LONG)
    for _ in range(3):
        broker.begin_append(1, LONG)
    disk.crash(SeededRandomness(seed))
    await broker.abandon()
    async with broker_on(disk, PADDED) as broker:
        found = await broker.read_all(1)
        assert list(found.values())[:2] == [SHORT, LONG]
        assert await broker.append(1, LONG) == len(found)
