import pytest

from pydanube.errors import Conflict, Corruption
from pydanube.model.ids import Offset, SubscriptionId, TopicId
from pydanube.model.progress import Progress, ProgressChange
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.storage import frames
from pydanube.storage.errors import JournalDamaged
from pydanube.storage.frames import FrameScan, Stop
from pydanube.storage.journal import quarantine as quarantine_module
from pydanube.storage.journal.contents import log_name
from pydanube.storage.journal.quarantine import QuarantineReport, quarantine
from pydanube.storage.journal.records import Kind
from tests.support.journals import DIRECTORY, Broker, broker_on, instant_disk, rotating_at

FIRST = f"{DIRECTORY}/{log_name(0)}"


def batches_in(disk: SimulatedDisk, path: str = FIRST) -> list[tuple[int, int]]:
    base = int(path.removesuffix(".log")[-20:])
    scan = FrameScan(disk.contents(path), base)
    return [(f.position - base, f.end) for f in scan if f.kind == Kind.BATCH]


def damage(disk: SimulatedDisk, path: str, number: int) -> int:
    """Destroy one batch; return how many bytes it took."""
    start, end = batches_in(disk, path)[number]
    disk.flip_bit(path, start + 50, 1)
    return end - start


async def give_up(disk: SimulatedDisk) -> QuarantineReport:
    with pytest.raises(JournalDamaged):
        await Broker.start(disk)
    return await quarantine(disk, DIRECTORY, SimulatedClock())


async def test_good_messages_stay_and_lost_offsets_hold_nothing() -> None:
    disk = instant_disk()
    async with broker_on(disk) as broker:
        for payload in (b"a", b"b", b"c", b"d"):
            await broker.append(1, payload)
    damage(disk, FIRST, 2)
    damage(disk, FIRST, 1)
    report = await give_up(disk)
    assert [(hit.topic_id, hit.start, hit.end) for hit in report.lost] == [(1, 1, 3)]
    async with broker_on(disk) as broker:
        assert await broker.read_all(1) == {0: b"a", 3: b"d"}
        log = broker.storage.topic(TopicId(1))
        # A reader in the hole gets the first piece behind it, and never one across it.
        assert (await log.read(Offset(1), Offset(9)))[0].start == 3
        assert [p.end for p in await log.read(Offset(0), Offset(9))] == [1]
        # A later batch proves where the topic continued.
        assert await broker.append(1, b"e") == 4


async def test_the_damaged_file_is_kept_untouched() -> None:
    disk = instant_disk()
    async with broker_on(disk) as broker:
        for payload in (b"a", b"b", b"c"):
            await broker.append(1, payload)
    damage(disk, FIRST, 1)
    before = disk.contents(FIRST)
    report = await give_up(disk)
    assert [disk.contents(path) for path in report.copies] == [before]
    assert report.copies[0].startswith(f"{DIRECTORY}/quarantine/{log_name(0)}.")
    assert len(disk.contents(FIRST)) == len(before)


async def test_offsets_that_may_have_been_lost_are_never_given_again() -> None:
    disk = instant_disk()
    async with broker_on(disk) as broker:
        await broker.append(1, b"a")
        await broker.append(2, b"x")
        await broker.append(2, b"y", b"z")  # This will be lost, and nothing proves how many.
        await broker.append(1, b"b")
    lost_bytes = damage(disk, FIRST, 2)
    report = await give_up(disk)
    assert [(hit.topic_id, hit.start, hit.end) for hit in report.lost] == [(2, 1, None)]
    for _ in range(2):
        async with broker_on(disk) as broker:
            assert broker.storage.topic(TopicId(1)).next_offset == 2
            assert broker.storage.topic(TopicId(2)).next_offset == 1 + lost_bytes
            # A topic that metadata knows and the journal does not may have been in the hole.
            broker.storage.keep_only({TopicId(1), TopicId(2), TopicId(3)}, set())
            assert broker.storage.topic(TopicId(3)).next_offset == lost_bytes
            # One that is created afterwards cannot.
            assert broker.storage.topic(TopicId(4)).next_offset == 0
    async with broker_on(disk) as broker:
        assert await broker.append(2, b"new") == 1 + lost_bytes
        assert await broker.read_all(2) == {0: b"x", 1 + lost_bytes: b"new"}
    async with broker_on(disk) as broker:
        assert broker.storage.topic(TopicId(2)).next_offset == 2 + lost_bytes


async def test_the_floor_outlives_the_file_with_the_hole() -> None:
    disk = instant_disk()
    async with broker_on(disk) as broker:
        await broker.append(1, b"a")
        await broker.append(3, b"lost")
        await broker.append(1, b"b")
    lost_bytes = damage(disk, FIRST, 1)
    await give_up(disk)
    # A new file begins before metadata has said which topics there are.
    async with broker_on(disk, rotating_at(1)) as broker:
        await broker.append(1, b"c")
        broker.storage.drop_topic(TopicId(1))
        for _ in range(100):
            if FIRST.rsplit("/", 1)[1] not in await disk.list_names(DIRECTORY):
                break
        else:
            pytest.fail("the file with the hole is still there")
    async with broker_on(disk) as broker:
        broker.storage.keep_only({TopicId(3)}, set())
        assert broker.storage.topic(TopicId(3)).next_offset == lost_bytes


