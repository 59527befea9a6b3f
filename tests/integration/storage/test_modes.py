"""A whole broker in each storage mode: messages become segments that anybody can read."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
import pytest
from msgspec import structs

from pydanube.storage.config import Durable
from pydanube.storage.segments.location import store_service
from pydanube.storage.segments.opendal_store import OpenDalStore
from pydanube.wire.calls import CallRefused
from pydanube.wire.danube import services
from tests.support.object_store_servers import seaweedfs
from tests.support.running_broker import RunningBroker

TOPIC = "/default/orders"
COUNT = 300


def settings_for(mode: str, directory: Path, durable: Durable | None) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "storage.mode": mode,
        "storage.segments.seal_bytes": 64 * 1024,
        "storage.wal.rotation.max_bytes": 64 * 1024,
        "storage.tail_cache_bytes_max": 0,
        "storage.local_retention.time_minutes": 1,
    }
    if mode == "shared_fs":
        settings["storage.durable.root"] = str(directory / "share")
    if durable is not None:
        given = structs.asdict(durable)
        settings |= {f"storage.durable.{name}": value for name, value in given.items() if value}
    return settings


@pytest.fixture(params=["local", "shared_fs", "object_store"])
async def mode(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[str, RunningBroker, Durable | None]]:
    def world(durable: Durable | None) -> tuple[str, RunningBroker, Durable | None]:
        settings = settings_for(request.param, tmp_path, durable)
        return request.param, RunningBroker(tmp_path / "data", settings), durable

    if request.param == "object_store":
        with seaweedfs(tmp_path) as durable:
            yield world(durable)
    else:
        yield world(None)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what a background task does; nobody is told when it is done."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.02)


def log_of(broker: RunningBroker, topic: str = TOPIC):
    serving = broker.server._broker._serving  # No user needs this door; a test does.
    return serving.topics.get(topic).log


async def publish(broker: RunningBroker, count: int, first: int = 0) -> None:
    client = broker.client()
    producer = await client.create_producer(TOPIC)
    for number in range(first, first + count):
        assert await client.send(TOPIC, producer, payload(number)) == number


def payload(number: int) -> bytes:
    return b"order %d " % number * 100


async def read_everything(broker: RunningBroker) -> list[bytes]:
    log = log_of(broker)
    found: list[bytes] = []
    while pieces := await log.read(len(found), log.durable_end):
        for piece in pieces:
            assert piece.start == len(found)
            rows = piece.batch.messages(piece.first_row, piece.end_row)
            found += [message.payload for message in rows]
    return found


@pytest.mark.slow
async def test_messages_become_segments_and_outlive_the_journal(mode) -> None:
    name, broker, durable = mode
    await broker.start()
    try:
        await publish(broker, COUNT)
        expected = [payload(number) for number in range(COUNT)]
        await until(lambda: log_of(broker).segments.end > COUNT // 2)
        await broker.restart()
        # In the modes where another broker may follow, a stop brings everything into segments.
        assert (log_of(broker).segments.end == COUNT) is (name != "local")
        broker.clock.advance(301)
        await until(lambda: log_of(broker).segments.end == COUNT)
        broker.clock.advance(301)
        journal = broker.directory / "wal"
        await until(lambda: len(list(journal.glob("*.log"))) == 1)
        assert log_of(broker).first_offset == 0
        assert await read_everything(broker) == expected
        await publish(broker, 1, first=COUNT)
        assert (await read_everything(broker))[COUNT] == payload(COUNT)
        await check_segments_as_foreigners_read_them(broker, durable, expected)
        await check_the_listing(broker)
    finally:
        await broker.close()


async def check_segments_as_foreigners_read_them(
    broker: RunningBroker, durable: Durable | None, expected: list[bytes]
) -> None:
    """Read the topic's folder with pyarrow alone, as Spark, DuckDB or Polars would."""
    entries = log_of(broker).segments.entries()
    folder = entries[0].key.rpartition("/")[0]
    if durable is None:
        root = broker.directory / "segments"
        if not root.exists():
            root = broker.directory.parent / "share"
        dataset = pyarrow.dataset.dataset(str(root / folder), format="parquet")
    else:
        # Through memory, for pyarrow's own S3 client is not what is tested here.
        store = OpenDalStore(store_service(durable))
        tables = [await store.read(entry.key, 0, entry.bytes) for entry in entries]
        await store.close()
        dataset = pyarrow.dataset.dataset(
            [pa.parquet.read_table(pa.BufferReader(data)) for data in tables]
        )
    rows = dataset.to_table(columns=["topic", "partition", "offset", "payload"]).sort_by("offset")
    count = len(expected)
    assert rows["offset"].to_pylist()[:count] == list(range(count))
    assert rows["payload"].to_pylist()[:count] == expected
    assert set(rows["topic"].to_pylist()) == {TOPIC}
    some = dataset.to_table(filter=pyarrow.dataset.field("offset") >= count - 10)
    assert some.num_rows >= 10


