"""Real services keep the contract of object stores, and their refusals name the remedy."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from msgspec import structs

from pydanube.runtime.randomness import SeededRandomness
from pydanube.storage.config import Durable
from pydanube.storage.errors import StoreFailed, StoreProblem
from pydanube.storage.segments.location import store_service
from pydanube.storage.segments.object_store import ObjectStore, probe_store
from pydanube.storage.segments.opendal_store import OpenDalStore
from pydanube.storage.segments.operators import Patience
from tests.contract.object_store_contract import ObjectStoreContract
from tests.support.object_store_servers import azurite, fake_gcs, seaweedfs

NO_PATIENCE = Patience(answer_seconds=5, transfer_seconds=5, retries=0)


class Service(ObjectStoreContract):
    """A subclass brings the fixture `durable`, of class scope: one server for all its tests."""

    @pytest.fixture
    async def store(self, durable: Durable, tmp_path: Path) -> AsyncIterator[ObjectStore]:
        # A prefix of its own for each test.
        mine = structs.replace(durable, root=f"{durable.root}/{tmp_path.name}")
        store = OpenDalStore(store_service(mine))
        yield store
        await store.close()


async def refused(durable: Durable) -> StoreFailed:
    store = OpenDalStore(store_service(durable), NO_PATIENCE)
    try:
        with pytest.raises(StoreFailed) as failed:
            await probe_store(store, SeededRandomness(1))
        return failed.value
    finally:
        await store.close()


class Remedies:
    """What an operator is told by a service that checks who asks."""

    wrong_credentials: dict[str, str]

    async def test_a_missing_bucket_is_named(self, durable: Durable) -> None:
        assert durable.root is not None
        elsewhere = durable.root.replace("events", "elsewhere")
        failed = await refused(structs.replace(durable, root=elsewhere))
        assert failed.problem is StoreProblem.PLACE
        assert "elsewhere" in str(failed)
        assert "storage.durable.root" in str(failed)

    async def test_wrong_credentials_are_named(self, durable: Durable) -> None:
        failed = await refused(structs.replace(durable, **self.wrong_credentials))
        assert failed.problem is StoreProblem.CREDENTIALS
        assert next(iter(self.wrong_credentials)) in str(failed)

    async def test_a_service_that_is_not_there_is_named(self, durable: Durable) -> None:
        failed = await refused(structs.replace(durable, endpoint="http://127.0.0.1:9"))
        assert failed.problem is StoreProblem.UNREACHABLE
        assert "storage.durable.endpoint" in str(failed)
        assert "\n" not in str(failed)


class TestS3(Service, Remedies):
    wrong_credentials = {"secret_key": "wrong"}  # noqa: RUF012

    @pytest.fixture(scope="class")
    @classmethod
    def durable(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Durable]:
        with seaweedfs(tmp_path_factory.mktemp("s3")) as durable:
            yield durable


class TestAzureBlob(Service, Remedies):
    wrong_credentials = {"account_key": "d3Jvbmc="}  # noqa: RUF012

    @pytest.fixture(scope="class")
    @classmethod
    def durable(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Durable]:
        with azurite(tmp_path_factory.mktemp("azure")) as durable:
            yield durable


class TestGoogleCloudStorage(Service):
    honours_conditions = False  # Google does; this server does not.

    @pytest.fixture(scope="class")
    @classmethod
    def durable(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Durable]:
        with fake_gcs(tmp_path_factory.mktemp("gcs")) as durable:
            yield durable
