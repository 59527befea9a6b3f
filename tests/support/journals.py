"""A storage on a simulated disk, with awaitable appends, for tests of the journal."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pydanube.errors import DanubeError
from pydanube.model.batch import Batch
from pydanube.model.ids import Offset, SubscriptionId, TopicId
from pydanube.model.message import Message
from pydanube.model.policies import Durability
from pydanube.model.progress import ProgressChange
from pydanube.runtime.files import Files
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.simulation.disk import SimulatedDisk
from pydanube.runtime.tasks import TaskScope
from pydanube.storage.config import Rotation, StorageConfig, Wal
from pydanube.storage.storage import Storage

DIRECTORY = "/data/journal"


def batch_of(*payloads: bytes) -> Batch:
    return Batch.gather(
        [Message(payload=p, publish_time_ms=1, producer_name="producer") for p in payloads]
    )


def payloads_of(pieces: Sequence[Any]) -> list[bytes]:
    found = []
    for piece in pieces:
        found += [m.payload for m in piece.batch.messages(piece.first_row, piece.end_row)]
    return found


def rotating_at(max_bytes: int, **rest: Any) -> StorageConfig:
    return StorageConfig(wal=Wal(rotation=Rotation(max_bytes=max_bytes)), **rest)


def instant_disk() -> SimulatedDisk:
    return SimulatedDisk(delay_seconds=(0.0, 0.0))


class Broker:
    """The part of a broker that owns a storage: one incarnation on one disk."""

    def __init__(self, storage: Storage, tasks: TaskScope) -> None:
        self.storage = storage
        self.tasks = tasks

    @classmethod
    async def start(
        cls, files: Files, config: StorageConfig | None = None, identity: str = ""
    ) -> "Broker":
        def unexpected(name: str, error: BaseException) -> None:
            raise error

        tasks = TaskScope(unexpected)
        try:
            storage = await Storage.open(
                files,
                SimulatedClock(),
                tasks,
                config or StorageConfig(),
                DIRECTORY,
                identity=identity,
            )
        except BaseException:
            await tasks.close()
            raise
        return cls(storage, tasks)

    def begin_append(
        self, topic: int, *payloads: bytes, durability: Durability = "fsync"
    ) -> tuple[Offset, "asyncio.Future[None]"]:
        waiter = _Waiter()
        log = self.storage.topic(TopicId(topic))
        return log.append(batch_of(*payloads), waiter, durability=durability), waiter.over

    async def append(self, topic: int, *payloads: bytes, durability: Durability = "fsync") -> int:
        offset, over = self.begin_append(topic, *payloads, durability=durability)
        await over
        return offset

    async def create_subscription(self, subscription: int, cursor: int) -> None:
        waiter = _Waiter()
        self.storage.create_progress(SubscriptionId(subscription), Offset(cursor), waiter)
        await waiter.over

    def begin_settle(self, subscription: int, change: ProgressChange) -> "asyncio.Future[None]":
        waiter = _Waiter()
        self.storage.append_progress(SubscriptionId(subscription), change, waiter)
        return waiter.over

    async def read_all(self, topic: int, start: int = 0) -> dict[int, bytes]:
        """Every readable message from `start` on, by offset."""
        log = self.storage.topic(TopicId(topic))
        found: dict[int, bytes] = {}
        at = Offset(start)
        while pieces := await log.read(at, log.durable_end):
            assert pieces[0].start >= at
            for piece in pieces:
                rows = piece.batch.messages(piece.first_row, piece.end_row)
                found.update({piece.start + i: m.payload for i, m in enumerate(rows)})
            at = pieces[-1].end
        return found

    async def stop(self) -> None:
        await self.storage.close()
        await self.tasks.close()

    async def abandon(self) -> None:
        """End the tasks of an incarnation whose disk is gone."""
        await self.tasks.close()


@asynccontextmanager
async def broker_on(
    files: Files, config: StorageConfig | None = None, identity: str = ""
) -> AsyncIterator[Broker]:
    broker = await Broker.start(files, config, identity)
    try:
        yield broker
    finally:
        await broker.stop()


class _Waiter:
    """A `Done` that can be awaited."""

    def __init__(self) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __call__(self, error: DanubeError | None) -> None:
        if self.over.cancelled():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)
            self.over.exception()  # Not everybody waits for it.
