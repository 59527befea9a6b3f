"""Receives the batches of one topic or partition, across restarts and moves of brokers."""

import asyncio
from collections.abc import AsyncIterator

import pyarrow as pa
from msgspec import Struct

from pydanube.client import flight
from pydanube.client.brokers import Brokers
from pydanube.client.connection import Connection, Subscription
from pydanube.errors import DanubeError, InvalidRequest
from pydanube.model.batch import payloads_of
from pydanube.wire.flight.descriptors import AcksDurable, ConsumerSays, Delivered

CREDIT_ROWS = 10_000
"""How many rows may be on their way to a consumer, or wait for it."""
ACKS_WAITING_MAX = 1_000


class DeliveredBatch(Struct, frozen=True):
    """Messages of a reliable topic that a subscription has delivered, one after the other."""

    topic: str
    """The topic, or the partition."""
    offset: int
    """Of the first row."""
    attempt: int
    """1 when they are delivered for the first time, as far as the broker knows."""
    rows: pa.RecordBatch

    def payloads(self) -> list[bytes]:
        """Return the payload of every row; a few times faster than Arrow's own `to_pylist`."""
        return payloads_of(self.rows)


class BatchConsumer:
    """One stream at a time: batches come, credit and acks go, and both survive the stream."""

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        subscription: Subscription,
        batches: "asyncio.Queue[DeliveredBatch | None]",
    ) -> None:
        self.topic = topic
        self._brokers = brokers
        self._subscription = subscription
        self._batches = batches
        self._connection = brokers.service
        self._acks_room = asyncio.Semaphore(ACKS_WAITING_MAX)
        self._untaken_rows = 0
        self._next_ack = 0
        self._waiting: dict[int, tuple[ConsumerSays, asyncio.Future[None]]] = {}
        """Acks that are not known to be durable; every new stream begins with them."""
        self._to_say: asyncio.Queue[ConsumerSays] = asyncio.Queue()
        """Bounded by the acks that wait, and by the batches that were taken."""

    async def run(self) -> None:
        """Receive until cancelled or refused for good."""
        attempt = 0
        while True:
            self._connection = await self._brokers.serving(self.topic, self._connection)
            try:
                async for _ in self._receive(self._connection):
                    attempt = 0
            except DanubeError as error:
                if not (error.retryable and self._brokers.surroundings.retry.allows(attempt)):
                    raise
            await self._brokers.pause(attempt)
            attempt += 1

    async def ack(self, batch: DeliveredBatch) -> None:
        """Report all rows of a batch as done; returns once that is durable."""
        async with self._acks_room:
            number, self._next_ack = self._next_ack, self._next_ack + 1
            rows = (batch.offset, batch.offset + batch.rows.num_rows)
            says = ConsumerSays(ack=[rows], id=number)
            durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[number] = (says, durable)
            self._to_say.put_nowait(says)
            try:
                await durable
            finally:
                del self._waiting[number]

    def taken(self, batch: DeliveredBatch) -> None:
        """Let the broker send as many rows as the application has taken."""
        self._untaken_rows -= batch.rows.num_rows
        self._to_say.put_nowait(ConsumerSays(credit=batch.rows.num_rows))

    async def _receive(self, connection: Connection) -> AsyncIterator[None]:
        self._to_say = asyncio.Queue()
        for says, _ in self._waiting.values():
            self._to_say.put_nowait(says)
        credit = max(0, CREDIT_ROWS - self._untaken_rows)
        answers = flight.exchange(
            connection, self.topic, self._subscription, credit, _says(self._to_say)
        )
        async for said, rows in answers:
            if isinstance(said, AcksDurable):
                self._acked(said.acked)
            elif rows is not None:
                self._deliver(said, rows)
            yield

    def _acked(self, number: int) -> None:
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting[1].done():
            waiting[1].set_result(None)

    def _deliver(self, said: Delivered, rows: pa.RecordBatch) -> None:
        if said.offset is None:
            raise InvalidRequest(f"{self.topic} is not reliable; receive its messages one by one")
        self._untaken_rows += rows.num_rows
        # Never waits, since notices of acks come behind; credit is what bounds the queue.
        self._batches.put_nowait(DeliveredBatch(self.topic, said.offset, said.attempt, rows))


async def _says(queue: "asyncio.Queue[ConsumerSays]") -> AsyncIterator[ConsumerSays]:
    while True:
        yield await queue.get()
