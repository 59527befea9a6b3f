"""One topic on a journal on a simulated disk, without a broker around it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from pydanube.broker.servicers.pieces import read_pieces
from pydanube.dispatch.events import DispatchSettings
from pydanube.errors import DanubeError
from pydanube.metadata.memory_store import MemoryMetadataStore
from pydanube.model.batch import Batch
from pydanube.model.ids import ConsumerId, Offset, SubscriptionId, TopicId
from pydanube.model.message import Message
from pydanube.model.policies import Durability, FailurePolicy, Policies, SubscriptionType
from pydanube.model.progress import Progress
from pydanube.model.sequences import MessageSequence, Outcome, SequenceRange
from pydanube.observability.metrics import BrokerMetrics
from pydanube.registry.registry import SchemaRegistry
from pydanube.runtime.clock import Clock
from pydanube.runtime.files import Files
from pydanube.runtime.simulation.clock import SimulatedClock
from pydanube.runtime.tasks import TaskScope
from pydanube.runtime.threads import WorkerThreads
from pydanube.schemas.format import SchemaTools
from pydanube.storage.config import StorageConfig
from pydanube.storage.storage import Storage
from pydanube.storage.topic_log import Guard, TopicLog
from pydanube.subscriptions.consumer import Consumer, ConsumerStream
from pydanube.subscriptions.outbox import Delivery
from pydanube.subscriptions.subscription import Subscription
from pydanube.topics.catalog import TopicRecord
from pydanube.topics.inspection import InspectionContext, WaitingRoom
from pydanube.topics.topic import Topic, TopicContext
from tests.support.journals import DIRECTORY

NAME = "/default/orders"


class NoDeadLetters:
    """Where a dead letter would fail the test."""

    async def store(self, target: str, message: Message) -> None:
        raise AssertionError(f"a dead letter for {target}")


def message(payload: bytes = b"x", producer: str = "anne", **fields: Any) -> Message:
    fields.setdefault("publish_time_ms", 1)
    return Message(payload=payload, producer_name=producer, **fields)


def batch_from(*payloads: bytes, producer: str = "anne") -> Batch:
    return Batch.gather([message(payload, producer) for payload in payloads])


def sequences(
    first: int, last: int | None = None, digest: int | None = None, producer: str = "anne"
) -> SequenceRange:
    return SequenceRange(
        producer=producer, first=first, last=first if last is None else last, digest=digest
    )


class Answer:
    """What became of a publish; to be awaited, or looked at."""

    def __init__(self) -> None:
        self.over: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def __call__(self, result: Any, error: DanubeError | None) -> None:
        assert not self.over.done(), "it was answered twice"
        if error is None:
            self.over.set_result(result)
        else:
            self.over.set_exception(error)
            self.over.exception()  # Not everybody waits for it.

    @property
    def is_there(self) -> bool:
        return self.over.done()


class Receiver:
    """A consumer's stream, read as the servicers read it."""

    def __init__(self, topic: Topic, subscription: Subscription, stream: ConsumerStream) -> None:
        self._topic = topic
        self.subscription = subscription
        self.stream = stream
        self.offsets: list[int] = []
        """What it has received, in order."""
        self.attempts: list[int] = []

    async def receive(self) -> list[int]:
        """Take everything there is now, and return the offsets of what may be sent."""
        log = self._topic.log
        assert log is not None
        received: list[int] = []
        while deliveries := self.stream.take_nowait(1_000, 2**30):
            for delivery in deliveries:
                received += await self._read(log, delivery)
        self.offsets += received
        return received

    async def _read(self, log: TopicLog, delivery: Delivery) -> list[int]:
        received: list[int] = []
        missing = partial(self.subscription.missing, self.stream)
        async for piece in read_pieces(log, delivery.start, delivery.end, missing):
            for part in self.subscription.sendable(self.stream, delivery, piece):
                received += range(part.start, part.end)
                self.attempts += [delivery.attempt] * part.count
                self.subscription.drained(self.stream, part.count)
        return received

    async def ack(self, start: int, end: int | None = None) -> None:
        over = Done()
        stop = start + 1 if end is None else end
        self.subscription.ack(Offset(start), Offset(stop), over)
        await over.over

    async def seek(self, offset: int) -> None:
        over = Done()
        self.subscription.seek(Offset(offset), over)
        await over.over


class Done:
    """A callback that can be awaited."""

    def __init__(self) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __call__(self, error: DanubeError | None) -> None:
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)


