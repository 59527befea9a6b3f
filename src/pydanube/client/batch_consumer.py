"""Receives the batches of one topic or partition, across restarts and moves of brokers."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol, Self

import pyarrow as pa
from msgspec.structs import replace
from typing_extensions import override

from pydanube.client import flight
from pydanube.client.brokers import Brokers
from pydanube.client.connection import Connection, Subscription
from pydanube.client.frames import Rows
from pydanube.errors import DanubeError, InvalidRequest
from pydanube.model.ranges import Range, RangeSet
from pydanube.wire.flight.descriptors import (
    RANGES_MAX,
    AcksDurable,
    ConsumerSays,
    Delivered,
)

CREDIT_ROWS = 10_000
"""How many rows may be on their way to a consumer, or wait for it."""
CREDIT_STEP_ROWS = CREDIT_ROWS // 4
"""How many of them are asked for at once: every time the broker is asked, it cuts a batch in two
where the credit ends."""
ACKS_WAITING_MAX = 1_000


class DeliveredBatch(Rows, frozen=True):
    """Messages of a reliable topic that a subscription has delivered, one after the other."""

    attempt: int
    """1 when they are delivered for the first time, as far as the broker tells."""
    mark: str | None = None
    """What the broker is shown when they are settled: which subscription delivered them."""

    @property
    def end(self) -> int:
        """The offset behind the last row."""
        end: int = self.offset + self.rows.num_rows
        return end

    def slice(self, start: int, end: int) -> Self:
        """Return the rows from number `start` up to before `end`, to settle them alone.

        The first row of the batch is number 0.
        """
        if not 0 <= start < end <= self.rows.num_rows:
            raise InvalidRequest(
                f"the batch has rows 0 to before {self.rows.num_rows}, not {start} to before {end}"
            )
        return replace(self, offset=self.offset + start, rows=self.rows.slice(start, end - start))


class BatchSource(Protocol):
    """Where a consumer has the batches of one topic or partition from."""

    async def run(self) -> None:
        """Receive until cancelled or refused for good."""

    def taken(self, batch: DeliveredBatch) -> None:
        """Take note that the application has a batch in its hands."""

    async def ack(self, batch: DeliveredBatch) -> None:
        """Report all rows of a batch as done; returns once that is durable."""

    async def ack_until(self, last: DeliveredBatch) -> None:
        """Report a batch as done, and all before it that was taken and not settled."""

    async def nack(self, batch: DeliveredBatch, *, delay_ms: int, reason: str | None) -> None:
        """Give all rows of a batch back; returns once that is durable."""


class BatchConsumer(BatchSource):
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
        self._owed_rows = 0
        """What the application has taken, and the broker has not been asked for again."""
        self._in_hand = RangeSet()
        """What the application has taken and not settled. Brokers could tell too, but only of one
        stream, and would count rows that wait here unread; those must not be acked."""
        self._mark: str | None = None
        """Of what is in hand."""
        self._next_id = 0
        self._waiting: dict[int, tuple[ConsumerSays, asyncio.Future[None]]] = {}
        """Acks and nacks that are not known to be durable; every new stream begins with them."""
        self._to_say: asyncio.Queue[ConsumerSays] = asyncio.Queue()
        """Bounded by the acks that wait, and by the batches that were taken."""
        self._failure: DanubeError | None = None

    @override
    async def run(self) -> None:
        try:
            await self._run()
        except DanubeError as error:
            self._failure = error
            for _, durable in self._waiting.values():
                if not durable.done():
                    durable.set_exception(error)
            raise

    async def _run(self) -> None:
        attempt = 0
        while True:
            self._connection = await self._brokers.serving(self.topic, self._connection)
            try:
                async for _ in self._receive(self._connection):
                    attempt = 0
            except DanubeError as error:
                # As with single messages: once subscribed, a consumer waits as long as it takes.
                if not error.retryable:
                    raise
                await self._brokers.pause_after(error, attempt)
            else:
                await self._brokers.pause(attempt)
            attempt += 1

    @override
    def taken(self, batch: DeliveredBatch) -> None:
        """Let the broker send as many rows as the application has taken."""
        count = batch.rows.num_rows
        self._untaken_rows -= count
        self._owed_rows += count
        if batch.mark != self._mark:
            # What was taken before has been delivered by a subscription that is no more, or has
            # been moved since; its offsets say nothing about this one's.
            self._mark, self._in_hand = batch.mark, RangeSet()
        self._in_hand.add(batch.offset, batch.end)
        if self._owed_rows >= CREDIT_STEP_ROWS:
            self._to_say.put_nowait(ConsumerSays(credit=self._owed_rows))
            self._owed_rows = 0

    @override
    async def ack(self, batch: DeliveredBatch) -> None:
        await self._ack([(batch.offset, batch.end)], batch.mark)

    @override
    async def ack_until(self, last: DeliveredBatch) -> None:
        due = RangeSet()
        if last.mark == self._mark:
            due = RangeSet(self._in_hand.within(0, last.offset))
        due.add(last.offset, last.end)
        ranges = list(due)
        for first in range(0, len(ranges), RANGES_MAX):
            await self._ack(ranges[first : first + RANGES_MAX], last.mark)

    async def _ack(self, ranges: list[Range], mark: str | None) -> None:
        await self._settle(ConsumerSays(ack=ranges, mark=mark))
        if mark == self._mark:
            for start, end in ranges:
                self._in_hand.remove(start, end)

    @override
    async def nack(self, batch: DeliveredBatch, *, delay_ms: int, reason: str | None) -> None:
        # Before it is sent: the rows may be here again before its answer is.
        if batch.mark == self._mark:
            self._in_hand.remove(batch.offset, batch.end)
        rows = (batch.offset, batch.end)
        says = ConsumerSays(nack=[rows], delay_ms=delay_ms, reason=reason, mark=batch.mark)
        await self._settle(says)

    async def _settle(self, said: ConsumerSays) -> None:
        if self._failure is not None:
            raise self._failure
        async with self._acks_room:
            number, self._next_id = self._next_id, self._next_id + 1
            says = replace(said, id=number)
            durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[number] = (says, durable)
            self._to_say.put_nowait(says)
            try:
                await durable
            finally:
                del self._waiting[number]

    async def _receive(self, connection: Connection) -> AsyncIterator[None]:
        self._to_say = asyncio.Queue()
        for says, _ in self._waiting.values():
            self._to_say.put_nowait(says)
        credit = max(0, CREDIT_ROWS - self._untaken_rows)
        self._owed_rows = 0
        answers = flight.exchange(
            connection, self.topic, self._subscription, credit, _says(self._to_say)
        )
        async for said, rows in answers:
            if isinstance(said, AcksDurable):
                self._settled(said.acked)
            elif rows is not None:
                self._deliver(said, rows)
            yield

    def _settled(self, number: int) -> None:
        """Take in that what was said under that number is durable, and all before it."""
        for earlier, (_, durable) in self._waiting.items():
            if earlier > number:
                return
            if not durable.done():
                durable.set_result(None)

    def _deliver(self, said: Delivered, rows: pa.RecordBatch) -> None:
        if said.offset is None:
            raise InvalidRequest(f"{self.topic} is not reliable; receive its messages one by one")
        self._untaken_rows += rows.num_rows
        # Never waits, since notices of acks come behind; credit is what bounds the queue.
        batch = DeliveredBatch(self.topic, said.offset, rows, said.attempt, said.mark)
        self._batches.put_nowait(batch)


async def _says(queue: "asyncio.Queue[ConsumerSays]") -> AsyncIterator[ConsumerSays]:
    """Give what is to be said, in order; what waits at one moment is said together."""
    while True:
        waiting = [await queue.get()]
        while not queue.empty():
            waiting.append(queue.get_nowait())
        for said in said_together(waiting):
            yield said


def said_together(waiting: Sequence[ConsumerSays]) -> Iterator[ConsumerSays]:
    """Say the same in fewer words: acks and credit that follow each other become one.

    The number of the last stands for all of them, since a broker answers it when all before it is
    durable.
    """
    acks = RangeSet()
    credit, number, count = 0, None, 0
    mark: str | None = None
    for said in waiting:
        is_full = len(acks) + len(said.ack) > RANGES_MAX
        is_other = bool(acks) and bool(said.ack) and said.mark != mark
        if count and (said.nack or is_full or is_other):
            yield ConsumerSays(credit=credit, ack=list(acks), mark=mark, id=number)
            acks, credit, number, count, mark = RangeSet(), 0, None, 0, None
        if said.nack:
            yield said
            continue
        for start, end in said.ack:
            acks.add(start, end)
            mark = said.mark
        credit += said.credit
        number = said.id if said.id is not None else number
        count += 1
    if count:
        yield ConsumerSays(credit=credit, ack=list(acks), mark=mark, id=number)
