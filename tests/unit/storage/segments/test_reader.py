"""Reading segments: checked to the last bit, shared, bounded."""

import asyncio

import pytest
from typing_extensions import override

from pydanube.errors import Corruption
from pydanube.model.ids import Offset, TopicId
from pydanube.observability.counts import SegmentMetrics
from pydanube.runtime.randomness import SeededRandomness
from pydanube.runtime.tasks import TaskScope
from pydanube.runtime.threads import WorkerThreads
from pydanube.storage.errors import ObjectMissing, ObjectTooShort
from pydanube.storage.segments import encoding, reader
from pydanube.storage.segments.catalog import SegmentEntry, entry_for
from pydanube.storage.segments.encoding import SegmentEncoder, SegmentOrigin
from pydanube.storage.segments.reader import SegmentReader
from pydanube.storage.segments.shared_loads import SharedLoads
from tests.support.faulty_store import Cloud, FaultyStore
from tests.support.segment_rows import any_messages, in_pieces, messages_in

ORIGIN = SegmentOrigin(topic="/default/t", topic_id=TopicId(7), epoch=0)


class Store(FaultyStore):
    """Answers at once, and remembers what was asked."""

    def __init__(self) -> None:
        self.data = b""
        self.reads: list[tuple[int, int]] = []
        super().__init__(Cloud(SeededRandomness(1)))

    @override
    async def read(self, key: str, position: int, length: int) -> bytes:
        self.reads.append((position, length))
        if not self.data:
            raise ObjectMissing(self.description, key)
        if position + length > len(self.data):
            raise ObjectTooShort(self.description, key, position, length)
        return self.data[position : position + length]


class Bench:
    """One segment of 200 messages in row groups of 20, and a reader."""

    def __init__(self, tasks: TaskScope, cache_bytes: int = 10**6) -> None:
        randomness = SeededRandomness(1)
        self.messages = any_messages(randomness, 200)
        encoder = SegmentEncoder(ORIGIN, Offset(1000))
        encoder.add(in_pieces(self.messages, 1000, randomness))
        segment = encoder.finish()
        self.entry: SegmentEntry = entry_for(ORIGIN, "key", segment, 0)
        self.store = Store()
        self.store.data = segment.data
        self.metrics = SegmentMetrics()
        self._tasks = tasks
        self._workers = WorkerThreads("test", 1)
        self.forget(cache_bytes)

    def forget(self, cache_bytes: int = 10**6) -> None:
        self.reader = SegmentReader(
            self.store, self._workers, self._tasks, self.metrics, cache_bytes
        )
        self.store.reads.clear()

    async def read(self, start: int = 1000, end: int = 1200) -> list[object]:
        found = []
        at = Offset(start)
        while at < end:
            pieces = await self.reader.read(self.entry, at, Offset(end), 10**6)
            assert pieces[0].start == at
            found += messages_in(pieces)
            at = pieces[-1].end
        return found


@pytest.fixture
async def tasks():
    def failed(name: str, error: BaseException) -> None:
        raise error

    scope = TaskScope(failed)
    yield scope
    await scope.close()


@pytest.fixture(params=["whole", "in groups"])
def bench(request, monkeypatch, tasks) -> Bench:
    monkeypatch.setattr(encoding, "GROUP_ROWS_MAX", 20)
    if request.param == "in groups":
        monkeypatch.setattr(reader, "_WHOLE_BYTES_MAX", 0)
    return Bench(tasks)


async def test_any_part_is_read_back(bench: Bench) -> None:
    for start, end in ((1000, 1200), (1000, 1001), (1019, 1021), (1199, 1200), (1055, 1155)):
        assert await bench.read(start, end) == bench.messages[start - 1000 : end - 1000]


async def test_checksums_cover_every_byte_behind_the_magic(bench: Bench) -> None:
    entry = bench.entry
    assert len(entry.group_crc32c) == 10
    await bench.read()
    covered = sorted(bench.store.reads)
    ends = [position + length for position, length in covered]
    assert covered[0][0] in (0, 4)
    assert [position for position, _ in covered[1:]] == ends[:-1]
    assert ends[-1] == entry.bytes


