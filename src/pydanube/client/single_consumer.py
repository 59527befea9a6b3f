"""Receives the messages of one topic or partition one by one, and settles them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Generic, Protocol, TypeVar

from pydanube.client.brokers import Brokers
from pydanube.client.codecs import Codec, Value
from pydanube.client.connection import Connection, Subscription
from pydanube.client.message import Receipt, ReceivedMessage
from pydanube.errors import DanubeError, NotFound, Unavailable

HEALTH_SECONDS = 5.0
SETTLE_SECONDS_MAX = 30.0
SETTLED_AT_ONCE = 100
IN_HAND_MAX = 200_000
"""How many messages are remembered for `ack_until`; brokers of ours have fewer unacked."""

Taken_contra = TypeVar("Taken_contra", contravariant=True)


class Sink(Protocol[Taken_contra]):
    """Where received messages go."""

    async def put(self, message: Taken_contra, /) -> None:
        """Take a message in; waits while there is no room."""


class TopicConsumer(Generic[Value]):
    """A consumer on one topic or partition, subscribed again whenever its broker lost it."""

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        subscription: Subscription,
        codec: Codec[Value],
        sink: Sink[ReceivedMessage[Value]],
    ) -> None:
        self.topic = topic
        self._brokers = brokers
        self._subscription = subscription
        self._codec = codec
        self._sink = sink
        self._connection = brokers.service
        self._consumer_id = 0
        self._heard = False  # Since the stream was opened.
        self._follows = False
        """Whether `run` finds the topic again when it has moved."""
        self._in_hand: dict[int, Receipt] = {}
        """By offset: what the application has taken and not settled."""

    @property
    def in_hand(self) -> int:
        """How many messages the application has taken and not settled."""
        return len(self._in_hand)

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
        """Give the place in the subscription up, with the name if nobody will use it again."""
        if self._consumer_id:
            with suppress(DanubeError):  # Other brokers notice by themselves.
                await self._connection.close_consumer(
                    self._consumer_id, keeps_name=not self._subscription.is_temporary
                )

    async def run(self) -> None:
        """Receive until cancelled; raises what cannot heal.

        A stream that another consumer of the same name takes over ends with a Conflict, which is
        raised. Brokers of Danube end it cleanly: it is opened again, and the broker decides who has
        it. Subscribing again would take it back, and so on for ever.
        """
        attempt = 0
        self._follows = True
        try:
            while True:
                lost = await self._receive_until_lost()
                attempt = 0 if self._heard else attempt
                if lost is None:
                    await self._brokers.pause(attempt)
                else:
                    await self._brokers.pause_after(lost, attempt)
                    await self._attach_again(lost)
                attempt += 1
        finally:
            self._follows = False

    # What the application has.

    def taken(self, receipt: Receipt) -> None:
        """Take note that the application has a message in its hands."""
        self._in_hand[receipt.offset] = receipt
        if len(self._in_hand) > IN_HAND_MAX:
            # Whoever settles nothing is not remembered for ever: the broker delivers it again.
            del self._in_hand[next(iter(self._in_hand))]

    def forget(self) -> None:
        """Let `ack_until` leave out what was taken so far."""
        self._in_hand.clear()

    async def ack(self, receipt: Receipt) -> None:
        """Ack at the broker the consumer is attached to, also across a reconnect."""
        await self._settle(
            lambda connection: connection.ack(receipt, self._subscription.name), receipt
        )
        self._settled(receipt)

    async def ack_each(self, receipts: Sequence[Receipt]) -> None:
        """Ack one by one, many at the same time."""
        for first in range(0, len(receipts), SETTLED_AT_ONCE):
            together = receipts[first : first + SETTLED_AT_ONCE]
            await asyncio.gather(*(self.ack(receipt) for receipt in together))

    async def ack_until(self, last: Sequence[Receipt]) -> None:
        """Ack these, and all before them that the application has, the oldest first."""
        due = {offset: held for offset, held in self._in_hand.items() if offset < last[0].offset}
        due |= {receipt.offset: receipt for receipt in last}
        await self.ack_each([due[offset] for offset in sorted(due)])

    async def nack(self, receipt: Receipt, *, delay_ms: int | None, reason: str | None) -> None:
        """Nack at the broker the consumer is attached to, also across a reconnect."""
        # Before it is sent: the message may be here again before the answer is.
        self._settled(receipt)
        await self._settle(
            lambda connection: connection.nack(
                receipt, self._subscription.name, delay_ms=delay_ms, reason=reason
            ),
            receipt,
        )

    def _settled(self, receipt: Receipt) -> None:
        # Not by its offset alone: that may be another message's, of a topic made anew.
        if self._in_hand.get(receipt.offset) == receipt:
            del self._in_hand[receipt.offset]

    async def nack_each(
        self, receipts: Sequence[Receipt], *, delay_ms: int | None, reason: str | None
    ) -> None:
        """Nack one by one, many at the same time."""
        for first in range(0, len(receipts), SETTLED_AT_ONCE):
            together = receipts[first : first + SETTLED_AT_ONCE]
            await asyncio.gather(
                *(self.nack(receipt, delay_ms=delay_ms, reason=reason) for receipt in together)
            )

    async def _settle(
        self, call: Callable[[Connection], Awaitable[None]], receipt: Receipt
    ) -> None:
        """Repeat until the broker took it: settling twice is harmless, settling never is not."""
        attempt = 0
        refusal: DanubeError | None = None
        try:
            async with asyncio.timeout(SETTLE_SECONDS_MAX):
                while True:
                    try:
                        if not self._follows:
                            # A closed consumer's messages can still be settled, wherever that is.
                            self._connection = await self._brokers.serving(
                                self.topic, self._connection
                            )
                        return await call(self._connection)
                    except DanubeError as error:
                        if not error.retryable:
                            raise
                        refusal = error
                    await self._brokers.pause_after(refusal, attempt)
                    attempt += 1
        except TimeoutError as error:
            raise Unavailable(
                f"{self.topic} did not take the ack or nack of offset {receipt.offset} within "
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
                    await self._sink.put(message)
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
                connection = await self._brokers.serving(self.topic, self._connection)
                self._consumer_id = await self._subscribe(connection)
            except DanubeError as error:
                if not error.retryable:
                    raise
                await self._brokers.pause_after(error, attempt)
                attempt += 1
            else:
                self._connection = connection
                return

    async def _subscribe(self, connection: Connection) -> int:
        return await connection.subscribe(self.topic, self._subscription)
