"""What `danube demo` shows: one producer, two subscriptions, and the account of every message."""

import asyncio
from collections import Counter

from msgspec import Struct

from pydanube.client.client import Client
from pydanube.client.consumer import Consumer
from pydanube.client.producer import Producer
from pydanube.errors import DanubeError
from pydanube.model.policies import SubscriptionType
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope

TOPIC = "/default/demo"
SEND_EVERY_SECONDS = 0.05
DRAIN_SECONDS_MAX = 10.0

_MEMBERS: dict[str, tuple[SubscriptionType, tuple[str, ...]]] = {
    "audit": ("Exclusive", ("auditor",)),
    "workers": ("Shared", ("worker-1", "worker-2")),
}


class Received(Struct, frozen=True, kw_only=True):
    """What one subscription has received of this demo's messages."""

    subscription: str
    type: SubscriptionType
    received: int
    by_consumer: dict[str, int]
    lost: int
    """Acknowledged by the broker, and never delivered."""


class Account(Struct, frozen=True, kw_only=True):
    """Every message of a demo, counted."""

    sent: int
    acknowledged: int
    lost: int
    broker_stopped_cleanly: bool
    subscriptions: list[Received]


class Traffic:
    """Publishes steadily to a reliable topic, and consumes it through two subscriptions.

    A message counts as acknowledged once `send` returned, and as received once a consumer of the
    subscription acked it; `account` compares the two by offset.
    """

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._sent = 0
        self._acknowledged: set[int] = set()
        self._received: dict[str, set[int]] = {name: set() for name in _MEMBERS}
        self._by_consumer: dict[str, Counter[str]] = {name: Counter() for name in _MEMBERS}
        self._settled = asyncio.Event()
        self.failure: BaseException | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` or a failure, then wait until everything acknowledged was received."""

        def fail(_: str, failure: BaseException) -> None:
            self.failure = failure
            stop.set()
            self._settled.set()

        tasks = TaskScope(fail)
        try:
            # The topic comes with its producer; who subscribes before it sends misses nothing.
            producer = await self._client.producer(TOPIC, name="demo")
            for subscription, (kind, consumers) in _MEMBERS.items():
                for name in consumers:
                    consumer = await self._client.consumer(
                        TOPIC, subscription, name=name, subscription_type=kind
                    )
                    tasks.start(self._consume(consumer, subscription, name), name)
            await self._publish(producer, stop)
            await self._wait_until_settled()
        finally:
            await tasks.close()

    def account(self, *, broker_stopped_cleanly: bool = False) -> Account:
        """Return the count of everything so far."""
        subscriptions = [
            Received(
                subscription=name,
                type=kind,
                received=len(self._received[name]),
                by_consumer=dict(self._by_consumer[name]),
                lost=len(self._acknowledged - self._received[name]),
            )
            for name, (kind, _) in _MEMBERS.items()
        ]
        return Account(
            sent=self._sent,
            acknowledged=len(self._acknowledged),
            lost=max(each.lost for each in subscriptions),
            broker_stopped_cleanly=broker_stopped_cleanly,
            subscriptions=subscriptions,
        )

    async def _publish(self, producer: Producer, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self._sent += 1
            try:
                sent = await producer.send(b"order %d" % self._sent)
            except DanubeError as error:
                self.failure = error
                return
            if sent.offset is not None:
                self._acknowledged.add(sent.offset)
            await self._clock.sleep(SEND_EVERY_SECONDS)

    async def _consume(self, consumer: Consumer, subscription: str, name: str) -> None:
        async for message in consumer:
            await consumer.ack(message)
            self._received[subscription].add(message.offset)
            self._by_consumer[subscription][name] += 1
            self._settled.set()

    async def _wait_until_settled(self) -> None:
        try:
            async with asyncio.timeout(DRAIN_SECONDS_MAX):
                while self.failure is None and self.account().lost > 0:
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            return  # The account tells what is missing.
