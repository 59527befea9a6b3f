"""A storage with segments on simulated machines, and the laws its catalogue must keep."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from itertools import pairwise
from typing import Any

import google_crc32c
from typing_extensions import override

from pydanube.errors import DanubeError
from pydanube.metadata.local_store import LocalMetadataStore
from pydanube.model.batch import Batch
from pydanube.model.ids import Offset, TopicId
from pydanube.model.message import Message
from pydanube.observability.counts import SegmentMetrics
from pydanube.runtime.files import Files
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.runtime.tasks import TaskScope, carry_through
from pydanube.storage.config import LocalRetention, Rotation, Segments, StorageConfig, Wal
from pydanube.storage.segments.catalog import SegmentEntry
from pydanube.storage.segments.directory_store import DirectoryStore
from pydanube.storage.segments.object_store import ObjectStore
from pydanube.storage.segments.planning import RetentionRule
from pydanube.storage.segments.tier import SegmentPlace
from pydanube.storage.storage import Storage
from pydanube.storage.topic_log import TopicLog
from pydanube.topics.segment_catalog import MetadataSegmentCatalog

ROOT = "/data/segments"
World = Callable[[Randomness, SimulatedDisk], Coroutine[Any, Any, None]]


def simulated(test: World) -> Callable[[], None]:
    """Run a test in virtual time, with a disk of its own."""

    @wraps(test)
    def run() -> None:
        async def main(randomness: Randomness) -> None:
            await test(randomness, SimulatedDisk(randomness))

        run_simulated(main, test.__name__)

    del run.__wrapped__  # type: ignore[attr-defined]  # pytest would ask for its arguments.
    return run


def small_config(
    *,
    file_bytes: int = 2_000,
    seal_bytes: int = 1_500,
    seal_seconds: int = 60,
    cache_bytes: int = 2_000,
    keep_minutes: int = 0,
    read_cache_bytes: int = 8_000,
) -> StorageConfig:
    """Limits so small that a short life meets all of them; nothing is kept once exported."""
    return StorageConfig(
        local_wal_root="/data/wal",
        wal=Wal(rotation=Rotation(max_bytes=file_bytes)),
        segments=Segments(
            seal_bytes=seal_bytes,
            seal_seconds=seal_seconds,
            read_cache_bytes_max=read_cache_bytes,
        ),
        local_retention=LocalRetention(time_minutes=keep_minutes, check_interval_minutes=1),
        tail_cache_bytes_max=cache_bytes,
        journal_direct_bytes_min=1,
    )


def topic_name(topic: int) -> str:
    return f"/default/topic-{topic}"


class SegmentBroker:
    """One incarnation of the part of a broker that owns journal, metadata and segments."""

    def __init__(
        self,
        storage: Storage,
        metadata: LocalMetadataStore,
        catalog: MetadataSegmentCatalog,
        store: ObjectStore,
        metrics: SegmentMetrics,
        tasks: TaskScope,
    ) -> None:
        self.storage = storage
        self.metadata = metadata
        self.catalog = catalog
        self.store = store
        self.metrics = metrics
        self.retention: dict[int, RetentionRule] = {}
        self._tasks = tasks

    @classmethod
    async def start(
        cls,
        files: Files,
        randomness: Randomness,
        config: StorageConfig | None = None,
        store: ObjectStore | None = None,
        tolerate: type[BaseException] | None = None,
    ) -> "SegmentBroker":
        def failed(name: str, error: BaseException) -> None:
            if tolerate is None or not isinstance(error, tolerate):
                raise error

        tasks = TaskScope(failed)
        metadata = None
        try:
            metadata = await LocalMetadataStore.open(files, SimulatedClock(), tasks, "/data/raft")
            catalog = MetadataSegmentCatalog(metadata, "/danube")
            if store is None:
                store = DirectoryStore(files, ROOT, provider="local", setting="storage")
            metrics = SegmentMetrics()
            storage = await Storage.open(
                files,
                SimulatedClock(),
                tasks,
                config or small_config(),
                "/data/wal",
                segments=SegmentPlace(
                    store=store, catalog=catalog, randomness=randomness, metrics=metrics
                ),
            )
        except BaseException:
            await carry_through(_give_up(metadata, tasks))
            raise
        storage.start_upkeep()
        return cls(storage, metadata, catalog, store, metrics, tasks)

    def log(self, topic: int) -> TopicLog:
        return self.storage.topic(
            TopicId(topic),
            topic_name(topic),
            retention=lambda: self.retention.get(topic, RetentionRule()),
        )

    def begin_append(
        self, topic: int, messages: Sequence[Message]
    ) -> tuple[Offset, "asyncio.Future[None]"]:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: DanubeError | None) -> None:
            if over.done():
                return
            if error is None:
                over.set_result(None)
            else:
                over.set_exception(error)
                over.exception()  # Not everybody waits for it.

        return self.log(topic).append(Batch.gather(messages), done), over

    async def append(self, topic: int, messages: Sequence[Message]) -> Offset:
        offset, over = self.begin_append(topic, messages)
        await over
        return offset

    async def read_all(self, topic: int, start: int = 0) -> dict[int, Message]:
        """Every readable message from `start` on, by offset, without what came with it."""
        log = self.log(topic)
        found: dict[int, Message] = {}
        at = Offset(start)
        while pieces := await log.read(at, log.durable_end, bytes_max=500):
            assert pieces[0].start >= at
            for piece in pieces:
                rows = piece.batch.messages(piece.first_row, piece.end_row)
                found.update({piece.start + i: m for i, m in enumerate(rows)})
            at = pieces[-1].end
        return found

    async def seal(self, topic: int) -> None:
        self.log(topic)
        await self.storage.seal_topic(TopicId(topic))

    def entries(self, topic: int) -> list[SegmentEntry]:
        return self.catalog.entries(topic_name(topic), TopicId(topic))

    async def check_catalog(self, topic: int) -> None:
        """Check the laws of docs/formats/segment.md, with the objects themselves."""
        entries = self.entries(topic)
        frontier = self.catalog.frontier(topic_name(topic), TopicId(topic))
        if frontier is None:
            assert entries == []
            return
        assert all(before.end == after.base for before, after in pairwise(entries))
        if entries:
            assert (entries[0].base, entries[-1].end) == (frontier.start, frontier.end)
        else:
            assert frontier.start == frontier.end
        assert frontier.end <= self.log(topic).durable_end
        for entry in entries:
            assert entry.rows == entry.end - entry.base
            data = await self.store.read(entry.key, 0, entry.bytes)
            assert google_crc32c.value(data) == entry.crc32c
            assert await self.store.size(entry.key) == entry.bytes

    async def stop(self) -> None:
        await self.storage.close()
        await self.metadata.close()
        await self._tasks.close()

    async def abandon(self) -> None:
        """End the tasks of an incarnation whose machine is gone."""
        tier = self.storage._tier
        assert tier is not None
        await tier.stop()
        await self._tasks.close()


async def _give_up(metadata: LocalMetadataStore | None, tasks: TaskScope) -> None:
    if metadata is not None:
        await metadata.close()
    await tasks.close()


class CountingStore(ObjectStore):
    """Counts reads of another store."""

    def __init__(self, store: ObjectStore) -> None:
        self.provider = store.provider
        self.reads: list[tuple[str, int, int]] = []
        self._store = store

    @property
    @override
    def description(self) -> str:
        return self._store.description

    @override
    async def put_if_absent(self, key: str, data: bytes) -> bool:
        return await self._store.put_if_absent(key, data)

    @override
    async def put(self, key: str, data: bytes) -> None:
        await self._store.put(key, data)

    @override
    async def read(self, key: str, position: int, length: int) -> bytes:
        self.reads.append((key, position, length))
        return await self._store.read(key, position, length)

    @override
    async def size(self, key: str) -> int | None:
        return await self._store.size(key)

    @override
    async def list(self, directory: str) -> list[str]:
        return await self._store.list(directory)

    @override
    async def delete(self, key: str) -> None:
        await self._store.delete(key)

    @override
    async def close(self) -> None:
        await self._store.close()
