import pytest

from pydanube.errors import Corruption, InvalidRequest
from pydanube.model.ids import Offset, TopicId
from pydanube.runtime.randomness import SeededRandomness
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.storage.errors import JournalDamaged
from pydanube.storage.frames import FrameScan, encode_frame
from pydanube.storage.journal import survey
from pydanube.storage.journal.contents import log_name
from pydanube.storage.journal.records import Kind, encode_batch_header
from tests.support.journals import DIRECTORY, Broker, broker_on, instant_disk, rotating_at

FIRST = f"{DIRECTORY}/{log_name(0)}"


def frames_of(disk: SimulatedDisk, path: str = FIRST) -> list[tuple[int, int, Kind]]:
    """(start, end, kind) of each frame of a file, as byte offsets in it."""
    data = disk.contents(path)
    base = int(path.removesuffix(".log")[-20:])
    scan = FrameScan(data, base)
    found = [(f.position - base, f.end, Kind(f.kind)) for f in scan]
    assert scan.at == len(data)
    return found


def replace_bytes(disk: SimulatedDisk, path: str, start: int, data: bytes) -> None:
    held = disk.contents(path)
    disk.replace_contents(path, held[:start] + data + held[start + len(data) :])


async def state_of(disk: SimulatedDisk) -> dict[str, bytes | None]:
    names = await disk.list_names(DIRECTORY)
    return {name: disk.contents(f"{DIRECTORY}/{name}") for name in names}


async def crashed_after(*payloads: bytes) -> SimulatedDisk:
    """A journal that was never closed, with one group per message."""
    disk = instant_disk()
    broker = await Broker.start(disk)
    for payload in payloads:
        await broker.append(1, payload)
    disk.kill()
    await broker.abandon()
    return disk


async def closed_after(*payloads: bytes) -> SimulatedDisk:
    disk = instant_disk()
    async with broker_on(disk) as broker:
        for payload in payloads:
            await broker.append(1, payload)
    return disk


@pytest.mark.parametrize("cut", [1, 20, 40, 500])
async def test_a_torn_tail_is_cut_off(cut: int) -> None:
    disk = await crashed_after(b"a", b"b", b"c")
    disk.replace_contents(FIRST, disk.contents(FIRST)[:-cut])
    async with broker_on(disk) as broker:
        assert await broker.read_all(1) == {0: b"a", 1: b"b"}
        assert await broker.append(1, b"d") == 2
    assert [kind for *_, kind in frames_of(disk)][-2:] == [Kind.BATCH, Kind.CLOSED]


@pytest.mark.parametrize("garbage", [bytes(5000), b"\xff" * 10, b"DNK1" * 300])
async def test_garbage_behind_the_last_frame_is_cut_off(garbage: bytes) -> None:
    disk = await crashed_after(b"a")
    disk.replace_contents(FIRST, disk.contents(FIRST) + garbage)
    async with broker_on(disk) as broker:
        assert await broker.read_all(1) == {0: b"a"}
        await broker.append(1, b"b")
    async with broker_on(disk) as broker:
        assert await broker.read_all(1) == {0: b"a", 1: b"b"}


async def test_later_frames_of_a_group_that_was_not_synced_are_cut_off_with_it() -> None:
    disk = instant_disk()
    broker = await Broker.start(disk)
    await broker.append(1, b"a")
    over = [broker.begin_append(1, payload)[1] for payload in (b"b", b"c", b"d")]
    for waiter in over:
        await waiter
    disk.kill()
    await broker.abandon()
    *_, second, third, _ = frames_of(disk)
    # The third frame of the group reached the disk, the second one did not.
    replace_bytes(disk, FIRST, second[0], bytes(second[1] - second[0]))
    async with broker_on(disk) as broker:
        assert await broker.read_all(1) == {0: b"a"}
    assert third


async def test_damage_in_the_middle_is_refused_and_nothing_is_changed() -> None:
    disk = await crashed_after(b"a", b"b", b"c")
    start, end, _ = frames_of(disk)[-2]
    disk.flip_bit(FIRST, start + 100, 0)
    before = await state_of(disk)
    with pytest.raises(JournalDamaged) as caught:
        await Broker.start(disk)
    assert await state_of(disk) == before
    error = caught.value
    assert [(d.file_name, d.start, d.end) for d in error.damaged] == [(log_name(0), start, end)]
    assert [(hit.topic_id, hit.start, hit.end) for hit in error.lost] == [(1, 1, 2)]
    for text in (log_name(0), str(start), "topic 1 offsets 1 to 1", "danube journal quarantine"):
        assert text in str(error)


