"""Receives messages of a topic or of its partitions, across restarts and moves of brokers."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import override

from pydanube.client.brokers import Brokers
from pydanube.client.codecs import Codec, Value
from pydanube.client.connection import Subscription
from pydanube.client.message import ReceivedMessage
from pydanube.client.single_consumer import SETTLE_SECONDS_MAX, TopicConsumer
from pydanube.client.standings import changes, standings
from pydanube.errors import Conflict, InvalidRequest, NotSupported, Unavailable
from pydanube.model.standing import SubscriptionStanding
from pydanube.observability.logging import get_logger
from pydanube.runtime.tasks import TaskScope

if TYPE_CHECKING:
    from pydanube.client.batch_consumer import BatchSource, DeliveredBatch

QUEUE_MESSAGES_MAX = 100

_log = get_logger(__name__)


class Consumer(AsyncIterator[ReceivedMessage[Value]], Generic[Value]):
    """A member of one subscription; `receive` and `ack` may be called by many tasks at once.

    On a reliable topic every message is delivered until it is acked, so that after a reconnect
    some come again. Unread messages wait in a bounded queue: a consumer that does not keep up
    slows its stream down, and nothing is dropped here.
    """

    def __init__(
        self,
        brokers: Brokers,
        topics: list[str],
        subscription: Subscription,
        codec: Codec[Value],
    ) -> None:
        self._brokers = brokers
        self._subscription = subscription
        self._queue: asyncio.Queue[ReceivedMessage[Value] | None] = asyncio.Queue(
            QUEUE_MESSAGES_MAX
        )
        self._sources: dict[str, BatchSource] = {}
        self._failure: Exception | None = None
        self.closed = False
        self._tasks = TaskScope(self._report)
        self._partitions = {
            topic: TopicConsumer(brokers, topic, subscription, codec, self._queue)
            for topic in topics
        }

    @property
    def topics(self) -> list[str]:
        """The topic itself, or its partitions in order."""
        return list(self._partitions)

    def is_namesake_of(self, other: "Consumer[Any]") -> bool:
        """Tell whether both have one place: brokers tell consumers apart by their names."""
        mine, others = self._subscription, other._subscription
        names = (mine.name, mine.consumer_name) == (others.name, others.consumer_name)
        return names and not self._partitions.keys().isdisjoint(other._partitions)

    async def displace(self) -> None:
        """End it with an error: another consumer of the same client has come under its name."""
        name = self._subscription.consumer_name
        self._failure = Conflict(
            f"another consumer named {name} has taken this one's place in subscription "
            f"{self._subscription.name}; give each consumer a unique name, or none"
        )
        _log.warning("a consumer was displaced", consumer=name, topics=", ".join(self.topics))
        await self._tasks.close()
        self._drop_unread()
        self._queue.put_nowait(None)

    async def open(self) -> None:
        """Subscribe everywhere, then start to receive; raises what any subscribe raises."""
        for partition in self._partitions.values():
            await partition.attach()
        self._start()

    def _start(self) -> None:
        for partition in self._partitions.values():
            self._tasks.start(self._run(partition), f"receive {partition.topic}")

    async def receive(self, *, seconds_max: float | None = None) -> ReceivedMessage[Value]:
        """Wait for the next message; those of one partition come in the order of the broker.

        TimeoutError if none comes within `seconds_max`.
        """
        self._check_single()
        async with asyncio.timeout(seconds_max):
            message = await self._queue.get()
        if message is not None:
            self._partition_of(message).taken(message.receipt)
            return message
        self._queue.put_nowait(None)  # Others may wait for the end too.
        raise self._failure or Conflict("this consumer is closed")

    def receive_nowait(self) -> ReceivedMessage[Value] | None:
        """Return a message that waits here already; None if there is none."""
        self._check_single()
        if self._queue.empty():
            return None
        message = self._queue.get_nowait()
        if message is None:
            self._queue.put_nowait(None)  # For those who wait for the end.
            return None
        self._partition_of(message).taken(message.receipt)
        return message

    def _check_single(self) -> None:
        if self._sources:
            raise Conflict("this consumer yields batches; open another one for single messages")

    async def ack(self, message: ReceivedMessage[Any]) -> None:
        """Report a message as done: once this returns it is not delivered again."""
        await self._partition_of(message).ack(message.receipt)

    async def ack_until(self, last: "ReceivedMessage[Any] | DeliveredBatch") -> None:
        """Report a message or batch as done, and all before it that this consumer has received.

        That is what lies at lower offsets of the same topic or partition, was received here, and
        was neither acked nor nacked; what other consumers have, or what waits unread, is not
        touched. Once this returns nothing of it is delivered again.
        """
        if isinstance(last, ReceivedMessage):
            await self._partition_of(last).ack_until([last.receipt])
        else:
            await self._in_time(self._source_of(last).ack_until(last), last.topic)

    async def nack(
        self,
        message: ReceivedMessage[Any],
        *,
        delay_ms: int | None = None,
        reason: str | None = None,
    ) -> None:
        """Give a message back, to be delivered again as the failure policy says."""
        await self._partition_of(message).nack(message.receipt, delay_ms=delay_ms, reason=reason)

    async def seek(self, position: str) -> None:
        """Move the subscription, for all its consumers; returns once that is durable.

        `position` is earliest, latest, time:<milliseconds since 1970> or, for a topic without
        partitions, offset:<n>. Unread messages are dropped; those in other hands stay there.
        """
        if self.closed or self._sources:
            raise Conflict("this consumer is closed, or gives batches; seek before it does")
        if len(self._partitions) > 1 and position.startswith("offset:"):
            raise InvalidRequest("every partition counts its own offsets; seek to a time instead")
        # Without a stream nothing can arrive that was sent before the subscription was moved.
        await self._tasks.close()
        self._drop_unread()
        try:
            for partition in self._partitions.values():
                partition.forget()
                await partition.seek(position)
        finally:
            self._tasks = TaskScope(self._report)
            self._start()

    async def unsubscribe(self) -> None:
        """Close, and delete the subscription; Conflict if others consume from it."""
        await self._end()
        for partition in self._partitions.values():
            await partition.unsubscribe()

    async def standings(self) -> list[SubscriptionStanding]:
        """Tell how the subscription gets on, on each topic or partition that is served now.

        It says what blocks or stalls it, how far it is behind, and which failure policy holds.
        NotSupported, or InvalidRequest, from brokers that cannot tell.
        """
        return await standings(self._brokers, self.topics, self._subscription.name)

    async def stops(self) -> AsyncIterator[SubscriptionStanding]:
        """Iterate over what stops the subscription, and over what goes on again.

        That is a blocked or stalled state with its offset, reason and next step, and then the state
        in which it goes on. It looks every five seconds; what is stopped already comes first. Ends
        when the consumer is closed, or with a broker that cannot tell.
        """
        news = changes(self._brokers, self.topics, self._subscription.name)
        async for standing in news:
            if self.closed:
                return
            yield standing

    async def batches(self) -> "AsyncIterator[DeliveredBatch]":
        """Receive Arrow batches of a reliable topic instead of messages, until closed.

        Call it first, and once: unread single messages are left to be delivered again, as another
        attempt. Settle each
        batch with `ack_batch`, `ack_until` or `nack_batch`; after a reconnect some come again.
        From brokers without Arrow Flight, what arrives together is a batch.
        """
        if self.closed or self._sources:
            raise Conflict("this consumer is closed, or gives batches already")
        from pydanube.client.batch_consumer import BatchConsumer  # Arrow, for those who use it.

        queue: asyncio.Queue[DeliveredBatch | None] = asyncio.Queue()
        self._sources = {
            topic: BatchConsumer(self._brokers, topic, self._subscription, queue)
            for topic in self._partitions
        }
        await self._tasks.close()
        self._tasks = TaskScope(self._report)
        for topic in self._partitions:
            self._tasks.start(self._run_batches(topic, queue), f"receive batches of {topic}")
        while (batch := await queue.get()) is not None:
            self._sources[batch.topic].taken(batch)
            yield batch
        if self._failure is not None:
            raise self._failure

    async def ack_batch(self, batch: "DeliveredBatch") -> None:
        """Report all messages of a batch as done: once this returns they are not delivered again.

        Unlike single messages, batches can be settled only while this consumer is open. To settle
        some rows alone, give `batch.slice(start, end)`.
        """
        await self._in_time(self._source_of(batch).ack(batch), batch.topic)

    async def nack_batch(
        self, batch: "DeliveredBatch", *, delay_ms: int = 0, reason: str | None = None
    ) -> None:
        """Give all messages of a batch back, to be delivered again as the failure policy says."""
        source = self._source_of(batch)
        await self._in_time(source.nack(batch, delay_ms=delay_ms, reason=reason), batch.topic)

    def _source_of(self, batch: "DeliveredBatch") -> "BatchSource":
        source = self._sources.get(batch.topic)
        if source is None or self.closed:
            raise Conflict(f"this consumer receives no batches of {batch.topic}")
        return source

    async def _in_time(self, settling: Coroutine[Any, Any, None], topic: str) -> None:
        try:
            async with asyncio.timeout(SETTLE_SECONDS_MAX):
                await settling
        except TimeoutError as error:
            raise Unavailable(
                f"{topic} confirmed no ack or nack within {SETTLE_SECONDS_MAX:g} s; the messages "
                "may be delivered again"
            ) from error

    async def _run_batches(self, topic: str, queue: "asyncio.Queue[DeliveredBatch | None]") -> None:
        try:
            try:
                await self._sources[topic].run()
            except NotSupported:
                await self._gather_batches(topic, queue)
        except Exception as error:  # noqa: BLE001  # The outermost loop: `batches` raises it.
            self._failure = error
        finally:
            queue.put_nowait(None)

    async def _gather_batches(
        self, topic: str, queue: "asyncio.Queue[DeliveredBatch | None]"
    ) -> None:
        from pydanube.client.gathered_consumer import GatheredConsumer

        _log.warning(
            "the broker has no Arrow Flight; grouping single messages into batches", topic=topic
        )
        gathered = GatheredConsumer(self._brokers, topic, self._subscription, queue)
        self._sources[topic] = gathered
        await gathered.run()

    async def close(self) -> None:
        """Stop receiving. Unread messages are dropped; the broker delivers them again.

        Messages received before can still be acked until the client closes. The place is free for
        others at once. A given name may come back; one that was made up is forgotten.
        """
        if self.closed:
            return
        await self._end()
        await asyncio.gather(*(partition.leave() for partition in self._partitions.values()))

    async def _end(self) -> None:
        self.closed = True
        await self._tasks.close()
        self._drop_unread()
        self._queue.put_nowait(None)

    def _drop_unread(self) -> None:
        while not self._queue.empty():
            self._queue.get_nowait()

    @override
    def __aiter__(self) -> AsyncIterator[ReceivedMessage[Value]]:
        """Iterate until the consumer is closed; raises when it fails."""
        return self

    @override
    async def __anext__(self) -> ReceivedMessage[Value]:
        try:
            return await self.receive()
        except Conflict as error:
            if self.closed:
                raise StopAsyncIteration from error
            raise

    def _partition_of(self, message: ReceivedMessage[Any]) -> "TopicConsumer[Value]":
        partition = self._partitions.get(message.topic)
        if partition is None:
            raise Conflict(f"this consumer is not subscribed to {message.topic}")
        return partition

    async def _run(self, partition: "TopicConsumer[Value]") -> None:
        try:
            await partition.run()
        except Exception as error:  # noqa: BLE001  # The outermost loop: `receive` raises it.
            self._failure = error
            await self._queue.put(None)  # Behind what was received before it failed.

    def _report(self, task: str, failure: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"{task} failed", "exception": failure}
        )
