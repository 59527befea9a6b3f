"""Flight's DoAction: frontiers, times, cursors, sequences, segments, for tools and pipelines."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from pydanube.broker.servicers.flight_cursors import FlightCursors
from pydanube.broker.servicers.flight_plan import log_of, mean_row_bytes, topic_id
from pydanube.broker.servicers.flight_segments import FlightSegments
from pydanube.broker.servicers.flight_topics import chosen_topics
from pydanube.errors import InvalidRequest
from pydanube.model.names import split_partition
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope
from pydanube.topics.manager import TopicManager
from pydanube.topics.positions import offset_at
from pydanube.topics.registration import Registration
from pydanube.topics.topic import Topic
from pydanube.wire.flight.descriptors import (
    FrontierAction,
    GetPropertyAction,
    OffsetsAction,
    ProducerAction,
    ProducerAnswer,
    PropertyAnswer,
    SetPropertyAction,
    TopicFrontier,
    TopicOffset,
    decode,
    encode,
)
from pydanube.wire.flight.service import ACTIONS

_Action = Callable[[bytes], Awaitable[bytes]]


class FlightActions:
    """Carries out actions by name."""

    def __init__(
        self, topics: TopicManager, registration: Registration, clock: Clock, store: str
    ) -> None:
        self._topics = topics
        self._registration = registration
        self._clock = clock
        cursors = FlightCursors(topics, registration, clock)
        segments = FlightSegments(topics, store)
        self._actions: Mapping[str, _Action] = {
            "frontier": self._frontier,
            "offsets": self._offsets,
            "cursor.create": cursors.create,
            "cursor.lease": cursors.lease,
            "cursor.advance": cursors.advance,
            "cursor.get": cursors.get,
            "producer": self._producer,
            "property.set": self._set_property,
            "property.get": self._get_property,
            "segments.list": segments.list,
            "segments.join": segments.join,
            "seek": cursors.seek,
        }
        assert self._actions.keys() == ACTIONS.keys(), "an action is not listed, or not served"

    async def run(self, name: str, body: bytes) -> bytes:
        """Return the answer of an action; both are JSON."""
        action = self._actions.get(name)
        if action is None:
            raise InvalidRequest(f"there is no action {name[:64]!r}, only {', '.join(ACTIONS)}")
        return await action(body)

    # Frontiers and times.

    async def _frontier(self, body: bytes) -> bytes:
        action = decode(FrontierAction, body, "the body of frontier")
        topics = chosen_topics(self._topics, action.topics, action.pattern)
        if action.wait_ms and not any(_has_more(topic, action.after) for topic in topics):
            await self._wait_for_more(topics, action)
            if action.pattern is not None:
                topics = chosen_topics(self._topics, (), action.pattern)
        answers = {}
        for topic in topics:
            log = log_of(topic)
            row_bytes = await mean_row_bytes(log)
            answers[topic.name] = TopicFrontier(
                id=topic_id(topic),
                earliest=log.first_offset,
                frontier=log.durable_end,
                mean_row_bytes=row_bytes,
            )
        return msgspec.json.encode({"topics": answers})

    async def _wait_for_more(self, topics: list[Topic], action: FrontierAction) -> None:
        """Return when one topic has more than the caller knows, is closed, or time is up."""
        moved = asyncio.Event()

        async def watch(topic: Topic) -> None:
            try:
                await topic.frontier.wait_for(action.after.get(topic.name, 0) + 1)
            finally:
                moved.set()

        scope = TaskScope(lambda name, error: moved.set())
        timer = self._clock.call_later(action.wait_ms / 1000, moved.set)
        try:
            for topic in topics:
                scope.start(watch(topic), f"frontier of {topic.name}")
            await moved.wait()
        finally:
            timer.cancel()
            await scope.close()

    async def _offsets(self, body: bytes) -> bytes:
        action = decode(OffsetsAction, body, "the body of offsets")
        answers = {}
        for topic in chosen_topics(self._topics, action.topics, action.pattern):
            log = log_of(topic)
            offset = await offset_at(log, action.time_ms)
            answers[topic.name] = TopicOffset(
                id=topic_id(topic),
                offset=offset,
                earliest=log.first_offset,
                frontier=log.durable_end,
            )
        return msgspec.json.encode({"topics": answers})

    # Properties.

    async def _set_property(self, body: bytes) -> bytes:
        action = decode(SetPropertyAction, body, "the body of property.set")
        await self._registration.set_property(action.topic, action.name, action.value)
        kept = {} if action.value is None else {action.topic: action.value}
        return encode(PropertyAnswer(topics=kept))

    async def _get_property(self, body: bytes) -> bytes:
        action = decode(GetPropertyAction, body, "the body of property.get")
        found: dict[str, str] = {}
        for topic in chosen_topics(self._topics, (), action.pattern):
            value = topic.record.properties.get(action.name)
            if value is not None:
                base, _ = split_partition(topic.name) or (topic.name, 0)
                found.setdefault(base, value)
        return encode(PropertyAnswer(topics=found))

    # Producers.

    async def _producer(self, body: bytes) -> bytes:
        action = decode(ProducerAction, body, "the body of producer")
        topic = self._topics.get(action.topic)
        last = await topic.last_batch(action.producer, action.session)
        if last is None:
            return encode(ProducerAnswer())
        return encode(
            ProducerAnswer(
                first_sequence=last.stamp.first_sequence,
                last_sequence=last.stamp.last_sequence,
                digest=last.stamp.digest,
                offset=last.base,
                rows=last.count,
            )
        )


def _has_more(topic: Topic, after: Mapping[str, int]) -> bool:
    return topic.frontier.value > after.get(topic.name, 0)