async def test_damage_in_the_last_group_shows_after_a_clean_stop() -> None:
    disk = await closed_after(b"a", b"b")
    start, _, kind = frames_of(disk)[-2]
    assert kind is Kind.BATCH
    disk.flip_bit(FIRST, start, 5)
    with pytest.raises(JournalDamaged, match="topic 1 perhaps from offset 1 on"):
        await Broker.start(disk)


async def test_every_bit_of_a_cleanly_closed_journal_is_guarded() -> None:
    disk = await closed_after(b"a", b"b")
    data = disk.contents(FIRST)
    closed_at, *_ = frames_of(disk)[-1]
    for position in range(0, closed_at, 7):
        disk.replace_contents(FIRST, data)
        disk.flip_bit(FIRST, position, position % 8)
        with pytest.raises(Corruption):
            await Broker.start(disk)


async def test_a_flipped_length_does_not_hide_what_follows() -> None:
    disk = await crashed_after(b"a", b"b", b"c")
    start, *_ = frames_of(disk)[-2]
    disk.flip_bit(FIRST, start + 10, 4)  # A length of about a million more.
    with pytest.raises(JournalDamaged):
        await Broker.start(disk)


@pytest.mark.parametrize("chunk", [40, 700, 1000])
async def test_frames_longer_than_a_chunk_are_read(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "CHUNK_BYTES", chunk)
    disk = await crashed_after(b"a", bytes(3000), b"c")
    async with broker_on(disk) as broker:
        assert await broker.read_all(1) == {0: b"a", 1: bytes(3000), 2: b"c"}
    start, *_ = frames_of(disk)[-3]
    disk.flip_bit(FIRST, start + 2000, 0)
    with pytest.raises(JournalDamaged):
        await Broker.start(disk)


async def journal_of_several_files() -> SimulatedDisk:
    disk = instant_disk()
    async with broker_on(disk, rotating_at(3000)) as broker:
        for number in range(12):
            await broker.append(1, b"%d" % number)
    return disk


async def log_paths(disk: SimulatedDisk) -> list[str]:
    names = await disk.list_names(DIRECTORY)
    return [f"{DIRECTORY}/{name}" for name in names if name.endswith(".log")]


async def without_indexes(disk: SimulatedDisk) -> None:
    for name in await disk.list_names(DIRECTORY):
        if name.endswith(".index"):
            await disk.remove(f"{DIRECTORY}/{name}")


async def test_a_bad_end_of_a_finished_file_is_damage() -> None:
    disk = await journal_of_several_files()
    await without_indexes(disk)
    first, *_ = await log_paths(disk)
    disk.flip_bit(first, len(disk.contents(first)) - 1, 0)
    with pytest.raises(JournalDamaged, match=r"topic 1 offsets 3 to 3"):
        await Broker.start(disk)


@pytest.mark.parametrize("bytes_missing", [10, 964])
async def test_a_finished_file_that_is_too_short_is_damage(bytes_missing: int) -> None:
    disk = await journal_of_several_files()
    first, *_ = await log_paths(disk)
    disk.replace_contents(first, disk.contents(first)[:-bytes_missing])
    with pytest.raises(JournalDamaged):
        await Broker.start(disk)


async def test_a_finished_file_that_is_too_long_is_damage() -> None:
    disk = await journal_of_several_files()
    first, *_ = await log_paths(disk)
    disk.replace_contents(first, disk.contents(first) + b"more")
    with pytest.raises(JournalDamaged):
        await Broker.start(disk)


async def test_a_missing_file_in_the_middle_is_damage() -> None:
    disk = await journal_of_several_files()
    _, second, *_ = await log_paths(disk)
    await disk.remove(second)
    with pytest.raises(JournalDamaged):
        await Broker.start(disk)


async def test_damage_in_an_indexed_file_shows_when_it_is_read() -> None:
    disk = await journal_of_several_files()
    first, *_ = await log_paths(disk)
    disk.flip_bit(first, 1500, 0)
    async with broker_on(disk) as broker:
        log = broker.storage.topic(TopicId(1))
        with pytest.raises(Corruption, match=r"topic 1 that begins at offset 1 .*quarantine"):
            await log.read(Offset(0), Offset(9))
        assert (await log.read(Offset(2), Offset(3)))[0].start == 2


async def test_a_newest_file_that_was_never_used_is_removed() -> None:
    for kept in (0, 10, 40, 130):
        disk = await journal_of_several_files()
        newest = (await log_paths(disk))[-1]
        previous = (await log_paths(disk))[-2]
        disk.replace_contents(newest, disk.contents(newest)[:kept])
        async with broker_on(disk, rotating_at(3000)) as broker:
            assert list(await broker.read_all(1)) == list(range(8))
            assert await broker.append(1, b"again") == 8
        assert previous in await log_paths(disk)