async def check_the_listing(broker: RunningBroker) -> None:
    client = broker.client()
    method = services.LIST_SEGMENT_DESCRIPTORS

    async def listed(after: int) -> list[Any]:
        request = method.request(topic=TOPIC.removeprefix("/"), after_offset=after)
        return list((await client.call(method, request)).segments)

    entries = log_of(broker).segments.entries()
    everything = await listed(0)
    assert [(s.start_offset, s.end_offset, s.size) for s in everything] == [
        (e.base, e.end - 1, e.bytes) for e in entries
    ]
    assert [s.etag for s in everything] == [f"{e.crc32c:08x}" for e in entries]
    assert all(s.created_at > 1_600_000_000 for s in everything)
    assert len({s.segment_id for s in everything}) == len(entries)
    last_of_first = everything[0].end_offset
    assert await listed(last_of_first) == everything[1:]
    assert await listed(last_of_first - 1) == everything
    assert await listed(everything[-1].end_offset) == []
    with pytest.raises(CallRefused, match="does not exist"):
        await client.call(method, method.request(topic="default/nothing"))


async def test_deleting_a_topic_deletes_its_segments(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path / "data", settings_for("local", tmp_path, None))
    await broker.start()
    try:
        await publish(broker, 200)
        await until(lambda: log_of(broker).segments.exists)
        objects = tmp_path / "data" / "segments" / "default" / "orders"
        assert list(objects.rglob("*.parquet"))
        await broker.client().delete_topic(TOPIC)
        await until(lambda: not list(objects.rglob("*.parquet")))
        await until(lambda: not [key for key in broker.metadata() if "/storage/" in key])
        await publish(broker, 1)
        assert log_of(broker).first_offset == 0
        assert await read_everything(broker) == [payload(0)]
    finally:
        await broker.close()


async def test_history_expires_but_not_before_a_subscription_has_read_it(tmp_path: Path) -> None:
    settings = settings_for("local", tmp_path, None)
    settings["policies.retention_bytes"] = 1
    settings["storage.local_retention.check_interval_minutes"] = 1
    broker = RunningBroker(tmp_path / "data", settings)
    await broker.start()
    try:
        client = broker.client()
        await client.create_topic(TOPIC)
        await client.subscribe(TOPIC, "slow")
        await publish(broker, 200)
        await until(lambda: len(log_of(broker).segments.entries()) > 1)
        broker.clock.advance(61)
        await asyncio.sleep(0.2)
        assert log_of(broker).first_offset == 0
        request = services.UNSUBSCRIBE.request(topic=TOPIC, subscription="slow")
        await broker.restart()
        await broker.client().call(services.UNSUBSCRIBE, request)
        broker.clock.advance(61)
        await until(lambda: log_of(broker).first_offset > 0)
        assert len(log_of(broker).segments.entries()) == 1
    finally:
        await broker.close()
