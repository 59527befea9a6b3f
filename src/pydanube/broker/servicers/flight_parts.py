"""Answers questions of Flight about topics that this broker serves."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import assert_never

from msgspec import Struct

from pydanube.broker.servicers.flight_cursors import CursorParts
from pydanube.broker.servicers.flight_plan import (
    bounds_of,
    log_of,
    mean_row_bytes,
    plan_pieces,
    planned_range,
    segments_of,
    topic_id,
)
from pydanube.broker.servicers.flight_questions import (
    AskCursor,
    AskExtent,
    AskFrontier,
    AskJoin,
    AskOffsets,
    AskPlan,
    AskProducer,
    AskProperty,
    AskSegments,
    AskSubscriptions,
    Extent,
    Kept,
    PlannedTopic,
    Question,
)
from pydanube.broker.servicers.flight_segments import join_segments, listed_segments
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope, carry_through
from pydanube.topics.manager import TopicManager
from pydanube.topics.positions import offset_at
from pydanube.topics.registration import Registration
from pydanube.topics.standings import standings
from pydanube.topics.topic import Topic
from pydanube.wire.flight.descriptors import (
    ProducerAnswer,
    TopicFrontier,
    TopicOffset,
    TopicSubscriptions,
)


class FlightParts:
    """This broker's part of an answer: topics that are not served here are left out of it."""

    def __init__(self, topics: TopicManager, registration: Registration, clock: Clock) -> None:
        self._topics = topics
        self._registration = registration
        self._clock = clock
        self._cursors = CursorParts(registration, clock)

    async def answer(self, question: Question) -> Mapping[str, Struct]:
        """Return what there is to say, by topic."""
        served = [
            topic for name in question.names if (topic := self._topics.find(name)) is not None
        ]
        match question:
            case AskExtent():
                return {topic.name: _extent(topic) for topic in served}
            case AskPlan():
                return await _planned(served, question)
            case AskFrontier():
                return await self._frontiers(served, question)
            case AskOffsets():
                return {topic.name: await _offset(topic, question.time_ms) for topic in served}
            case AskCursor():
                return await self._cursors.answer(served, question)
            case AskSubscriptions():
                return {
                    topic.name: TopicSubscriptions(
                        subscriptions=standings(topic, question.subscription),
                        durability=topic.record.durability if topic.is_reliable else None,
                    )
                    for topic in served
                }
            case AskProperty():
                return await carry_through(self._keep(served, question))
            case AskProducer():
                return {topic.name: await _last_batch(topic, question) for topic in served}
            case AskSegments():
                return {topic.name: listed_segments(topic, question.most) for topic in served}
            case AskJoin():
                return {topic.name: await join_segments(topic, question.action) for topic in served}
            case _:
                assert_never(question)

    async def _frontiers(
        self, topics: Sequence[Topic], question: AskFrontier
    ) -> dict[str, TopicFrontier]:
        for topic in topics:
            log_of(topic)
        after = question.after
        if question.wait_ms and not any(
            has_more(each.name, each.frontier.value, after) for each in topics
        ):
            await self._wait_for_more(topics, question)
        return {topic.name: await _frontier(topic) for topic in topics}

    async def _wait_for_more(self, topics: Sequence[Topic], question: AskFrontier) -> None:
        """Return when one topic has more than the caller knows, is closed, or time is up."""
        moved = asyncio.Event()

        async def watch(topic: Topic) -> None:
            try:
                await topic.frontier.wait_for(question.after.get(topic.name, 0) + 1)
            finally:
                moved.set()

        scope = TaskScope(lambda name, error: moved.set())
        timer = self._clock.call_later(question.wait_ms / 1000, moved.set)
        try:
            for topic in topics:
                scope.start(watch(topic), f"frontier of {topic.name}")
            await moved.wait()
        finally:
            timer.cancel()
            await scope.close()

    async def _keep(self, topics: Sequence[Topic], question: AskProperty) -> dict[str, Kept]:
        for topic in topics:
            await self._registration.set_property(topic.name, question.name, question.value)
        return {topic.name: Kept() for topic in topics}


def has_more(name: str, frontier: int, after: Mapping[str, int]) -> bool:
    """Tell whether a topic has more than somebody knows."""
    return frontier > after.get(name, 0)


def _extent(topic: Topic) -> Extent:
    if topic.log is None:
        return Extent(id=topic_id(topic))
    return Extent(id=topic_id(topic), first=topic.log.first_offset, end=topic.log.durable_end)


async def _planned(topics: Sequence[Topic], question: AskPlan) -> dict[str, PlannedTopic]:
    # All at one moment, before anything is waited for.
    bounds = [bounds_of(log_of(topic)) for topic in topics]
    planned = {}
    for topic, bound in zip(topics, bounds, strict=True):
        start, end = await planned_range(topic, bound, question.command, several=question.several)
        log = log_of(topic)
        pieces = plan_pieces(
            start,
            end,
            await mean_row_bytes(log),
            question.command.piece_bytes,
            segments_of(log),
        )
        planned[topic.name] = PlannedTopic(id=topic_id(topic), start=start, end=end, pieces=pieces)
    return planned


async def _frontier(topic: Topic) -> TopicFrontier:
    log = log_of(topic)
    row_bytes = await mean_row_bytes(log)
    return TopicFrontier(
        id=topic_id(topic),
        earliest=log.first_offset,
        frontier=log.durable_end,
        mean_row_bytes=row_bytes,
    )


async def _offset(topic: Topic, time_ms: int) -> TopicOffset:
    log = log_of(topic)
    offset = await offset_at(log, time_ms)
    return TopicOffset(
        id=topic_id(topic), offset=offset, earliest=log.first_offset, frontier=log.durable_end
    )


async def _last_batch(topic: Topic, question: AskProducer) -> ProducerAnswer:
    last = await topic.last_batch(question.action.producer, question.action.session)
    if last is None:
        return ProducerAnswer()
    return ProducerAnswer(
        first_sequence=last.stamp.first_sequence,
        last_sequence=last.stamp.last_sequence,
        digest=last.stamp.digest,
        offset=last.base,
        rows=last.count,
    )