async def test_every_flipped_bit_is_noticed(bench: Bench) -> None:
    whole = bench.store.data
    randomness = SeededRandomness(2)
    noticed = 0
    for position in range(4, len(whole), 97):
        bit = 1 << randomness.below(8)
        damaged = whole[position] ^ bit
        bench.store.data = whole[:position] + bytes([damaged]) + whole[position + 1 :]
        bench.forget()
        with pytest.raises(Corruption, match=r"CRC-32C.*Restore"):
            await bench.read()
        noticed += 1
    assert bench.metrics.reader_errors == {("fake", "crc"): noticed}


async def test_damage_hides_its_own_row_group_and_no_other(monkeypatch, tasks) -> None:
    monkeypatch.setattr(encoding, "GROUP_ROWS_MAX", 20)
    monkeypatch.setattr(reader, "_WHOLE_BYTES_MAX", 0)
    bench = Bench(tasks)
    whole = bench.store.data
    await bench.read(1040, 1041)
    third, _ = bench.store.reads[-1]
    bench.forget()
    bench.store.data = whole[: third + 50] + b"\xff\xff" + whole[third + 52 :]
    assert await bench.read(1000, 1040) == bench.messages[:40]
    with pytest.raises(Corruption):
        await bench.read(1040, 1041)
    assert await bench.read(1060, 1200) == bench.messages[60:]


async def test_a_truncated_object_and_a_missing_one_are_told_apart(bench: Bench) -> None:
    whole, bench.store.data = bench.store.data, bench.store.data[:-10]
    with pytest.raises(ObjectTooShort):
        await bench.read()
    bench.store.data = b""
    with pytest.raises(ObjectMissing):
        await bench.read()
    bench.store.data = whole
    assert len(await bench.read()) == 200, "a failure is not remembered"


async def test_what_was_read_is_kept_within_its_bytes(monkeypatch, tasks) -> None:
    monkeypatch.setattr(encoding, "GROUP_ROWS_MAX", 20)
    monkeypatch.setattr(reader, "_WHOLE_BYTES_MAX", 0)
    bench = Bench(tasks)
    await bench.read()
    asked = len(bench.store.reads)
    await bench.read()
    assert len(bench.store.reads) == asked, "all of it is in memory"
    bench.forget(cache_bytes=0)
    await bench.read(1000, 1001)
    await bench.read(1000, 1001)
    assert len(bench.store.reads) == 4, "nothing is kept"


async def test_the_first_offset_at_a_time_is_found(bench: Bench) -> None:
    for time in sorted({message.publish_time_ms for message in bench.messages}):
        for start in (1000, 1130):
            later = (
                offset
                for offset in range(start, 1200)
                if bench.messages[offset - 1000].publish_time_ms >= time
            )
            expected = next(later, None)
            assert await bench.reader.first_at_time(bench.entry, time, Offset(start)) == expected


# What is loaded once for many.


async def test_a_load_goes_on_when_its_first_reader_has_left(tasks: TaskScope) -> None:
    loads = SharedLoads[int](tasks, bytes_max=10, loads_max=1, size_of=lambda value: value)
    may_end = asyncio.Event()
    begun: list[int] = []

    async def load() -> int:
        begun.append(1)
        await may_end.wait()
        return 5

    first = asyncio.create_task(loads.get("key", load))
    second = asyncio.create_task(loads.get("key", load))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    may_end.set()
    assert await second == 5
    assert begun == [1]
    assert await loads.get("key", load) == 5
    assert loads.bytes == 5


async def test_the_oldest_goes_when_there_is_no_room(tasks: TaskScope) -> None:
    loads = SharedLoads[int](tasks, bytes_max=10, loads_max=1, size_of=lambda value: value)
    begun: list[int] = []

    async def get(value: int) -> int:
        async def load() -> int:
            begun.append(value)
            return value

        return await loads.get(value, load)

    for value in (4, 5, 4, 1, 3):
        await get(value)
    assert begun == [4, 5, 1, 3]
    assert loads.bytes == 8
    await get(4)
    assert begun == [4, 5, 1, 3], "it was used lately"
    await get(5)
    assert begun == [4, 5, 1, 3, 5]
