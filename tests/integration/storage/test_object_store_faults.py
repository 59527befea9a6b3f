"""Real services behind a proxy that fails: whatever goes wrong, no object is half or wrong."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from msgspec import structs
from typing_extensions import override

from pydanube.model.ids import Offset, TopicId
from pydanube.observability.counts import SegmentMetrics
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.randomness import SeededRandomness
from pydanube.storage.config import Durable
from pydanube.storage.errors import StoreFailed, StoreProblem
from pydanube.storage.segments.encoding import EncodedSegment, SegmentEncoder, SegmentOrigin
from pydanube.storage.segments.location import store_service
from pydanube.storage.segments.opendal_store import OpenDalStore
from pydanube.storage.segments.operators import Patience
from pydanube.storage.segments.uploader import Uploader
from tests.support.faulty_proxy import Fault, FaultyProxy, faulty_proxy
from tests.support.object_store_servers import azurite, fake_gcs, seaweedfs
from tests.support.segment_rows import any_messages, in_pieces

PATIENCE = Patience(
    answer_seconds=8.0,
    transfer_seconds=8.0,
    retries=2,
    first_delay_seconds=0.01,
    last_delay_seconds=0.02,
)
FAULTS: tuple[Fault, ...] = ("500", "503", "slow", "cut", "lost answer")
ORIGIN = SegmentOrigin(topic="/default/orders", topic_id=TopicId(1), epoch=0)


class HastyClock(SystemClock):
    """Waits a little where others wait long."""

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 50)


class FaultContract:
    """A subclass brings the fixture `durable`, of class scope: one server for all its tests."""

    @pytest.fixture
    def proxy(self, durable: Durable) -> Iterator[FaultyProxy]:
        assert durable.endpoint is not None
        with faulty_proxy(durable.endpoint) as proxy:
            yield proxy

    @pytest.fixture
    async def store(
        self, durable: Durable, proxy: FaultyProxy, tmp_path: Path
    ) -> AsyncIterator[OpenDalStore]:
        root = f"{durable.root}/{tmp_path.name}"
        mine = structs.replace(durable, root=root, endpoint=proxy.url)
        store = OpenDalStore(store_service(mine), PATIENCE)
        yield store
        await store.close()

    async def test_a_service_that_answers_5xx_for_a_while_is_asked_again(
        self, store: OpenDalStore, proxy: FaultyProxy
    ) -> None:
        for call in (
            lambda: store.put("a", b"12345"),
            lambda: store.read("a", 1, 3),
            lambda: store.size("a"),
            lambda: store.list(""),
            lambda: store.delete("a"),
        ):
            proxy.faults.extend(["503", "500"])
            await call()
            assert not proxy.faults
        assert await store.size("a") is None

    async def test_5xx_without_an_end_is_a_failure_that_may_be_repeated(
        self, store: OpenDalStore, proxy: FaultyProxy
    ) -> None:
        proxy.faults.extend(["503"] * 10)
        with pytest.raises(StoreFailed) as failed:
            await store.put("a", b"x")
        assert failed.value.retryable
        proxy.faults.clear()
        assert await store.size("a") is None
        await store.put("a", b"x")
        assert await store.read("a", 0, 1) == b"x"

    async def test_a_write_whose_answer_is_lost_leaves_one_whole_object(
        self, store: OpenDalStore, proxy: FaultyProxy
    ) -> None:
        data = bytes(range(256)) * 1_000
        proxy.faults.append("lost answer")
        await store.put_if_absent("a", data)
        assert proxy.met == ["lost answer"]
        assert await store.size("a") == len(data)
        assert await store.read("a", 0, len(data)) == data

    async def test_slow_answers_are_waited_for(
        self, store: OpenDalStore, proxy: FaultyProxy
    ) -> None:
        proxy.faults.extend(["slow"] * 3)
        await store.put("a", b"12345")
        assert await store.size("a") == 5
        assert await store.read("a", 0, 5) == b"12345"
        assert proxy.met == ["slow"] * 3

    async def test_an_outage_is_told_and_forgotten_when_it_is_over(
        self, store: OpenDalStore, proxy: FaultyProxy
    ) -> None:
        await store.put("a", b"12345")
        proxy.outage = True
        for call in (store.read("a", 0, 5), store.put("b", b"x"), store.size("a"), store.list("")):
            with pytest.raises(StoreFailed) as failed:
                await call
            assert failed.value.problem in (StoreProblem.UNREACHABLE, StoreProblem.OTHER)
            assert failed.value.retryable
        proxy.outage = False
        assert await store.read("a", 0, 5) == b"12345"

    async def test_segments_arrive_whole_through_whatever_goes_wrong(
        self, store: OpenDalStore, proxy: FaultyProxy
    ) -> None:
        randomness = SeededRandomness(7)
        uploader = Uploader(store, HastyClock(), randomness, SegmentMetrics())
        segments = [segment(randomness, number) for number in range(12)]
        drawn = [FAULTS[randomness.below(4)] for _ in range(40)] + ["lost answer"]
        proxy.faults.extend(drawn)
        keys = await asyncio.gather(
            *(uploader.upload(ORIGIN, each, lambda: True) for each in segments)
        )
        assert {"500", "503", "slow", "cut"} <= set(proxy.met)
        proxy.faults.clear()
        for key, each in zip(keys, segments, strict=True):
            assert key is not None
            assert await store.read(key, 0, len(each.data)) == each.data

    async def test_an_upload_waits_an_outage_out(
        self, store: OpenDalStore, proxy: FaultyProxy
    ) -> None:
        randomness = SeededRandomness(8)
        uploader = Uploader(store, HastyClock(), randomness, SegmentMetrics())
        whole = segment(randomness, 1)
        proxy.outage = True
        uploading = asyncio.create_task(uploader.upload(ORIGIN, whole, lambda: True))
        async with asyncio.timeout(20):
            while uploader.failure is None:
                await asyncio.sleep(0.01)
        assert not uploading.done()
        proxy.outage = False
        key = await asyncio.wait_for(uploading, 20)
        assert key is not None
        assert await store.read(key, 0, len(whole.data)) == whole.data
        assert uploader.failure is None


def segment(randomness: SeededRandomness, number: int) -> EncodedSegment:
    encoder = SegmentEncoder(ORIGIN, Offset(number * 100))
    encoder.add(in_pieces(any_messages(randomness, 100), number * 100, randomness))
    return encoder.finish()


class TestS3(FaultContract):
    @pytest.fixture(scope="class")
    @classmethod
    def durable(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Durable]:
        with seaweedfs(tmp_path_factory.mktemp("s3")) as durable:
            yield durable


class TestAzureBlob(FaultContract):
    @pytest.fixture(scope="class")
    @classmethod
    def durable(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Durable]:
        with azurite(tmp_path_factory.mktemp("azure")) as durable:
            yield durable


class TestGoogleCloudStorage(FaultContract):
    @pytest.fixture(scope="class")
    @classmethod
    def durable(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Durable]:
        with fake_gcs(tmp_path_factory.mktemp("gcs")) as durable:
            yield durable
