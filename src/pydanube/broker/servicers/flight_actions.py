"""Flight's DoAction: frontiers, cursors, sequences, for tools and pipelines."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from pydanube.broker.servicers.flight_plan import log_of, mean_row_bytes, position_of, topic_id
from pydanube.errors import DanubeError, InvalidRequest
from pydanube.model.ids import Offset
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope, carry_through
from pydanube.storage.topic_log import TopicLog
from pydanube.subscriptions.subscription import Subscription
from pydanube.topics.manager import TopicManager
from pydanube.topics.positions import offset_at
from pydanube.topics.registration import Registration
from pydanube.topics.topic import Topic
from pydanube.wire.flight.descriptors import (
    CursorAction,
    CursorAnswer,
    FrontierAction,
    ProducerAction,
    ProducerAnswer,
    TopicFrontier,
    decode,
    encode,
)
from pydanube.wire.flight.service import ACTIONS

_Action = Callable[[bytes], Awaitable[bytes]]


class FlightActions:
    """Carries out actions by name. What changes something is finished even if its caller goes."""

    def __init__(self, topics: TopicManager, registration: Registration, clock: Clock) -> None:
        self._topics = topics
        self._registration = registration
        self._clock = clock
        self._actions: Mapping[str, _Action] = {
            "frontier": self._frontier,
            "cursor.create": self._create_cursor,
            "cursor.advance": self._advance_cursor,
            "cursor.get": self._get_cursor,
            "producer": self._producer,
            "seek": self._seek,
        }
        assert self._actions.keys() == ACTIONS.keys(), "an action is not listed, or not served"

    async def run(self, name: str, body: bytes) -> bytes:
        """Return the answer of an action; both are JSON."""
        action = self._actions.get(name)
        if action is None:
            raise InvalidRequest(f"there is no action {name[:64]!r}, only {', '.join(ACTIONS)}")
        return await action(body)

    # Frontiers.

    async def _frontier(self, body: bytes) -> bytes:
        action = decode(FrontierAction, body, "the body of frontier")
        topics = [topic for name in action.topics for topic in self._physical(name)]
        if action.wait_ms and not any(_has_more(topic, action.after) for topic in topics):
            await self._wait_for_more(topics, action)
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

    def _physical(self, name: str) -> list[Topic]:
        names = self._topics.partitions(name) or [name]
        topics = [self._topics.get(each) for each in names]
        for topic in topics:
            log_of(topic)
        return topics

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

    # Cursors.

    async def _get_cursor(self, body: bytes) -> bytes:
        action = decode(CursorAction, body, "the body of cursor.get")
        log, subscription = self._registration.subscription(action.topic, action.subscription)
        return _cursor_answer(action, log, subscription)

    async def _create_cursor(self, body: bytes) -> bytes:
        action = decode(CursorAction, body, "the body of cursor.create")
        log = log_of(self._topics.get(action.topic))
        position = await self._position(log, action)
        creating = self._registration.create_cursor(action.topic, action.subscription, position)
        subscription = await carry_through(creating)
        return _cursor_answer(action, log, subscription)

    async def _advance_cursor(self, body: bytes) -> bytes:
        action = decode(CursorAction, body, "the body of cursor.advance")
        log, subscription = self._registration.subscription(action.topic, action.subscription)
        position = await self._position(log, action)
        durable: asyncio.Future[DanubeError | None] = asyncio.get_running_loop().create_future()
        subscription.advance(position, durable.set_result)
        error = await durable
        if error is not None:
            raise error
        return _cursor_answer(action, log, subscription)

    async def _seek(self, body: bytes) -> bytes:
        action = decode(CursorAction, body, "the body of seek")
        log, _ = self._registration.subscription(action.topic, action.subscription)
        position = await self._position(log, action)
        seeking = self._registration.seek(action.topic, action.subscription, position)
        subscription = await carry_through(seeking)
        return _cursor_answer(action, log, subscription)

    async def _position(self, log: TopicLog, action: CursorAction) -> Offset:
        if (action.position is None) == (action.time_ms is None):
            raise InvalidRequest(
                "give either a position (an offset, earliest or latest) or a time_ms"
            )
        if action.time_ms is not None:
            return await offset_at(log, action.time_ms)
        assert action.position is not None
        position = position_of(log, action.position)
        if not log.first_offset <= position <= log.durable_end:
            raise InvalidRequest(
                f"topic {action.topic} has offsets {log.first_offset} to before "
                f"{log.durable_end}; position {position} is none, nor the next one"
            )
        return position

    # Producers.

    async def _producer(self, body: bytes) -> bytes:
        action = decode(ProducerAction, body, "the body of producer")
        last = await self._topics.get(action.topic).last_batch(action.producer)
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


def _cursor_answer(action: CursorAction, log: TopicLog, subscription: Subscription) -> bytes:
    return encode(
        CursorAnswer(
            topic=action.topic,
            subscription=action.subscription,
            position=subscription.cursor,
            frontier=log.durable_end,
        )
    )
