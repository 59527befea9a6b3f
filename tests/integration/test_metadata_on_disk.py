"""The single-node metadata on the machine's own files and clock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pydanube.errors import Conflict, Corruption
from pydanube.metadata.local_store import LocalMetadataStore
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.system_files import SystemFiles
from pydanube.runtime.tasks import TaskScope


@asynccontextmanager
async def opened(directory: Path, log_bytes_max: int = 4_000) -> AsyncIterator[LocalMetadataStore]:
    files, tasks = SystemFiles(), TaskScope(lambda name, failure: None)
    try:
        store = await LocalMetadataStore.open(
            files, SystemClock(), tasks, str(directory), log_bytes_max=log_bytes_max
        )
        yield store
        await store.close()
    finally:
        await tasks.close()
        files.stop()


async def test_what_was_written_is_there_after_opening_again(tmp_path: Path):
    directory = tmp_path / "data" / "metadata"
    async with opened(directory) as store:
        for start in range(0, 300, 20):
            numbers = range(start, start + 20)
            await asyncio.gather(*(store.put(f"/k/{n}", b"%d" % n) for n in numbers))
        assert await store.next_id("/ids") == 1
    async with opened(directory) as store:
        assert store.revision == 300
        assert {int(entry.value) for entry in store.list("/k/")} == set(range(300))
        assert await store.next_id("/ids") == 2
    assert len(list(directory.glob("*.log"))) == 1


async def test_a_lease_ends_by_the_machines_clock(tmp_path: Path):
    async with opened(tmp_path) as store:
        await store.put("/a", b"", lease=await store.grant_lease(50))
        async with asyncio.timeout(10):
            change = await anext(store.watch("/", store.revision))
        assert (change.key, change.value) == ("/a", None)


async def test_a_directory_in_use_is_refused(tmp_path: Path):
    async with opened(tmp_path):
        with pytest.raises(Conflict, match="in use"):
            async with opened(tmp_path):
                pass


async def test_a_flipped_bit_on_disk_is_refused(tmp_path: Path):
    async with opened(tmp_path) as store:
        await store.put("/a", b"1")
        await store.put("/b", b"2")
    (log,) = tmp_path.glob("*.log")
    data = bytearray(log.read_bytes())
    data[50] ^= 4
    log.write_bytes(data)
    with pytest.raises(Corruption, match=str(log)):
        async with opened(tmp_path):
            pass
    assert log.read_bytes() == data
