"""Publishes dead letters to topics of this broker."""

import asyncio

from typing_extensions import override

from pydanube.errors import Conflict, DanubeError
from pydanube.model.ids import Offset
from pydanube.model.message import Message
from pydanube.subscriptions.dead_letter import DeadLetterSink
from pydanube.topics.manager import TopicManager, TopicRequest


class LocalDeadLetters(DeadLetterSink):
    """Stores a dead letter in a reliable topic, created when it is missing."""

    def __init__(self) -> None:
        self._topics: TopicManager | None = None

    def publish_to(self, topics: TopicManager) -> None:
        """Say where the topics are; they in turn need this sink before they exist."""
        self._topics = topics

    @override
    async def store(self, target: str, message: Message) -> None:
        assert self._topics is not None, "the topics are there before any message is"
        topic = await self._topics.ensure(target, TopicRequest(strategy="Reliable"))
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
