"""Clients that publish, consume and administer, each a task that goes on until it is told to end.

They speak through a Channel, so they work against simulated brokers and against real ones. What
they do and see is recorded by the channel; here nothing is checked.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from enum import Enum, auto
from zlib import crc32

from pydanube.client.client import Client
from pydanube.client.consumer import Consumer
from pydanube.client.message import ReceivedMessage
from pydanube.errors import DanubeError
from pydanube.model.policies import DispatchStrategy, SubscriptionType
from pydanube.runtime.randomness import Randomness
from pydanube.wire.calls import CallRefused, Channel
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from tests.support.recorded_channel import ATTEMPT, payload_of, value_of
from tests.support.wire_calls import ack, create_producer, nack, send, subscribe

MESSAGE_BYTES_MAX = 4_000
"""Set as the policy of all topics; some messages are larger, and must be refused."""
ACKING_AT_ONCE = 16


class Verdict(Enum):
    ACK = auto()
    NACK = auto()
    IGNORE = auto()


Judge = Callable[[str, int], Verdict]
"""What a consumer does with a value on its so-manieth attempt."""


@dataclass(frozen=True, slots=True)
class Temper:
    """How the consumers of a subscription treat messages: shares of a hundred values each.

    Flaky values are nacked once, slow ones not answered once, poison ones nacked for ever.
    """

    subscription: str
    flaky: int = 0
    slow: int = 0
    poison: int = 0

    def is_poison(self, value: str) -> bool:
        return not value.startswith("end") and self._draw(value) < self.poison

    def __call__(self, value: str, attempt: int) -> Verdict:
        drawn = self._draw(value) - self.poison
        if self.is_poison(value):
            return Verdict.NACK
        if value.startswith("end") or attempt > 1 or drawn >= self.flaky + self.slow:
            return Verdict.ACK
        return Verdict.NACK if drawn < self.flaky else Verdict.IGNORE

    def _draw(self, value: str) -> int:
        return crc32(f"{self.subscription}/{value}".encode()) % 100


@dataclass(frozen=True, slots=True)
class Ground:
    """What clients stand on."""

    open_channel: Callable[[], Channel]
    """Opens a new connection; the old one may be closed or left to itself."""
    randomness: Randomness
    restless: bool
    """Clients come and go, and lose patience with a broker that is silent."""

    async def pause(self, low: float, high: float) -> None:
        await asyncio.sleep(self.randomness.uniform(low, high))

    def chance(self, one_in: int) -> bool:
        return self.randomness.below(one_in) == 0


class RawProducer:
    """Sends values one after another or some at once, each once; what fails is not sent again."""

    def __init__(
        self,
        ground: Ground,
        topic: str,
        name: str,
        strategy: DispatchStrategy,
        *,
        count: int,
        keys: Sequence[str],
        at_once: int,
        pause_seconds: float,
    ) -> None:
        self._ground = ground
        self._topic = topic
        self._name = name
        self._strategy: DispatchStrategy = strategy
        self._count = count
        self._keys = keys
        self._at_once = asyncio.Semaphore(at_once)
        self._pause_seconds = pause_seconds
        self._channel = ground.open_channel()
        self._id: int | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as sending:
            for number in range(self._count):
                await self._ground.pause(0, self._pause_seconds)
                await self._at_once.acquire()
                producer_id = await self._registered()
                sending.create_task(self._send(producer_id, number))
        await self._channel.close()

    async def _registered(self) -> int:
        while self._id is None:
            try:
                self._id = await create_producer(
                    self._channel, self._topic, self._name, self._strategy
                )
            except CallRefused:
                await self._ground.pause(0.05, 0.5)
        return self._id

    async def _send(self, producer_id: int, number: int) -> None:
        ground = self._ground
        value = f"{self._topic.rpartition('/')[2]}.{self._name}.{number}"
        key = self._keys[ground.randomness.below(len(self._keys))] if self._keys else None
        length = 0 if ground.randomness.below(5) else ground.randomness.below(3_000)
        if ground.chance(30):
            value, length = f"too-big.{value}", MESSAGE_BYTES_MAX + 1
        try:
            await send(self._channel, self._topic, producer_id, self._name, value, key, length)
        except CallRefused:
            # With a stable id, registering again is a choice, not a need.
            if ground.chance(2):
                self._id = None
            await ground.pause(0.02, 0.3)
        finally:
            self._at_once.release()


class ClientProducer:
    """Publishes through our own client, which repeats what it does not know the outcome of."""

    def __init__(
        self,
        ground: Ground,
        connect: Callable[[], Client],
        topic: str,
        name: str,
        *,
        reliable: bool,
        partitions: int | None,
        count: int,
        keys: Sequence[str],
        pause_seconds: float,
    ) -> None:
        self._ground = ground
        self._connect = connect
        self._topic = topic
        self._name = name
        self._reliable = reliable
        self._partitions = partitions
        self._count = count
        self._keys = keys
        self._pause_seconds = pause_seconds

    async def run(self) -> None:
        client = self._connect()
        try:
            producer = await persistently(
                self._ground,
                lambda: client.producer(
                    self._topic,
                    name=self._name,
                    reliable=self._reliable,
                    partitions=self._partitions,
                    send_seconds_max=20.0,
                ),
            )
            short = self._topic.rpartition("/")[2]
            for number in range(self._count):
                await self._ground.pause(0, self._pause_seconds)
                keys = self._keys
                key = keys[self._ground.randomness.below(len(keys))] if keys else None
                with suppress(DanubeError):
                    await producer.send(
                        payload_of(f"{short}.{self._name}.{number}"), routing_key=key
                    )
        finally:
            await client.close()


class RawConsumer:
    """Subscribes, receives, judges and answers; comes back after everything that goes wrong."""

    def __init__(
        self,
        ground: Ground,
        topic: str,
        subscription: str,
        name: str,
        kind: SubscriptionType,
        judge: Judge,
        *,
        filters: Sequence[str] = (),
        think_seconds: float = 0.0,
    ) -> None:
        self._ground = ground
        self._topic = topic
        self._subscription = subscription
        self._name = name
        self._kind: SubscriptionType = kind
        self._judge = judge
        self._filters = filters
        self._think_seconds = think_seconds
        self._channel = ground.open_channel()
        self._id: int | None = None
        self._answering = asyncio.Semaphore(ACKING_AT_ONCE)
        self.subscribed = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as answers:
            try:
                while True:
                    with suppress(CallRefused):
                        await self._one_stream(answers)
                    await self._come_back()
            finally:
                await self._channel.close()

    async def _one_stream(self, answers: asyncio.TaskGroup) -> None:
        if self._id is None:
            self._id = await subscribe(
                self._channel,
                self._topic,
                self._subscription,
                self._name,
                self._kind,
                filters=self._filters,
            )
            self.subscribed.set()
        request = api.ReceiveRequest(request_id=1, consumer_id=self._id).SerializeToString()
        stream = self._channel.stream(services.RECEIVE_MESSAGES.path, request)
        assert isinstance(stream, AsyncGenerator)
        async with aclosing(stream):
            while (data := await self._next(stream)) is not None:
                await self._answering.acquire()
                answers.create_task(self._answer(api.StreamMessage.FromString(data)))
                if self._ground.restless and self._ground.chance(40):
                    return

    async def _next(self, stream: AsyncGenerator[bytes, None]) -> bytes | None:
        patience = self._ground.randomness.uniform(3.0, 9.0) if self._ground.restless else None
        try:
            async with asyncio.timeout(patience):
                return await anext(stream, None)
        except TimeoutError:
            return None

    async def _come_back(self) -> None:
        ground = self._ground
        away = ground.restless and ground.chance(8)
        await ground.pause(*((1.0, 5.0) if away else (0.01, 0.3)))
        if ground.chance(2):
            self._id = None
        if ground.chance(4):
            self._channel, old = ground.open_channel(), self._channel
            await old.close()

    async def _answer(self, message: api.StreamMessage) -> None:
        try:
            await self._ground.pause(0, self._think_seconds)
            attempt = int(message.attributes.get(ATTEMPT, "1"))
            match self._judge(value_of(message.payload), attempt):
                case Verdict.ACK:
                    await self._ack(message)
                case Verdict.NACK:
                    with suppress(CallRefused):
                        await nack(self._channel, message, self._subscription)
                case Verdict.IGNORE:
                    pass
        finally:
            self._answering.release()

    async def _ack(self, message: api.StreamMessage) -> None:
        while True:
            try:
                return await ack(self._channel, message, self._subscription)
            except CallRefused:
                await self._ground.pause(0.1, 1.0)


class ClientConsumer:
    """Consumes through our own client."""

    def __init__(
        self,
        ground: Ground,
        connect: Callable[[], Client],
        topic: str,
        subscription: str,
        name: str,
        kind: SubscriptionType,
        judge: Judge,
        *,
        filters: Sequence[str] = (),
        think_seconds: float = 0.0,
    ) -> None:
        self._ground = ground
        self._connect = connect
        self._topic = topic
        self._subscription = subscription
        self._name = name
        self._kind: SubscriptionType = kind
        self._judge = judge
        self._filters = filters
        self._think_seconds = think_seconds
        self._answering = asyncio.Semaphore(ACKING_AT_ONCE)
        self.subscribed = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as answers:
            client = self._connect()
            try:
                while True:
                    consumer = await self._open(client)
                    self.subscribed.set()
                    with suppress(DanubeError):
                        await self._consume(consumer, answers)
                    await consumer.close()
                    await self._ground.pause(0.01, 2.0)
            finally:
                await client.close()

    async def _open(self, client: Client) -> Consumer:
        return await persistently(
            self._ground,
            lambda: client.consumer(
                self._topic,
                self._subscription,
                name=self._name,
                subscription_type=self._kind,
                key_filters=self._filters,
                start_position="earliest",
            ),
        )

    async def _consume(self, consumer: Consumer, answers: asyncio.TaskGroup) -> None:
        while True:
            message = await consumer.receive()
            await self._answering.acquire()
            answers.create_task(self._answer(consumer, message))
            if self._ground.restless and self._ground.chance(60):
                return

    async def _answer(self, consumer: Consumer, message: ReceivedMessage) -> None:
        try:
            await self._ground.pause(0, self._think_seconds)
            attempt = int(message.attributes.get(ATTEMPT, "1"))
            match self._judge(value_of(message.payload), attempt):
                case Verdict.ACK:
                    await persistently(self._ground, lambda: consumer.ack(message))
                case Verdict.NACK:
                    with suppress(DanubeError):
                        await consumer.nack(message, reason="told to")
                case Verdict.IGNORE:
                    pass
        finally:
            self._answering.release()


async def persistently(ground: Ground, call):
    """Repeat a call of our client until it succeeds."""
    while True:
        try:
            return await call()
        except DanubeError:
            await ground.pause(0.1, 1.0)
