"""The stores that need no server keep the contract: directories real and simulated, and memory."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.system_files import SystemFiles
from pydanube.storage.segments.directory_store import DirectoryStore
from pydanube.storage.segments.object_store import ObjectStore
from pydanube.storage.segments.opendal_store import OpenDalStore, StoreService
from tests.contract.object_store_contract import ObjectStoreContract

MEMORY = StoreService(scheme="memory", options={}, description="memory", remedies={})


def in_directory(files, root: str) -> DirectoryStore:
    return DirectoryStore(files, root, provider="local", setting="storage.durable.root")


class TestDirectory(ObjectStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ObjectStore]:
        files = SystemFiles()
        yield in_directory(files, str(tmp_path / "root"))
        files.stop()


class TestSimulatedDirectory(ObjectStoreContract):
    @pytest.fixture
    async def store(self) -> ObjectStore:
        return in_directory(SimulatedDisk(delay_seconds=(0.0, 0.0)), "/segments")


class TestMemory(ObjectStoreContract):
    @pytest.fixture
    async def store(self) -> AsyncIterator[ObjectStore]:
        store = OpenDalStore(MEMORY)
        yield store
        await store.close()