async def test_a_damaged_file_before_an_unused_one_is_not_taken_for_torn() -> None:
    disk = await journal_of_several_files()
    *_, previous, newest = await log_paths(disk)
    disk.replace_contents(newest, b"")
    disk.flip_bit(previous, len(disk.contents(previous)) - 1, 0)
    with pytest.raises(JournalDamaged):
        await Broker.start(disk)


async def test_files_of_two_journals_do_not_mix() -> None:
    disk = await journal_of_several_files()
    await without_indexes(disk)
    second = (await log_paths(disk))[1]
    start = int(second.removesuffix(".log")[-20:])
    _, header_end, _ = frames_of(disk, second)[0]
    # The same header but for the journal's id, made one longer, and the time, made one shorter.
    header = disk.contents(second)[32:header_end]
    header = header.replace(b'"journal":"', b'"journal":"f')[:-2] + b"}"
    frame = encode_frame(Kind.FILE_HEADER, start, start, [header])
    replace_bytes(disk, second, 0, b"".join(frame))
    with pytest.raises(InvalidRequest, match="belongs to journal f"):
        await Broker.start(disk)


async def test_a_file_that_only_has_the_name_is_refused_and_kept() -> None:
    disk = instant_disk()
    await disk.make_directory(DIRECTORY)
    file = await disk.create(FIRST)
    await file.append_and_sync([b"my diary"])
    with pytest.raises(InvalidRequest, match="not a journal file"):
        await Broker.start(disk)
    assert disk.contents(FIRST) == b"my diary"


@pytest.mark.parametrize(("kind", "version"), [(99, 1), (Kind.BATCH, 2)])
async def test_frames_from_the_future_are_refused(kind: int, version: int) -> None:
    disk = await closed_after(b"a")
    end = len(disk.contents(FIRST))
    frame = encode_frame(kind, end, end, [bytes(100)], version=version)
    disk.replace_contents(FIRST, disk.contents(FIRST) + b"".join(frame))
    with pytest.raises(InvalidRequest, match="does not know"):
        await Broker.start(disk)


async def test_an_offset_with_two_values_is_refused() -> None:
    disk = await closed_after(b"a", b"b")
    end = len(disk.contents(FIRST))
    header = encode_batch_header(1, 0, 1, 1, 0, None)
    frame = encode_frame(Kind.BATCH, end, end, [header, b"body"])
    disk.replace_contents(FIRST, disk.contents(FIRST) + b"".join(frame))
    with pytest.raises(Corruption, match="contradicts itself"):
        await Broker.start(disk)


@pytest.mark.parametrize("seed", range(20))
async def test_what_a_killed_process_left_unsynced_is_durable_before_it_is_shown(seed: int) -> None:
    disk = instant_disk()
    broker = await Broker.start(disk)
    disk.slow("sync", 1000)
    broker.begin_append(1, b"written")
    while disk.contents(FIRST).count(b"written") == 0:
        await disk.exists(FIRST)
    disk.kill()
    disk.slow("sync", 0)
    await broker.abandon()
    broker = await Broker.start(disk)
    assert await broker.read_all(1) == {0: b"written"}
    disk.crash(SeededRandomness(seed))
    await broker.abandon()
    async with broker_on(disk) as broker:
        assert await broker.read_all(1) == {0: b"written"}


async def test_an_interrupted_rewrite_is_finished() -> None:
    disk = await crashed_after(b"a", b"b", b"c")
    whole = disk.contents(FIRST)
    start, *_ = frames_of(disk)[-1]
    for kept in (start, start + 100, len(whole)):
        disk.replace_contents(FIRST, whole[:kept])
        rewrite = await disk.create(f"{DIRECTORY}/journal-{start:020}.rewrite")
        await rewrite.append_and_sync([whole[start:]])
        async with broker_on(disk) as broker:
            assert await broker.read_all(1) == {0: b"a", 1: b"b", 2: b"c"}
        assert await disk.list_names(DIRECTORY) == [log_name(0), "journal.lock"]


async def test_a_damaged_rewrite_is_refused() -> None:
    disk = await crashed_after(b"a", b"b")
    start, *_ = frames_of(disk)[-1]
    rewrite = await disk.create(f"{DIRECTORY}/journal-{start:020}.rewrite")
    await rewrite.append_and_sync([disk.contents(FIRST)[start:-1]])
    before = await state_of(disk)
    with pytest.raises(Corruption, match="rewrite is damaged"):
        await Broker.start(disk)
    assert await state_of(disk) == before


async def test_leftovers_of_a_crash_are_removed() -> None:
    disk = await closed_after(b"a")
    for name in ("journal-00000000000000000777.index", "anything.tmp"):
        await (await disk.create(f"{DIRECTORY}/{name}")).close()
    async with broker_on(disk):
        names = await disk.list_names(DIRECTORY)
    assert names == [log_name(0), "journal.lock"]
