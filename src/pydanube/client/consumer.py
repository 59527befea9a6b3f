"""Receives messages of a topic or of its partitions, across restarts and moves of brokers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import override

from pydanube.client.brokers import Brokers
from pydanube.client.codecs import Codec, Value
from pydanube.client.connection import Connection, Subscription
from pydanube.client.message import ReceivedMessage
from pydanube.errors import Conflict, DanubeError, InvalidRequest, NotFound, Unavailable
from pydanube.runtime.tasks import TaskScope

if TYPE_CHECKING:
    from pydanube.client.batch_consumer import BatchConsumer, DeliveredBatch

QUEUE_MESSAGES_MAX = 100
HEALTH_SECONDS = 5.0
SETTLE_SECONDS_MAX = 30.0


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
        self._batch_partitions: dict[str, BatchConsumer] = {}
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
        async with asyncio.timeout(seconds_max):
            message = await self._queue.get()
        if message is not None:
            return message
        self._queue.put_nowait(None)  # Others may wait for the end too.
        raise self._failure or Conflict("this consumer is closed")

    def receive_nowait(self) -> ReceivedMessage[Value] | None:
        """Return a message that waits here already; None if there is none."""
        if self._queue.empty():
            return None
        message = self._queue.get_nowait()
        if message is None:
            self._queue.put_nowait(None)  # For those who wait for the end.
        return message

    async def ack(self, message: ReceivedMessage[Any]) -> None:
        """Report a message as done: once this returns it is not delivered again."""
        await self._partition_of(message).ack(message)

    async def nack(
        self,
        message: ReceivedMessage[Any],
        *,
        delay_ms: int | None = None,
        reason: str | None = None,
    ) -> None:
        """Give a message back, to be delivered again as the failure policy says."""
        await self._partition_of(message).nack(message, delay_ms=delay_ms, reason=reason)

    async def seek(self, position: str) -> None:
        """Move the subscription, for all its consumers; returns once that is durable.

        `position` is earliest, latest, time:<milliseconds since 1970> or, for a topic without
        partitions, offset:<n>. Unread messages are dropped; those in other hands stay there.
        """
        if self.closed or self._batch_partitions:
            raise Conflict("this consumer is closed, or gives batches; seek before it does")
        if len(self._partitions) > 1 and position.startswith("offset:"):
            raise InvalidRequest("every partition counts its own offsets; seek to a time instead")
        # Without a stream nothing can arrive that was sent before the subscription was moved.
        await self._tasks.close()
        self._drop_unread()
        try:
            for partition in self._partitions.values():
                await partition.seek(position)
        finally:
            self._tasks = TaskScope(self._report)
            self._start()

    async def unsubscribe(self) -> None:
        """Close, and delete the subscription; Conflict if others consume from it."""
        await self._end()
        for partition in self._partitions.values():
            await partition.unsubscribe()

    async def batches(self) -> "AsyncIterator[DeliveredBatch]":
        """Receive Arrow batches of a reliable topic instead of messages, until closed.

        Call it first, and once: unread single messages are left to be delivered again. Ack each
        batch with `ack_batch`; after a reconnect some come again.
        """
        if self.closed or self._batch_partitions:
            raise Conflict("this consumer is closed, or gives batches already")
        from pydanube.client.batch_consumer import BatchConsumer  # Arrow, for those who use it.

        queue: asyncio.Queue[DeliveredBatch | None] = asyncio.Queue()
        self._batch_partitions = {
            topic: BatchConsumer(self._brokers, topic, self._subscription, queue)
            for topic in self._partitions
        }
        await self._tasks.close()
        self._tasks = TaskScope(self._report)
        for partition in self._batch_partitions.values():
            self._tasks.start(
                self._run_batches(partition, queue), f"receive batches of {partition.topic}"
            )
        while (batch := await queue.get()) is not None:
            self._batch_partitions[batch.topic].taken(batch)
            yield batch
        if self._failure is not None:
            raise self._failure

    async def ack_batch(self, batch: "DeliveredBatch") -> None:
        """Report all messages of a batch as done: once this returns they are not delivered again.

        Unlike single messages, batches can be acked only while this consumer is open.
        """
        partition = self._batch_partitions.get(batch.topic)
        if partition is None or self.closed:
            raise Conflict(f"this consumer receives no batches of {batch.topic}")
        try:
            async with asyncio.timeout(SETTLE_SECONDS_MAX):
                await partition.ack(batch)
        except TimeoutError as error:
            raise Unavailable(
                f"{batch.topic} confirmed no ack within {SETTLE_SECONDS_MAX:g} s; the messages may "
                "be delivered again"
            ) from error

    async def _run_batches(
        self, partition: "BatchConsumer", queue: "asyncio.Queue[DeliveredBatch | None]"
    ) -> None:
        try:
            await partition.run()
        except Exception as error:  # noqa: BLE001  # The outermost loop: `batches` raises it.
            self._failure = error
        finally:
            queue.put_nowait(None)

    async def close(self) -> None:
        """Stop receiving. Unread messages are dropped; the broker delivers them again.

        Messages received before can still be acked until the client closes. Under a name of its
        own the broker is told that nobody will come back; a given one may.
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


