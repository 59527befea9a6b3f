"""Random lives of a client among brokers that crash, forget, lose replies and hand topics over."""

import asyncio

import pytest

from pydanube.client.client import Client
from pydanube.client.consumer import Consumer
from pydanube.client.producer import Producer
from pydanube.errors import Unavailable
from pydanube.runtime.randomness import SeededRandomness
from pydanube.wire.calls import CallRefused, StatusCode
from tests.support.fake_brokers import OTHER_URL, URL, FakeBrokers, with_client

TOPIC = "/default/orders"
SENDERS = 5
SENDS_EACH = 30
CALLS_PER_SECOND_MAX = 60


class World:
    """Disturbs the brokers at random; `heal` ends all disturbance."""

    def __init__(self, seed: int, cluster: FakeBrokers) -> None:
        self.cluster = cluster
        self.chance = SeededRandomness(f"faults {seed}")
        for broker in cluster.brokers.values():
            broker.delay_seconds = lambda: self.chance.uniform(0, 0.05)

    async def disturb(self) -> None:
        for _ in range(12):
            await asyncio.sleep(self.chance.uniform(0.1, 4))
            broker = list(self.cluster.brokers.values())[self.chance.below(2)]
            match self.chance.below(5):
                case 0:
                    broker.crash(forget=self.chance.below(2) == 0)
                    await asyncio.sleep(self.chance.uniform(0, 6))
                    broker.down = False
                case 1:
                    self.move()
                case 2:
                    for consumer in broker.consumers.values():
                        consumer.inbox.put_nowait(None)
                case 3:
                    for consumer in broker.consumers.values():
                        consumer.inbox.put_nowait(CallRefused(StatusCode.UNAVAILABLE, "reset"))
                case _:
                    codes = (StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED)
                    method = ("SendMessage", "Ack", "Subscribe", "CreateProducer")
                    broker.refuse(method[self.chance.below(4)], *codes * self.chance.below(3))

    def move(self) -> None:
        """Hand the topic over as a broker does: CLOSE to those who ask, then end the streams."""
        owner = self.cluster.owners[TOPIC]
        self.cluster.owners[TOPIC] = OTHER_URL if owner == URL else URL
        for consumer in self.cluster.brokers[owner].consumers.values():
            consumer.closing = True
            consumer.inbox.put_nowait(CallRefused(StatusCode.UNAVAILABLE, "moved"))


async def send_all(producer: Producer, first: int, acknowledged: dict[int, int]) -> None:
    for number in range(first, SENDERS * SENDS_EACH, SENDERS):
        try:
            sent = await producer.send(b"%d" % number)
        except Unavailable:
            continue  # It may or may not be stored.
        assert sent.offset is not None
        acknowledged[sent.offset] = number
        await asyncio.sleep(0.3)


async def receive_all(consumer: Consumer, received: list[int]) -> None:
    async for message in consumer:
        received.append(message.offset)
        await consumer.ack(message)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_acknowledged_is_stored_once_known_and_received_by_the_subscription(
    seed: int,
) -> None:
    async def life(client: Client, cluster: FakeBrokers) -> None:
        cluster.add_topic(TOPIC)
        world = World(seed, cluster)
        acknowledged: dict[int, int] = {}
        received: list[int] = []
        producer = await client.producer(TOPIC, name="till")
        consumer = await client.consumer(TOPIC, "billing", name="worker")
        async with asyncio.TaskGroup() as group:
            receiving = group.create_task(receive_all(consumer, received))
            async with asyncio.TaskGroup() as busy:
                busy.create_task(world.disturb())
                for first in range(SENDERS):
                    busy.create_task(send_all(producer, first, acknowledged))
            await asyncio.sleep(60)
            await consumer.close()
            await receiving
        stored = cluster.payloads(TOPIC)
        assert len(stored) == len(set(stored)), "a message was stored twice"
        for offset, number in acknowledged.items():
            assert stored[offset] == b"%d" % number
        assert set(received) == set(range(len(stored))), "a stored message was never received"
        assert cluster.subscriptions[TOPIC, "billing"].acked == set(received)
        seconds = asyncio.get_running_loop().time()
        calls = sum(len(broker.calls) for broker in cluster.brokers.values())
        assert calls < CALLS_PER_SECOND_MAX * seconds, "the client keeps the brokers busy"

    with_client(life, seed=seed)
