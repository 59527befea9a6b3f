"""Probing a store tells what went wrong first."""

import asyncio

import pytest
from typing_extensions import override

from pydanube.runtime.randomness import SeededRandomness
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.storage.errors import StoreFailed, StoreProblem
from pydanube.storage.segments.directory_store import DirectoryStore
from pydanube.storage.segments.object_store import probe_store


class BreakingStore(DirectoryStore):
    """Keeps objects until it is asked to read one; from then on everything fails."""

    def __init__(self) -> None:
        disk = SimulatedDisk(delay_seconds=(0.0, 0.0))
        super().__init__(disk, "/segments", provider="test", setting="nothing")
        self.reading = asyncio.Event()

    @override
    async def read(self, key: str, position: int, length: int) -> bytes:
        self.reading.set()
        await asyncio.sleep(0.01)
        raise StoreFailed("a store", StoreProblem.OTHER, "cannot read", "")

    @override
    async def delete(self, key: str) -> None:
        raise StoreFailed("a store", StoreProblem.OTHER, "cannot delete", "")


async def test_a_failed_clean_up_does_not_hide_the_first_failure() -> None:
    with pytest.raises(StoreFailed, match="cannot read"):
        await probe_store(BreakingStore(), SeededRandomness(1))


async def test_a_failed_clean_up_does_not_hide_a_cancellation() -> None:
    store = BreakingStore()
    probing = asyncio.create_task(probe_store(store, SeededRandomness(1)))
    await store.reading.wait()
    probing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probing
