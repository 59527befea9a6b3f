"""Publishes dead letters, to topics of this broker or of another one of its cluster."""

import asyncio
from typing import TYPE_CHECKING

from typing_extensions import override

from pydanube.errors import Conflict, DanubeError, WrongBroker
from pydanube.model.ids import Offset
from pydanube.model.message import Message
from pydanube.subscriptions.dead_letter import DeadLetterSink
from pydanube.topics.manager import TopicManager, TopicRequest

if TYPE_CHECKING:
    from pydanube.client.client import Client
    from pydanube.client.producer import Producer

PRODUCERS_MAX = 100
"""Kept open to other brokers; the oldest is closed for a new one."""
PRODUCER_NAME = "dead-letters"


class DeadLetters(DeadLetterSink):
    """Stores a dead letter in a reliable topic, created when it is missing."""

    def __init__(self, own_url: str = "") -> None:
        self._topics: TopicManager | None = None
        self._own_url = own_url
        self._client: Client | None = None
        self._producers: dict[str, Producer[bytes]] = {}

    def publish_to(self, topics: TopicManager) -> None:
        """Say where the topics are; they in turn need this sink before they exist."""
        self._topics = topics

    @override
    async def store(self, target: str, message: Message) -> None:
        assert self._topics is not None, "the topics are there before any message is"
        try:
            topic = await self._topics.ensure(target, TopicRequest(strategy="Reliable"))
        except WrongBroker:
            await self._store_elsewhere(target, message)
            return
        if not topic.is_reliable:
            raise Conflict(f"dead-letter topic {target} is not reliable")
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answer(offset: Offset | None, error: DanubeError | None) -> None:
            if stored.cancelled():
                return
            if error is not None:
                stored.set_exception(error)
            else:
                stored.set_result(None)

        topic.publish(message, answer)
        await stored

    async def _store_elsewhere(self, target: str, message: Message) -> None:
        producer = await self._producer(target)
        row = {
            "payload": message.payload,
            "publish_time": message.publish_time_ms,
            "producer_name": message.producer_name,
            "routing_key": message.routing_key,
            "attributes": dict(message.attributes or {}),
            "schema_id": message.schema_id,
            "schema_version": message.schema_version,
        }
        await producer.send_batch([row])

    async def _producer(self, target: str) -> "Producer[bytes]":
        producer = self._producers.get(target)
        if producer is None:
            if self._client is None:
                from pydanube.client.client import connect  # Most brokers need none.

                self._client = await connect(self._own_url)
            producer = await self._client.producer(target, name=PRODUCER_NAME)
            if len(self._producers) >= PRODUCERS_MAX:
                await self._producers.pop(next(iter(self._producers))).close()
            self._producers[target] = producer
        return producer

    async def close(self) -> None:
        """Let go of the connections to other brokers."""
        if self._client is not None:
            await self._client.close()
