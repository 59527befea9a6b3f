import asyncio

import pytest

from pydanube.model.ids import JournalPosition
from pydanube.runtime.tasks import TaskScope
from pydanube.storage.journal import file_cache
from pydanube.storage.journal.contents import JournalFile
from pydanube.storage.journal.file_cache import STEP_BYTES, FileCache, Part, parts_between
from tests.support.journals import broker_on, instant_disk, rotating_at

KEPT_BYTES = 10 * STEP_BYTES


def file(start: int, end: int) -> JournalFile:
    return JournalFile(start=JournalPosition(start), end=JournalPosition(end), topics=set())


class WatchedFiles:
    """Files of which it is seen what is forgotten; the rest is done by others."""

    def __init__(self, files=None) -> None:
        self._files = files
        self.forgotten: list[tuple[str, int, int]] = []
        self.error: OSError | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    def __getattr__(self, name: str):
        return getattr(self._files, name)

    async def forget_cached(self, path: str, position: int, length: int) -> None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.forgotten.append((path.rsplit("/", 1)[1], position, length))


@pytest.fixture
async def tasks():
    failed = []
    scope = TaskScope(lambda name, error: failed.append(error))
    yield scope
    await scope.close()
    assert not failed


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_whole_steps_of_a_file_are_named_and_the_rest_waits() -> None:
    active = file(0, 100 * STEP_BYTES)
    parts, reached = parts_between([active], 0, 2 * STEP_BYTES + 5)
    assert parts == [Part(active.name, 0, 2 * STEP_BYTES)]
    assert reached == 2 * STEP_BYTES
    parts, reached = parts_between([active], reached, 3 * STEP_BYTES - 1)
    assert parts == []
    assert reached == 2 * STEP_BYTES


def test_a_finished_file_is_named_to_its_end_and_steps_begin_anew_in_the_next() -> None:
    first, second = file(0, STEP_BYTES + 7), file(STEP_BYTES + 7, 100 * STEP_BYTES)
    end = first.end + STEP_BYTES + 1
    parts, reached = parts_between([first, second], STEP_BYTES, end)
    assert parts == [Part(first.name, STEP_BYTES, 7), Part(second.name, 0, STEP_BYTES)]
    assert reached == second.start + STEP_BYTES


def test_files_that_are_deleted_already_are_passed_over() -> None:
    left = file(5 * STEP_BYTES, 9 * STEP_BYTES)
    parts, reached = parts_between([left], 0, 6 * STEP_BYTES)
    assert parts == [Part(left.name, 0, STEP_BYTES)]
    assert reached == 6 * STEP_BYTES


async def test_the_end_of_the_journal_stays_in_the_cache(tasks: TaskScope) -> None:
    files = WatchedFiles()
    active = file(0, 0)
    cache = FileCache(files, tasks, "/journal", [active], KEPT_BYTES)
    for step in range(1, 14):
        active.end = JournalPosition(step * STEP_BYTES)
        cache.synced(active.end)
        await settle()
    assert files.forgotten == [(active.name, n * STEP_BYTES, STEP_BYTES) for n in range(3)]


async def test_without_a_limit_nothing_is_forgotten(tasks: TaskScope) -> None:
    files = WatchedFiles()
    active = file(0, 1000 * STEP_BYTES)
    FileCache(files, tasks, "/journal", [active], None).synced(active.end)
    await settle()
    assert files.forgotten == []


async def test_one_part_at_a_time_and_none_is_missed(tasks: TaskScope) -> None:
    files = WatchedFiles()
    active = file(0, 2 * STEP_BYTES)
    cache = FileCache(files, tasks, "/journal", [active], 0)
    files.gate.clear()
    cache.synced(JournalPosition(STEP_BYTES))
    await settle()
    cache.synced(JournalPosition(2 * STEP_BYTES))
    files.gate.set()
    await settle()
    assert files.forgotten == [(active.name, 0, STEP_BYTES)]
    active.end = JournalPosition(3 * STEP_BYTES)
    cache.synced(active.end)
    await settle()
    assert files.forgotten[1:] == [(active.name, STEP_BYTES, 2 * STEP_BYTES)]


@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone"), OSError(5, "broken")])
async def test_a_failure_stops_nothing(tasks: TaskScope, error: OSError) -> None:
    files = WatchedFiles()
    active = file(0, STEP_BYTES)
    cache = FileCache(files, tasks, "/journal", [active], 0)
    files.error = error
    cache.synced(active.end)
    await settle()
    files.error = None
    active.end = JournalPosition(2 * STEP_BYTES)
    cache.synced(active.end)
    await settle()
    assert files.forgotten == [(active.name, STEP_BYTES, STEP_BYTES)]


async def test_a_journal_forgets_all_but_its_end_and_everything_stays_readable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_cache, "STEP_BYTES", 512)
    files = WatchedFiles(instant_disk())
    config = rotating_at(70_000, journal_cache_bytes_max=4_096, tail_cache_bytes_max=0)
    expected = {}
    async with broker_on(files, config) as broker:
        for number in range(400):
            payload = b"%0512d" % number
            expected[await broker.append(1, payload)] = payload
        durable = broker.storage.durable_position
        assert await broker.read_all(1) == expected
    reached = 0
    for name, position, length in files.forgotten:
        start = int(name.removeprefix("journal-").removesuffix(".log"))
        assert start + position == reached, "the parts follow each other"
        reached += length
    assert durable - 4_096 - 4 * 512 < reached <= durable - 4_096
    assert len({name for name, _, _ in files.forgotten}) > 2