class TopicConsumer(Generic[Value]):
    """A consumer on one topic or partition, subscribed again whenever its broker lost it."""

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        subscription: Subscription,
        codec: Codec[Value],
        queue: asyncio.Queue[ReceivedMessage[Value] | None],
    ) -> None:
        self.topic = topic
        self._brokers = brokers
        self._subscription = subscription
        self._codec = codec
        self._queue = queue
        self._connection = brokers.service
        self._consumer_id = 0
        self._heard = False  # Since the stream was opened.

    async def attach(self) -> None:
        """Subscribe at the broker that serves the topic; retries as every client does."""
        self._connection, self._consumer_id = await self._brokers.attach(
            self.topic, self._connection, self._subscribe
        )

    async def seek(self, position: str) -> None:
        """Move the subscription on this topic; retries as every client does."""
        name = self._subscription.name
        self._connection, _ = await self._brokers.attach(
            self.topic,
            self._connection,
            lambda connection: connection.seek(self.topic, name, position),
        )

    async def unsubscribe(self) -> None:
        """Delete the subscription on this topic, if this consumer is its last one."""
        await self._connection.unsubscribe(self.topic, self._subscription.name, self._consumer_id)

    async def leave(self) -> None:
        """Give a name up that nobody will use again."""
        if self._subscription.is_temporary and self._consumer_id:
            with suppress(DanubeError):  # Other brokers notice by themselves.
                await self._connection.close_consumer(self._consumer_id)

    async def run(self) -> None:
        """Receive until cancelled; raises what cannot heal.

        A stream that ends cleanly was taken over, by this name elsewhere: it is opened again, and
        the broker decides who has it. Subscribing again would take it back, and so on for ever.
        """
        attempt = 0
        while True:
            lost = await self._receive_until_lost()
            attempt = 0 if self._heard else attempt
            await self._brokers.pause(attempt)
            attempt += 1
            if lost is not None:
                await self._attach_again(lost)

    async def ack(self, message: ReceivedMessage[Any]) -> None:
        """Ack at the broker the consumer is attached to, also across a reconnect."""
        await self._settle(
            lambda connection: connection.ack(message, self._subscription.name), message
        )

    async def nack(
        self, message: ReceivedMessage[Any], *, delay_ms: int | None, reason: str | None
    ) -> None:
        """Nack at the broker the consumer is attached to, also across a reconnect."""
        await self._settle(
            lambda connection: connection.nack(
                message, self._subscription.name, delay_ms=delay_ms, reason=reason
            ),
            message,
        )

    async def _settle(
        self, call: Callable[[Connection], Awaitable[None]], message: ReceivedMessage[Any]
    ) -> None:
        """Repeat until the broker took it: settling twice is harmless, settling never is not."""
        attempt = 0
        refusal: DanubeError | None = None
        try:
            async with asyncio.timeout(SETTLE_SECONDS_MAX):
                while True:
                    try:
                        return await call(self._connection)
                    except DanubeError as error:
                        if not error.retryable:
                            raise
                        refusal = error
                    await self._brokers.pause(attempt)
                    attempt += 1
        except TimeoutError as error:
            raise Unavailable(
                f"{self.topic} did not take the ack or nack of offset {message.offset} within "
                f"{SETTLE_SECONDS_MAX:g} s; it will be delivered again (last refusal: {refusal})"
            ) from error

    async def _receive_until_lost(self) -> DanubeError | None:
        """Read the stream and watch its health; return why it is lost, None if it just ended."""
        self._heard = False
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read())
            watching = group.create_task(self._watch())
            await asyncio.wait((reading, watching), return_when=asyncio.FIRST_COMPLETED)
            ended = reading if reading.done() else watching
            reading.cancel()
            watching.cancel()
        return ended.result()

    async def _read(self) -> DanubeError | None:
        try:
            async with aclosing(
                self._connection.receive(self._consumer_id, self._codec)
            ) as messages:
                async for message in messages:
                    self._heard = True
                    await self._queue.put(message)
        except DanubeError as error:
            return error
        return None

    async def _watch(self) -> DanubeError:
        """Poll the broker, and return once it says that the consumer is gone."""
        while True:
            await self._brokers.surroundings.clock.sleep(HEALTH_SECONDS)
            try:
                live = await self._connection.consumer_is_live(self._consumer_id)
            except DanubeError:
                continue  # The stream tells better than a failed poll whether the broker is gone.
            if not live:
                return Unavailable(f"{self.topic} is being moved")

    async def _attach_again(self, lost: DanubeError) -> None:
        # A broker that does not know the consumer has forgotten it; any other refusal is meant.
        if not (lost.retryable or isinstance(lost, NotFound)):
            raise lost
        attempt = 0
        while True:
            try:
                return await self.attach()
            except DanubeError as error:
                if not error.retryable:
                    raise
            await self._brokers.pause(attempt)
            attempt += 1

    async def _subscribe(self, connection: Connection) -> int:
        return await connection.subscribe(self.topic, self._subscription)
