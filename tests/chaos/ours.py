"""What PyDanube's own client does in a run: batches over Flight, and message by message."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from pydanube import (
    Client,
    Consumer,
    DeliveredBatch,
    InvalidRequest,
    NotFound,
    Producer,
    ReceivedMessage,
    connect,
)
from tests.chaos.history import Scribe
from tests.chaos.members import Member, Received, Session
from tests.chaos.orders import Charge
from tests.chaos.orders import Client as Crew
from tests.chaos.publishers import Pace, Publish, Publisher, Refused
from tests.chaos.schedule import OURS, SUBSCRIPTIONS, SubscriptionPlan
from tests.support.recorded_channel import payload_of, value_of

PAYLOAD_BYTES = 200
TOGETHER = 5
BATCHES, SINGLE = OURS
"""The first process publishes in batches over Flight, the second one message in each call."""


@asynccontextmanager
async def opened(charge: Charge, scribe: Scribe) -> AsyncIterator[Crew]:
    """Open everything this process has."""
    plans = [plan for plan in SUBSCRIPTIONS if charge.name in plan.members]
    async with connect(",".join(charge.urls)) as client:
        members = [
            Member(
                topic,
                plan.name,
                f"{charge.name} {plan.name}",
                partial(_batch_session if plan.batches else _session, client, topic, plan),
                scribe,
            )
            for topic in charge.topics
            for plan in plans
        ]
        publishers = [_publisher(client, topic, charge, scribe) for topic in charge.topics]
        yield Crew(members, publishers)


def _publisher(client: Client, topic: str, charge: Charge, scribe: Scribe) -> Publisher:
    together = TOGETHER if charge.name == BATCHES else 1
    return Publisher(
        topic,
        f"{charge.name}{topic.rpartition('-')[2]}",
        partial(_producer, client, topic, together),
        scribe,
        Pace(together, together / charge.messages_a_second),
        numbered=True,
    )


@asynccontextmanager
async def _producer(client: Client, topic: str, together: int) -> AsyncIterator[Publish]:
    async with client.producer(topic, batch_messages_max=1000 if together > 1 else 1) as producer:
        yield partial(_publish, producer)


async def _publish(producer: Producer[bytes], value: bytes, key: str) -> int | None:
    payload = payload_of(value.decode(), PAYLOAD_BYTES)
    try:
        return (await producer.send(payload, routing_key=key)).offset
    except NotFound:
        raise  # Of a topic that was deleted meanwhile, perhaps after it took the message.
    except InvalidRequest as error:
        raise Refused(str(error)) from error


def _consumer(
    client: Client, topic: str, plan: SubscriptionPlan
) -> "AbstractAsyncContextManager[Consumer[bytes]]":
    return client.consumer(topic, plan.name, subscription_type=plan.kind, start_position="earliest")


class _Single(Session):
    def __init__(self, consumer: Consumer[bytes]) -> None:
        self._consumer = consumer

    async def received(self) -> AsyncIterator[list[Received]]:
        async for message in self._consumer:
            yield [self._received(message)]

    def _received(self, message: ReceivedMessage[bytes]) -> Received:
        return Received(
            message.offset,
            value_of(message.payload),
            message.routing_key or "",
            partial(self._consumer.ack, message),
        )


class _Batches(Session):
    def __init__(self, consumer: Consumer[bytes]) -> None:
        self._consumer = consumer

    async def received(self) -> AsyncIterator[list[Received]]:
        async for batch in self._consumer.batches():
            keys = batch.rows.column("routing_key").to_pylist()
            yield [
                self._row(batch, number, payload, key)
                for number, (payload, key) in enumerate(zip(batch.payloads(), keys, strict=True))
            ]

    def _row(self, batch: DeliveredBatch, number: int, payload: bytes, key: str) -> Received:
        return Received(
            batch.offset + number,
            value_of(payload),
            key or "",
            partial(self._consumer.ack_batch, batch.slice(number, number + 1)),
            keeps=False,
        )


@asynccontextmanager
async def _session(client: Client, topic: str, plan: SubscriptionPlan) -> AsyncIterator[Session]:
    async with _consumer(client, topic, plan) as consumer:
        yield _Single(consumer)


@asynccontextmanager
async def _batch_session(
    client: Client, topic: str, plan: SubscriptionPlan
) -> AsyncIterator[Session]:
    async with _consumer(client, topic, plan) as consumer:
        yield _Batches(consumer)
