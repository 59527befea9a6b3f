"""What the published `danube-client` does in a run: its own retries, and a watchful user's."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from danube import DanubeClient, DanubeClientBuilder, DispatchStrategy
from danube.consumer import Consumer

from tests.chaos.history import Scribe
from tests.chaos.members import Member, Received, Session
from tests.chaos.orders import Charge
from tests.chaos.orders import Client as Crew
from tests.chaos.publishers import Pace, Publish, Publisher
from tests.chaos.schedule import STOCK, SUBSCRIPTIONS, SubscriptionPlan
from tests.e2e.wheel_scenarios import KINDS
from tests.support.recorded_channel import payload_of, value_of

PAYLOAD_BYTES = 200
SILENT_SECONDS_MAX = 15.0
"""The library waits for ever on a connection that has gone silent; its user does not."""
OPEN_SECONDS_MAX = 20.0
CONNECTIONS_MAX = 2


@asynccontextmanager
async def opened(charge: Charge, scribe: Scribe) -> AsyncIterator[Crew]:
    """Open everything this process has."""
    plans = [plan for plan in SUBSCRIPTIONS if STOCK in plan.members]
    members = [
        Member(
            topic,
            plan.name,
            f"{STOCK} {plan.name}",
            partial(_session, _Connections(charge.urls), topic, plan),
            scribe,
        )
        for topic in charge.topics
        for plan in plans
    ]
    publishers = [
        Publisher(
            topic,
            f"{STOCK}{topic.rpartition('-')[2]}",
            partial(_producer, _Connections(charge.urls), topic),
            scribe,
            Pace(1, 1 / charge.messages_a_second),
            numbered=False,
        )
        for topic in charge.topics
    ]
    yield Crew(members, publishers)


class _Connections:
    """Connects by another broker each time, since the library goes by one alone.

    The one before stays open, so that what it received can still be acked.
    """

    def __init__(self, urls: list[str]) -> None:
        self._urls = itertools.cycle(urls)
        self._open: list[DanubeClient] = []

    async def another(self) -> DanubeClient:
        client = await DanubeClientBuilder().service_url(next(self._urls)).build()
        self._open.append(client)
        while len(self._open) > CONNECTIONS_MAX:
            for connection in self._open.pop(0).connection_manager._connections.values():
                await connection.channel.close(None)
        return client


@asynccontextmanager
async def _producer(connections: _Connections, topic: str) -> AsyncIterator[Publish]:
    client = await connections.another()
    builder = client.new_producer().with_topic(topic).with_name(f"{STOCK}-producer")
    producer = builder.with_dispatch_strategy(DispatchStrategy.RELIABLE).build()
    async with asyncio.timeout(OPEN_SECONDS_MAX):
        await producer.create()

    async def publish(value: bytes, key: str) -> int | None:
        await producer.send_with_key(payload_of(value.decode(), PAYLOAD_BYTES), None, key)
        return None

    try:
        yield publish
    finally:
        await producer.close()


class _Stream(Session):
    def __init__(self, consumer: Consumer, queue: "asyncio.Queue[Any]") -> None:
        self._consumer = consumer
        self._queue = queue

    async def received(self) -> AsyncIterator[list[Received]]:
        while True:
            async with asyncio.timeout(SILENT_SECONDS_MAX):
                message = await self._queue.get()
            yield [
                Received(
                    message.msg_id.topic_offset,
                    value_of(message.payload),
                    message.routing_key,
                    partial(self._consumer.ack, message),
                )
            ]


@asynccontextmanager
async def _session(
    connections: _Connections, topic: str, plan: SubscriptionPlan
) -> AsyncIterator[Session]:
    client = await connections.another()
    builder = client.new_consumer().with_topic(topic).with_subscription(plan.name)
    builder = builder.with_consumer_name(f"{STOCK}-{plan.name}")
    consumer = builder.with_subscription_type(KINDS[plan.kind]).build()
    async with asyncio.timeout(OPEN_SECONDS_MAX):
        await consumer.subscribe()
        queue = await consumer.receive()
    try:
        yield _Stream(consumer, queue)
    finally:
        await consumer.close()
