"""Batches from brokers that deliver single messages only: gathered here, and settled one by one."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Self

from msgspec.structs import replace
from typing_extensions import override

from pydanube.client.batch_consumer import CREDIT_ROWS, BatchSource, DeliveredBatch
from pydanube.client.brokers import Brokers
from pydanube.client.codecs import BYTES
from pydanube.client.connection import Subscription
from pydanube.client.message import Receipt, ReceivedMessage
from pydanube.client.single_consumer import TopicConsumer
from pydanube.errors import Conflict
from pydanube.model.batch import gather_columns
from pydanube.model.message import Message
from pydanube.runtime.clock import Timer

GATHER_SECONDS = 0.005
"""How long the first message of a batch waits for others."""
UNSETTLED_MAX = 100_000
"""Beyond, no more is received until the application has settled some."""


class GatheredBatch(DeliveredBatch, frozen=True):
    """A batch that knows how each of its messages is settled."""

    receipts: tuple[Receipt, ...] = ()

    @override
    def slice(self, start: int, end: int) -> Self:
        return replace(super().slice(start, end), receipts=self.receipts[start:end])


class GatheredConsumer(BatchSource):
    """Receives messages, and gives those together that arrive within GATHER_SECONDS.

    The rows of a batch lie one after the other, so a gap begins a new one.
    """

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        subscription: Subscription,
        batches: "asyncio.Queue[DeliveredBatch | None]",
    ) -> None:
        self.topic = topic
        self._single = TopicConsumer(brokers, topic, subscription, BYTES, self)
        self._batches = batches
        self._arrived: list[ReceivedMessage[bytes]] = []
        self._clock = brokers.surroundings.clock
        self._gathering: Timer | None = None
        self._untaken_rows = 0
        self._room = asyncio.Event()

    @override
    async def run(self) -> None:
        try:
            await self._single.attach()
            await self._single.run()
        finally:
            if self._gathering is not None:
                self._gathering.cancel()

    # What comes.

    async def put(self, message: ReceivedMessage[bytes]) -> None:
        """Take a message in; waits while too many are unread or unsettled."""
        while self._untaken_rows >= CREDIT_ROWS or self._single.in_hand >= UNSETTLED_MAX:
            self._room.clear()
            await self._room.wait()
        self._untaken_rows += 1
        if not self._arrived:
            self._gathering = self._clock.call_later(GATHER_SECONDS, self._give)
        self._arrived.append(message)

    def _give(self) -> None:
        arrived, self._arrived = self._arrived, []
        for run in _runs(arrived):
            rows = gather_columns([_as_sent(message) for message in run])
            receipts = tuple(message.receipt for message in run)
            batch = GatheredBatch(self.topic, run[0].offset, rows, 1, receipts=receipts)
            self._batches.put_nowait(batch)

    @override
    def taken(self, batch: DeliveredBatch) -> None:
        self._untaken_rows -= batch.rows.num_rows
        for receipt in self._receipts(batch):
            self._single.taken(receipt)
        self._room.set()

    # What is settled.

    @override
    async def ack(self, batch: DeliveredBatch) -> None:
        await self._single.ack_each(self._receipts(batch))
        self._room.set()

    @override
    async def ack_until(self, last: DeliveredBatch) -> None:
        await self._single.ack_until(self._receipts(last))
        self._room.set()

    @override
    async def nack(self, batch: DeliveredBatch, *, delay_ms: int, reason: str | None) -> None:
        await self._single.nack_each(self._receipts(batch), delay_ms=delay_ms, reason=reason)
        self._room.set()

    def _receipts(self, batch: DeliveredBatch) -> Sequence[Receipt]:
        if not isinstance(batch, GatheredBatch):
            raise Conflict(
                f"the broker of {self.topic} has no Arrow Flight any more, by which this batch came"
                "; its messages will be delivered again"
            )
        return batch.receipts


def _runs(messages: Iterable[ReceivedMessage[bytes]]) -> list[list[ReceivedMessage[bytes]]]:
    runs: list[list[ReceivedMessage[bytes]]] = []
    for message in messages:
        if runs and runs[-1][-1].offset + 1 == message.offset:
            runs[-1].append(message)
        else:
            runs.append([message])
    return runs


def _as_sent(message: ReceivedMessage[bytes]) -> Message:
    return Message(
        payload=message.payload,
        publish_time_ms=message.publish_time_ms,
        producer_name=message.producer_name,
        routing_key=message.routing_key,
        attributes=message.attributes or None,
        schema_id=message.schema_id,
        schema_version=message.schema_version,
    )
