"""Receives the batches of one topic or partition, across restarts and moves of brokers."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol, Self

import pyarrow as pa
from msgspec.structs import replace
from typing_extensions import override

from pydanube.client import flight
from pydanube.client.ack_gathering import LINGER_SECONDS, AckGatherer
from pydanube.client.brokers import Brokers
from pydanube.client.connection import Connection, Subscription
from pydanube.client.credit import CreditWindow
from pydanube.client.frames import Rows
from pydanube.client.item_queue import ItemQueue
from pydanube.errors import DanubeError, InvalidRequest, Unavailable
from pydanube.model.ranges import Range, RangeSet
from pydanube.wire.flight.descriptors import (
    RANGES_MAX,
    AcksDurable,
    ConsumerSays,
    Delivered,
)

CREDIT_ROWS = 10_000
"""How many rows may be on their way to a consumer, or wait for it."""
ACKS_WAITING_MAX = 1_000
SETTLE_SECONDS_MAX = 30.0
JOINED_ROWS_MAX = 10_000
JOINED_BYTES_MAX = 4 * 1024 * 1024
"""Larger batches are not joined: one is copied for it."""

Part = tuple[str | None, int, int]
"""The mark of a delivery, and a range of its offsets."""


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

    def with_those_behind(self, others: Sequence[Self]) -> Self:
        """Return one batch of this one and of others that lie right behind it."""
        return replace(self, rows=pa.concat_batches([self.rows, *(each.rows for each in others)]))


def joined(first: DeliveredBatch, queue: ItemQueue[DeliveredBatch]) -> DeliveredBatch:
    """Return a batch together with what waits already and lies right behind it.

    So batches grow while their consumer is busy, and each costs it less.
    """
    others: list[DeliveredBatch] = []
    last, rows, size = first, first.rows.num_rows, first.rows.nbytes
    while (following := queue.first()) is not None and _is_behind(following, last):
        rows += following.rows.num_rows
        size += following.rows.nbytes
        if rows > JOINED_ROWS_MAX or size > JOINED_BYTES_MAX:
            break
        queue.take()
        others.append(following)
        last = following
    return first.with_those_behind(others) if others else first


def _is_behind(batch: DeliveredBatch, last: DeliveredBatch) -> bool:
    places = (batch.topic, batch.mark, batch.offset), (last.topic, last.mark, last.end)
    return places[0] == places[1] and batch.attempt == last.attempt and type(batch) is type(last)


class BatchSource(Protocol):
    """Where a consumer has the batches of one topic or partition from."""

    async def run(self) -> None:
        """Receive until cancelled or refused for good."""

    def taken(self, batch: DeliveredBatch) -> None:
        """Take note that the application has a batch in its hands."""

    async def ack(self, batch: DeliveredBatch, *, durable: bool) -> None:
        """Report all rows of a batch as done; waits for that only if it shall be durable."""

    async def ack_until(self, last: DeliveredBatch, *, durable: bool) -> None:
        """Report a batch as done, and all before it that was taken and not settled."""

    async def flush(self) -> None:
        """Return once all that was acked is durable; raises why an ack failed."""

    async def close_acks(self) -> None:
        """Send no more acks."""

    async def nack(self, batch: DeliveredBatch, *, delay_ms: int, reason: str | None) -> None:
        """Give all rows of a batch back; returns once that is durable."""


class BatchConsumer(BatchSource):
    """One stream at a time: batches come, credit and acks go, and both survive the stream."""

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        subscription: Subscription,
        batches: ItemQueue[DeliveredBatch] | None,
        window: CreditWindow | None = None,
    ) -> None:
        self.topic = topic
        self._brokers = brokers
        self._subscription = subscription
        self._batches = batches
        self._connection = brokers.service
        self._acks_room = asyncio.Semaphore(ACKS_WAITING_MAX)
        self._acks = AckGatherer(
            topic,
            self.settle_parts,
            brokers.surroundings.clock,
            linger_of(subscription),
        )
        self._clock = brokers.surroundings.clock
        self._window = window or CreditWindow(CREDIT_ROWS, CREDIT_ROWS, CREDIT_ROWS)
        self._untaken_rows = 0
        self._allowed_rows = 0
        """What the broker may still send."""
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
            self._give_up(error)
            raise

    def _give_up(self, error: DanubeError) -> None:
        for _, durable in self._waiting.values():
            if not durable.done():
                durable.set_exception(error)

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
        self.took(batch.rows.num_rows)
        if batch.mark != self._mark:
            # What was taken before has been delivered by a subscription that is no more, or has
            # been moved since; its offsets say nothing about this one's.
            self._mark, self._in_hand = batch.mark, RangeSet()
        self._in_hand.add(batch.offset, batch.end)

    def took(self, rows: int) -> None:
        """Take note that the application has so many rows more."""
        self._untaken_rows -= rows
        self._window.took(rows, self._clock.monotonic_seconds())
        room = self._window.rows - self._allowed_rows - self._untaken_rows
        if room >= self._window.step:
            self._allowed_rows += room
            self._to_say.put_nowait(ConsumerSays(credit=room))

    @override
    async def ack(self, batch: DeliveredBatch, *, durable: bool) -> None:
        self._forget(batch.mark, [(batch.offset, batch.end)])
        part = (batch.mark, batch.offset, batch.end)
        await self._acks.add([part], batch.rows.num_rows, durable=durable)

    @override
    async def ack_until(self, last: DeliveredBatch, *, durable: bool) -> None:
        due = RangeSet()
        if last.mark == self._mark:
            due = RangeSet(self._in_hand.within(0, last.offset))
        due.add(last.offset, last.end)
        self._forget(last.mark, list(due))
        parts = [(last.mark, start, end) for start, end in due]
        await self._acks.add(parts, due.count(), durable=durable)

    @override
    async def flush(self) -> None:
        await self._acks.flush()

    @override
    async def close_acks(self) -> None:
        await self._acks.close()

    async def settle_parts(self, parts: Sequence[Part]) -> None:
        """Ack ranges of offsets, each with its mark; returns once that is durable."""
        try:
            async with asyncio.timeout(SETTLE_SECONDS_MAX):
                await self._settle_parts(parts)
        except TimeoutError as error:
            raise Unavailable(
                f"{self.topic} confirmed no acks within {SETTLE_SECONDS_MAX:g} s; the messages may "
                "be delivered again"
            ) from error

    async def _settle_parts(self, parts: Sequence[Part]) -> None:
        by_mark: dict[str | None, RangeSet] = {}
        for mark, start, end in parts:
            by_mark.setdefault(mark, RangeSet()).add(start, end)
        for mark, due in by_mark.items():
            ranges = list(due)
            for first in range(0, len(ranges), RANGES_MAX):
                ack = ranges[first : first + RANGES_MAX]
                await self._settle(ConsumerSays(ack=ack, mark=mark))

    def _forget(self, mark: str | None, ranges: Sequence[Range]) -> None:
        if mark == self._mark:
            for start, end in ranges:
                self._in_hand.remove(start, end)

    @override
    async def nack(self, batch: DeliveredBatch, *, delay_ms: int, reason: str | None) -> None:
        # Before it is sent: the rows may be here again before its answer is.
        rows = (batch.offset, batch.end)
        self._forget(batch.mark, [rows])
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
        self._allowed_rows = max(0, self._window.rows - self._untaken_rows)
        answers = flight.exchange(
            connection, self.topic, self._subscription, self._allowed_rows, _says(self._to_say)
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
        self._allowed_rows -= rows.num_rows
        self._window.came(rows.num_rows, rows.nbytes)
        self._hand_over(DeliveredBatch(self.topic, said.offset, rows, said.attempt, said.mark))

    def _hand_over(self, batch: DeliveredBatch) -> None:
        # Never waits, since notices of acks come behind; credit is what bounds the queue.
        assert self._batches is not None, "who takes no batches hands them over otherwise"
        self._batches.put_nowait(batch)


def linger_of(subscription: Subscription) -> float:
    """Return how long acks wait for others.

    Not at all where the next message of a key is sent once the one before it is acked.
    """
    return 0 if subscription.type == "KeyShared" else LINGER_SECONDS


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
