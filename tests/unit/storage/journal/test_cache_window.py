from itertools import pairwise
from pathlib import Path

import pytest

from pydanube.model.ids import JournalPosition
from pydanube.runtime.system_files import SystemFiles
from pydanube.storage.config import Rotation, StorageConfig, Wal
from pydanube.storage.journal.cache_window import STEP_BYTES, CachedRange, CacheWindow
from pydanube.storage.journal.contents import JournalFile, log_name
from tests.support.journals import DIRECTORY, broker_on, instant_disk

MIB = 1024 * 1024


def file_at(start: int, end: int) -> JournalFile:
    return JournalFile(
        start=JournalPosition(start), end=JournalPosition(end), topics=set(), prologue_whole=True
    )


def window(bytes_max: int | None, end: int = 0) -> CacheWindow:
    return CacheWindow(bytes_max, JournalPosition(end))


def test_nothing_is_forgotten_before_a_step_lies_behind_the_window() -> None:
    end = 64 * MIB + STEP_BYTES
    assert window(64 * MIB).advance([file_at(0, end)], JournalPosition(end - 1)) == []
    assert window(64 * MIB).advance([file_at(0, end)], JournalPosition(end)) == [
        CachedRange(log_name(JournalPosition(0)), 0, STEP_BYTES)
    ]


def test_every_byte_is_forgotten_once_and_in_order_across_files() -> None:
    cached = window(STEP_BYTES)
    files = [file_at(0, 0)]
    forgotten: list[tuple[int, int]] = []
    for end in range(MIB, 200 * MIB, MIB):
        if end % (40 * MIB) == 0:
            files.append(file_at(end - MIB, end))
        files[-1].end = JournalPosition(end)
        for each in cached.advance(files, JournalPosition(end)):
            (file,) = [file for file in files if log_name(file.start) == each.name]
            assert 0 <= each.start < each.end <= file.end - file.start
            forgotten.append((file.start + each.start, file.start + each.end))
    assert forgotten[0][0] == 0
    assert all(one[1] == two[0] for one, two in pairwise(forgotten))
    kept = 199 * MIB - forgotten[-1][1]
    assert STEP_BYTES <= kept < 2 * STEP_BYTES


def test_what_was_there_before_this_process_is_left_alone() -> None:
    end = 100 * MIB
    cached = window(0, end)
    assert cached.advance([file_at(0, end)], JournalPosition(end)) == []
    grown = JournalPosition(end + STEP_BYTES)
    (only,) = cached.advance([file_at(0, grown)], grown)
    assert (only.start, only.end) == (end, grown)


def test_files_that_were_removed_meanwhile_are_passed_over() -> None:
    cached = window(0)
    left = file_at(10 * MIB, 30 * MIB)
    (only,) = cached.advance([left], JournalPosition(30 * MIB))
    assert (only.name, only.start, only.end) == (log_name(left.start), 0, 20 * MIB)


def test_without_a_limit_everything_stays_cached() -> None:
    assert window(None).advance([file_at(0, 1 << 40)], JournalPosition(1 << 40)) == []


async def test_a_journal_forgets_what_is_durable_and_stays_readable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = instant_disk()
    heard: list[tuple[str, int, int]] = []

    async def forget_cached(path: str, start: int, end: int) -> None:
        assert end <= await disk.size(path)
        heard.append((path, start, end))

    monkeypatch.setattr(disk, "forget_cached", forget_cached)
    config = StorageConfig(wal=Wal(rotation=Rotation(max_bytes=12 * MIB), cached_bytes_max=MIB))
    payloads = [bytes([number]) * MIB for number in range(40)]
    async with broker_on(disk, config) as broker:
        for payload in payloads:
            await broker.append(1, payload)
        assert list((await broker.read_all(1)).values()) == payloads
    assert {path.removesuffix(".log").rpartition("/")[0] for path, _, _ in heard} == {DIRECTORY}
    assert len({path for path, _, _ in heard}) >= 2
    assert sum(end - start for _, start, end in heard) >= 2 * STEP_BYTES


async def test_forgetting_what_a_file_has_cached_changes_nothing_in_it(tmp_path: Path) -> None:
    files = SystemFiles()
    path = str(tmp_path / "journal")
    data = bytes(range(256)) * 4096
    file = await files.create(path)
    await file.append_and_sync([data])
    await files.forget_cached(path, 0, len(data) - 1)
    assert await files.read(path, 0, len(data)) == data
    await file.append_and_sync([b"more"])
    assert await files.read(path, len(data), 4) == b"more"
    await file.close()
    await files.forget_cached(str(tmp_path / "gone"), 0, 4096)
    files.stop()