async def test_lost_progress_is_rather_delivered_twice_than_not_at_all() -> None:
    disk = instant_disk()
    async with broker_on(disk) as broker:
        await broker.append(1, b"a")
        before = len(disk.contents(FIRST))
        await broker.create_subscription(7, 5)
        await broker.create_subscription(8, 5)
        after = len(disk.contents(FIRST))
        await broker.begin_settle(8, ProgressChange(settled=((5, 6),)))
        await broker.append(1, b"b")
    data = disk.contents(FIRST)
    disk.replace_contents(FIRST, data[:before] + bytes(after - before) + data[after:])
    await give_up(disk)
    async with broker_on(disk) as broker:
        broker.storage.keep_only({TopicId(1)}, {SubscriptionId(7), SubscriptionId(8)})
        assert broker.storage.progress(SubscriptionId(7)) == Progress(Offset(0))
        assert broker.storage.progress(SubscriptionId(8)) == Progress(Offset(0), ((5, 6),))


async def several_files(disk: SimulatedDisk) -> list[str]:
    async with broker_on(disk, rotating_at(3000)) as broker:
        await broker.create_subscription(7, 1)
        for number in range(12):
            await broker.append(1, b"%d" % number)
    names = await disk.list_names(DIRECTORY)
    return [f"{DIRECTORY}/{name}" for name in names if name.endswith(".log")]


@pytest.mark.parametrize("file_number", [0, 1, 2])
async def test_any_file_may_be_hit_anywhere(file_number: int) -> None:
    template = instant_disk()
    paths = await several_files(template)
    path = paths[file_number]
    size = len(template.contents(path))
    for start in range(0, size, 97):
        disk = instant_disk()
        await several_files(disk)
        for name in await disk.list_names(DIRECTORY):
            if name.endswith(".index"):
                await disk.remove(f"{DIRECTORY}/{name}")
        data = disk.contents(path)
        wiped = min(start + 300, size)
        disk.replace_contents(path, data[:start] + b"\xaa" * (wiped - start) + data[wiped:])
        try:
            async with broker_on(disk) as broker:
                assert file_number == 2, "only the newest file's tail may be torn"
                continue
        except JournalDamaged:
            pass
        await quarantine(disk, DIRECTORY, SimulatedClock())
        scan = FrameScan(disk.contents(path), int(path.removesuffix(".log")[-20:]))
        list(scan)
        assert scan.stop is Stop.END
        async with broker_on(disk) as broker:
            found = await broker.read_all(1)
            assert found.items() <= {n: b"%d" % n for n in range(12)}.items()
            assert len(found) >= 9
            assert broker.storage.progress(SubscriptionId(7)) is not None
            given = await broker.append(1, b"next")
            assert given >= 12
            assert (await broker.read_all(1))[given] == b"next"


async def test_a_missing_file_becomes_a_hole() -> None:
    disk = instant_disk()
    paths = await several_files(disk)
    await disk.remove(paths[1])
    await give_up(disk)
    async with broker_on(disk) as broker:
        assert list(await broker.read_all(1)) == [0, 1, 2, 3, 8, 9, 10, 11]


async def test_an_index_does_not_outlive_the_bytes_it_speaks_of() -> None:
    disk = instant_disk()
    paths = await several_files(disk)
    damage(disk, paths[0], 1)
    # The broker starts, for the file's index is sound; damage shows when the batch is read.
    async with broker_on(disk) as broker:
        with pytest.raises(Corruption):
            await broker.read_all(1)
    await quarantine(disk, DIRECTORY, SimulatedClock())
    async with broker_on(disk) as broker:
        assert list(await broker.read_all(1)) == [0, *range(2, 12)]


async def test_surplus_bytes_are_left_out() -> None:
    disk = instant_disk()
    paths = await several_files(disk)
    disk.replace_contents(paths[0], disk.contents(paths[0]) + b"more")
    report = await give_up(disk)
    assert len(report.copies) == 1
    async with broker_on(disk) as broker:
        assert await broker.read_all(1) == {n: b"%d" % n for n in range(12)}


async def test_a_hole_beyond_the_frame_limit_takes_several(monkeypatch) -> None:
    disk = instant_disk()
    async with broker_on(disk) as broker:
        await broker.append(1, b"a")
        await broker.append(1, bytes(5000))
        await broker.append(1, b"c")
    lost_bytes = damage(disk, FIRST, 1)
    for limit in (lost_bytes - 33, lost_bytes - 50, lost_bytes - 64, 1000):
        copy = instant_disk()
        await copy.make_directory(DIRECTORY)
        await (await copy.create(FIRST)).append_and_sync([disk.contents(FIRST)])
        with monkeypatch.context() as patch:
            patch.setattr(quarantine_module, "PAYLOAD_BYTES_MAX", limit)
            patch.setattr(frames, "PAYLOAD_BYTES_MAX", 6000)
            await give_up(copy)
            async with broker_on(copy) as broker:
                assert await broker.read_all(1) == {0: b"a", 2: b"c"}


async def test_nothing_is_done_to_a_sound_journal() -> None:
    disk = instant_disk()
    await several_files(disk)
    before = disk.operations
    report = await quarantine(disk, DIRECTORY, SimulatedClock())
    assert report == QuarantineReport(damaged=(), lost=(), copies=())
    assert disk.operations == before


async def test_a_running_broker_is_left_alone() -> None:
    disk = instant_disk()
    async with broker_on(disk):
        with pytest.raises(Conflict, match="stop the broker"):
            await quarantine(disk, DIRECTORY, SimulatedClock())