class ServedTopic:
    """A topic, and publishes that can be awaited."""

    def __init__(
        self, topic: Topic, storage: Storage, tasks: TaskScope, schemas: InspectionContext
    ) -> None:
        self.topic = topic
        self.storage = storage
        self.schemas = schemas
        self._tasks = tasks

    @classmethod
    async def start(
        cls,
        files: Files,
        config: StorageConfig | None = None,
        *,
        clock: Clock | None = None,
        policies: Policies | None = None,
        reliable: bool = True,
        durability: Durability = "fsync",
        guard: Guard | None = None,
    ) -> "ServedTopic":
        def unexpected(name: str, error: BaseException) -> None:
            raise error

        tasks = TaskScope(unexpected)
        clock = clock or SimulatedClock()
        try:
            storage = await Storage.open(files, clock, tasks, config or StorageConfig(), DIRECTORY)
        except BaseException:
            await tasks.close()
            raise
        record = TopicRecord(
            id=TopicId(1),
            strategy="Reliable" if reliable else "NonReliable",
            durability=durability,
            created_ms=0,
        )
        threads = WorkerThreads("schemas", 1)
        schemas = InspectionContext(
            registry=SchemaRegistry(MemoryMetadataStore(clock), clock, threads, SchemaTools()),
            threads=threads,
            waiting=WaitingRoom(),
        )
        context = TopicContext(
            clock=clock,
            tasks=tasks,
            storage=storage,
            dead_letters=NoDeadLetters(),
            broker_url="",
            observer=BrokerMetrics("1").topic(NAME),
            inspection=schemas,
            guard=guard,
        )
        topic = Topic(NAME, record, policies or Policies(), context)
        return cls(topic, storage, tasks, schemas)

    def send(self, sent: Message, number: MessageSequence | None = None) -> Answer:
        answer = Answer()
        self.topic.publish(sent, answer, number)
        return answer

    def put(self, batch: Batch, stamp: SequenceRange | None = None) -> Answer:
        answer = Answer()
        self.topic.publish_batch(batch, answer, stamp=stamp)
        return answer

    async def publish_batch(self, batch: Batch, stamp: SequenceRange | None = None) -> Outcome:
        outcome: Outcome = await self.put(batch, stamp).over
        return outcome

    def subscribe(
        self,
        kind: SubscriptionType = "Exclusive",
        *,
        number: int = 7,
        window: int = 100,
        credit: int | None = None,
        policy: FailurePolicy | None = None,
    ) -> Receiver:
        """Open the stream of a consumer of a subscription, which goes on where it stopped."""
        name = f"s{number}"
        subscription = self.topic.subscriptions.get(name)
        if subscription is None:
            subscription_id = SubscriptionId(number)
            progress = self.storage.progress(subscription_id)
            seen_end = self.topic.log.durable_end if progress and self.topic.log else Offset(0)
            if progress is None:
                self.storage.create_progress(subscription_id, Offset(0), lambda error: None)
            subscription = self.topic.add_subscription(
                subscription_id,
                name,
                kind,
                progress or Progress(Offset(0)),
                DispatchSettings(window=window, policy=policy or FailurePolicy()),
                seen_end,
            )
        consumer = Consumer(ConsumerId(len(subscription.consumers) + 1), "c", ())
        consumer.credit = consumer.credit if credit is None else credit
        subscription.join(consumer, "peer")
        return Receiver(self.topic, subscription, subscription.open_stream(consumer, "peer"))

    async def payloads(self) -> list[bytes]:
        """Every readable payload, in the order of offsets."""
        log = self.topic.log
        assert log is not None
        found: list[bytes] = []
        at = log.first_offset
        while pieces := await log.read(at, log.durable_end):
            assert pieces[0].start == at, "there is a gap"
            for piece in pieces:
                rows = piece.batch.messages(piece.first_row, piece.end_row)
                found += [row.payload for row in rows]
            at = Offset(pieces[-1].end)
        return found

    async def stop(self) -> None:
        await self.storage.close()
        await self._tasks.close()

    async def abandon(self) -> None:
        """End the tasks of a life whose disk is gone."""
        await self._tasks.close()


@asynccontextmanager
async def served(files: Files, **options: Any) -> AsyncIterator[ServedTopic]:
    topic = await ServedTopic.start(files, **options)
    try:
        yield topic
    finally:
        await topic.stop()
