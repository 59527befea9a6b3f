"""A topic that cannot be exported: others can, no memory is held, and everybody can see it."""

import asyncio

import pyarrow as pa
from typing_extensions import override

from pydanube.model.batch import SCHEMA, Batch
from pydanube.model.ids import TopicId
from pydanube.model.message import Message
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.storage.errors import StoreFailed, StoreProblem
from tests.support.faulty_store import Cloud, FaultyStore
from tests.support.segment_broker import SegmentBroker, small_config, topic_name


class RefusingStore(FaultyStore):
    """Refuses what lies in one directory, as a store does whose rights are set wrongly."""

    def __init__(self, cloud: Cloud, refused: str) -> None:
        super().__init__(cloud)
        self.refused: str | None = refused
        self.attempts = 0

    @override
    async def put_if_absent(self, key: str, data: bytes) -> bool:
        if self.refused is not None and key.startswith(self.refused):
            self.attempts += 1
            raise StoreFailed(self.description, StoreProblem.CREDENTIALS, "not for you")
        return await super().put_if_absent(key, data)


def messages(count: int, size: int = 100) -> list[Message]:
    return [Message(payload=b"x" * size, publish_time_ms=1, producer_name="p")] * count


def refusing_store(randomness: Randomness, topic: int) -> RefusingStore:
    return RefusingStore(Cloud(randomness), topic_name(topic).removeprefix("/"))


def test_a_topic_whose_objects_are_refused_does_not_keep_others_from_export() -> None:
    async def main(randomness: Randomness) -> None:
        store = refusing_store(randomness, 1)
        # So little memory that an export which waits for ever would leave no room for another.
        broker = await SegmentBroker.start(
            SimulatedDisk(randomness), randomness, small_config(seal_bytes=1_000), store
        )
        for _ in range(30):
            for topic in (1, 2, 3):
                await broker.append(topic, messages(10))
            await asyncio.sleep(10)
        await asyncio.sleep(120)
        for topic in (2, 3):
            assert broker.entries(topic)[-1].end == 300
        assert broker.entries(1) == []
        ((name, error),) = broker.storage.failing_exports()
        assert name == topic_name(1)
        assert "not for you" in str(error)
        assert broker.metrics.exports_failed > 0
        assert broker.storage.store_failure is None, "the store works, for others"
        assert len(await broker.read_all(1)) == 300
        store.refused = None
        await broker.seal(1)
        assert broker.storage.failing_exports() == []
        assert len(await broker.read_all(1)) == 300
        await broker.check_catalog(1)
        await broker.stop()

    run_simulated(main, "refused topic")


def test_a_topic_that_fails_is_tried_ever_more_rarely_and_holds_nothing_in_between() -> None:
    async def main(randomness: Randomness) -> None:
        store = refusing_store(randomness, 1)
        broker = await SegmentBroker.start(
            SimulatedDisk(randomness), randomness, small_config(seal_seconds=1), store
        )
        await broker.append(1, messages(5))
        await asyncio.sleep(3_600)
        tier = broker.storage._tier
        assert tier is not None
        before = store.attempts
        await asyncio.sleep(3_600)
        assert 0 < store.attempts - before <= 120, "one after half a minute at least"
        idle = [topic for topic in tier.exporter.failing() if topic.job is None]
        assert idle or tier.exporter.is_busy(TopicId(1))
        assert len(tier._uploader.in_flight) <= 1
        await broker.stop()

    run_simulated(main, "rarely")


def test_a_batch_that_cannot_become_a_segment_stops_its_own_topic_alone() -> None:
    """As an older version of the door may have let it in."""

    async def main(randomness: Randomness) -> None:
        broker = await SegmentBroker.start(
            SimulatedDisk(randomness), randomness, small_config(seal_seconds=1)
        )
        row = {"publish_time": 1, "producer_name": "p", "payload": None}
        loose = pa.schema([pa.field(each.name, each.type) for each in SCHEMA])
        rows = pa.RecordBatch.from_pylist([row], schema=loose)
        broker.log(1).append(Batch(rows.serialize().to_pybytes(), 1), lambda error: None)
        await broker.append(2, messages(20))
        await asyncio.sleep(60)
        assert broker.entries(2)[-1].end == 20
        ((name, error),) = broker.storage.failing_exports()
        assert name == topic_name(1)
        assert "payload" in str(error)
        await broker.append(2, messages(20))
        await asyncio.sleep(60)
        assert broker.entries(2)[-1].end == 40
        await broker.stop()

    run_simulated(main, "bad batch")


def test_an_outage_is_still_waited_out_without_giving_anything_up() -> None:
    async def main(randomness: Randomness) -> None:
        cloud = Cloud(randomness)
        broker = await SegmentBroker.start(
            SimulatedDisk(randomness), randomness, small_config(), FaultyStore(cloud)
        )
        cloud.fault_percent = 100
        for topic in range(1, 30):
            await broker.append(topic, messages(20))
        await asyncio.sleep(1_000)
        assert broker.metrics.exports_failed == 0
        assert isinstance(broker.storage.store_failure, StoreFailed)
        cloud.fault_percent = 0
        await asyncio.sleep(300)
        for topic in range(1, 30):
            assert broker.entries(topic)[-1].end == 20
        await broker.stop()

    run_simulated(main, "outage")
