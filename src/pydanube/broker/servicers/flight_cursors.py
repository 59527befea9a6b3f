"""Flight's actions on cursors: where one stands on one topic or many, and who holds it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from pydanube.broker.servicers.flight_plan import log_of, position_of, topic_id
from pydanube.broker.servicers.flight_topics import chosen_topics
from pydanube.errors import AlreadyExists, DanubeError, InvalidRequest
from pydanube.model.ids import Offset
from pydanube.model.names import check_client_name
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import carry_through
from pydanube.topics.leases import LEASE_MS, Lease
from pydanube.topics.manager import TopicManager
from pydanube.topics.positions import offset_at
from pydanube.topics.registration import Registration
from pydanube.topics.topic import Topic
from pydanube.wire.flight.descriptors import (
    CursorAction,
    CursorAnswer,
    Position,
    decode,
    encode,
)

_Change = Callable[[CursorAction, Topic, Offset], Awaitable[object]]


class FlightCursors:
    """Creates, leases, advances, moves and tells. A vector is refused as a whole or not at all,
    and what was begun is finished even if its caller goes.
    """

    def __init__(self, topics: TopicManager, registration: Registration, clock: Clock) -> None:
        self._topics = topics
        self._registration = registration
        self._clock = clock

    async def get(self, body: bytes) -> bytes:
        """Tell where a cursor or subscription stands."""
        action = decode(CursorAction, body, "the body of cursor.get")
        return self._answer(action, self._chosen(action))

    async def create(self, body: bytes) -> bytes:
        """Create a cursor, with a lease if there is a holder."""
        action = decode(CursorAction, body, "the body of cursor.create")
        self._lease(action)
        check_client_name("subscription", action.subscription)
        topics = self._chosen(action)
        for topic in topics:
            if action.existing == "refuse" and action.subscription in topic.subscriptions:
                raise AlreadyExists(
                    f"topic {topic.name} has a subscription {action.subscription} already"
                )
        return await self._change(action, topics, self._create)

    async def lease(self, body: bytes) -> bytes:
        """Let the caller hold a cursor from now on."""
        action = decode(CursorAction, body, "the body of cursor.lease")
        lease = self._lease(action)
        if lease is None:
            raise InvalidRequest("a lease needs a holder, such as the id of a job")
        topics = self._chosen(action)
        self._check_there(action, topics)
        await carry_through(self._take(action, topics, lease))
        return self._answer(action, topics)

    async def _take(self, action: CursorAction, topics: list[Topic], lease: Lease) -> None:
        for topic in topics:
            await self._registration.lease_cursor(topic.name, action.subscription, lease)

    async def advance(self, body: bytes) -> bytes:
        """Move a cursor forward."""
        action = decode(CursorAction, body, "the body of cursor.advance")
        topics = self._chosen(action)
        self._check_there(action, topics)
        for topic in topics:
            topic.leases.check_holder(action.subscription, action.holder)
        return await self._change(action, topics, self._advance)

    async def seek(self, body: bytes) -> bytes:
        """Move a subscription, forward or back."""
        action = decode(CursorAction, body, "the body of seek")
        topics = self._chosen(action)
        self._check_there(action, topics)
        return await self._change(action, topics, self._seek)

    # One topic.

    async def _create(self, action: CursorAction, topic: Topic, position: Offset) -> None:
        lease = self._lease(action)
        registration, name = self._registration, action.subscription
        try:
            await registration.create_cursor(topic.name, name, position, lease)
        except AlreadyExists:
            if action.existing == "refuse":
                raise
            if lease is not None:
                await registration.lease_cursor(topic.name, name, lease)

    async def _advance(self, action: CursorAction, topic: Topic, position: Offset) -> None:
        _, subscription = self._registration.subscription(topic.name, action.subscription)
        durable: asyncio.Future[DanubeError | None] = asyncio.get_running_loop().create_future()
        subscription.advance(position, durable.set_result)
        error = await durable
        if error is not None:
            raise error
        topic.leases.touch(action.subscription)

    async def _seek(self, action: CursorAction, topic: Topic, position: Offset) -> None:
        await self._registration.seek(topic.name, action.subscription, position)

    # All of them.

    def _chosen(self, action: CursorAction) -> list[Topic]:
        given = [action.topic is not None, bool(action.topics), action.positions is not None]
        if given.count(True) != 1:
            raise InvalidRequest("give one of topic, topics and positions, to say where")
        if action.positions is None:
            names = action.topics if action.topic is None else [action.topic]
            return chosen_topics(self._topics, names, None)
        if not action.positions:
            raise InvalidRequest("positions name no topic")
        topics = [self._topics.get(name) for name in action.positions]
        for topic in topics:
            log_of(topic)
        return topics

    def _check_there(self, action: CursorAction, topics: list[Topic]) -> None:
        for topic in topics:
            self._registration.subscription(topic.name, action.subscription)

    def _lease(self, action: CursorAction) -> Lease | None:
        if action.holder is None:
            if action.ttl_ms is not None or not action.hold:
                raise InvalidRequest("ttl_ms and hold belong to a lease, which needs a holder")
            return None
        return Lease(
            holder=check_client_name("holder", action.holder),
            ttl_ms=LEASE_MS if action.ttl_ms is None else action.ttl_ms,
            hold=action.hold,
            touched_ms=self._clock.now_ms(),
        )

    async def _change(self, action: CursorAction, topics: list[Topic], change: _Change) -> bytes:
        positions = [(topic, await self._position(action, topic, topics)) for topic in topics]

        async def change_all() -> None:
            for topic, position in positions:
                await change(action, topic, position)

        await carry_through(change_all())
        return self._answer(action, topics)

    async def _position(self, action: CursorAction, topic: Topic, topics: list[Topic]) -> Offset:
        given = [each is not None for each in (action.positions, action.position, action.time_ms)]
        if given.count(True) != 1:
            raise InvalidRequest(
                "give either a position (an offset, earliest or latest), positions or a time_ms"
            )
        log = log_of(topic)
        if action.time_ms is not None:
            return await offset_at(log, action.time_ms)
        wanted: Position | None = action.position
        if action.positions is not None:
            wanted = action.positions[topic.name]
        elif len(topics) > 1 and isinstance(wanted, int):
            raise InvalidRequest("an offset belongs to one topic; give positions by topic")
        assert wanted is not None
        position = position_of(log, wanted)
        if not log.first_offset <= position <= log.durable_end:
            raise InvalidRequest(
                f"topic {topic.name} has offsets {log.first_offset} to before "
                f"{log.durable_end}; position {position} is none, nor the next one"
            )
        return position

    # Answers.

    def _answer(self, action: CursorAction, topics: list[Topic]) -> bytes:
        answers: Mapping[str, CursorAnswer] = {
            topic.name: self._cursor(action, topic) for topic in topics
        }
        if [action.topic] == list(answers):
            return encode(answers[topics[0].name])
        return msgspec.json.encode({"subscription": action.subscription, "cursors": answers})

    def _cursor(self, action: CursorAction, topic: Topic) -> CursorAnswer:
        log, subscription = self._registration.subscription(topic.name, action.subscription)
        lease = topic.leases.get(action.subscription)
        return CursorAnswer(
            topic=topic.name,
            subscription=action.subscription,
            position=subscription.cursor,
            frontier=log.durable_end,
            id=topic_id(topic),
            earliest=log.first_offset,
            holder=None if lease is None else lease.holder,
            ttl_ms=None if lease is None else lease.ttl_ms,
            holds=topic.leases.holds(action.subscription),
        )
