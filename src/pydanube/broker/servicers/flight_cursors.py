"""Cursors on topics that this broker serves: where one stands, and who holds it."""

import asyncio
from collections.abc import Sequence
from typing import assert_never

from pydanube.broker.servicers.flight_plan import log_of, position_of, topic_id
from pydanube.broker.servicers.flight_questions import AskCursor, CursorVerb
from pydanube.errors import AlreadyExists, Conflict, DanubeError, InvalidRequest
from pydanube.model.ids import Offset
from pydanube.model.names import check_client_name
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import carry_through
from pydanube.subscriptions.subscription import Subscription
from pydanube.topics.leases import LEASE_MS, Lease
from pydanube.topics.positions import offset_at
from pydanube.topics.registration import Registration
from pydanube.topics.topic import Topic
from pydanube.wire.flight.descriptors import CursorAction, CursorAnswer, Position

_MOVES: frozenset[CursorVerb] = frozenset({"create", "advance", "seek"})


def check_action(verb: CursorVerb, action: CursorAction, names: Sequence[str]) -> None:
    """Refuse an action that makes no sense, whatever there is."""
    if verb == "create":
        _lease(action, 0)
        check_client_name("subscription", action.subscription)
    if verb == "lease" and _lease(action, 0) is None:
        raise InvalidRequest("a lease needs a holder, such as the id of a job")
    if verb not in _MOVES:
        return
    given = [each is not None for each in (action.positions, action.position, action.time_ms)]
    if given.count(True) != 1:
        raise InvalidRequest(
            "give either a position (an offset, earliest or latest), positions or a time_ms"
        )
    if len(names) > 1 and isinstance(action.position, int):
        raise InvalidRequest("an offset belongs to one topic; give positions by topic")


def _lease(action: CursorAction, now_ms: int) -> Lease | None:
    if action.holder is None:
        if action.ttl_ms is not None or not action.hold:
            raise InvalidRequest("ttl_ms and hold belong to a lease, which needs a holder")
        return None
    return Lease(
        holder=check_client_name("holder", action.holder),
        ttl_ms=LEASE_MS if action.ttl_ms is None else action.ttl_ms,
        hold=action.hold,
        touched_ms=now_ms,
    )


class CursorParts:
    """Creates, leases, advances, moves and tells. A vector is refused as a whole or not at all,
    and what was begun is finished even if its caller goes.
    """

    def __init__(self, registration: Registration, clock: Clock) -> None:
        self._registration = registration
        self._clock = clock

    async def answer(self, topics: Sequence[Topic], question: AskCursor) -> dict[str, CursorAnswer]:
        """Do what is asked, and tell where cursors stand."""
        verb, action = question.verb, question.action
        for topic in topics:
            log_of(topic)
            self._check(verb, action, topic)
        positions = [await _position(verb, action, topic) for topic in topics]
        if question.rehearse:
            return {topic.name: _rehearsed(action, topic) for topic in topics}

        async def change_all() -> None:
            for topic, position in zip(topics, positions, strict=True):
                await self._change(verb, action, topic, position)

        await carry_through(change_all())
        return {topic.name: self._cursor(action, topic) for topic in topics}

    def _check(self, verb: CursorVerb, action: CursorAction, topic: Topic) -> None:
        name = action.subscription
        if verb != "create":
            self._registration.subscription(topic.name, name)
        elif action.existing == "refuse" and name in topic.subscriptions:
            raise AlreadyExists(f"topic {topic.name} has a subscription {name} already")
        if verb == "advance":
            topic.leases.check_holder(name, action.holder)
            _check_mark(action, topic, topic.subscriptions[name])

    async def _change(
        self, verb: CursorVerb, action: CursorAction, topic: Topic, position: Offset
    ) -> None:
        match verb:
            case "get":
                return
            case "create":
                await self._create(action, topic, position)
            case "lease":
                lease = _lease(action, self._clock.now_ms())
                assert lease is not None, "the action was checked"
                await self._registration.lease_cursor(topic.name, action.subscription, lease)
            case "advance":
                await self._advance(action, topic, position)
            case "seek":
                await self._registration.seek(topic.name, action.subscription, position)
            case _:
                assert_never(verb)

    async def _create(self, action: CursorAction, topic: Topic, position: Offset) -> None:
        lease = _lease(action, self._clock.now_ms())
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
        _check_mark(action, topic, subscription)
        durable: asyncio.Future[DanubeError | None] = asyncio.get_running_loop().create_future()
        subscription.advance(position, durable.set_result)
        error = await durable
        if error is not None:
            raise error
        topic.leases.touch(action.subscription)

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
            mark=subscription.life,
        )


async def _position(verb: CursorVerb, action: CursorAction, topic: Topic) -> Offset:
    """Return where a cursor shall be; 0 if it stays where it is."""
    if verb not in _MOVES:
        return Offset(0)
    log = log_of(topic)
    if action.time_ms is not None:
        return await offset_at(log, action.time_ms)
    wanted: Position | None = action.position
    if action.positions is not None:
        wanted = action.positions[topic.name]
    assert wanted is not None, "the action was checked"
    position = position_of(log, wanted)
    if not log.first_offset <= position <= log.durable_end:
        raise InvalidRequest(
            f"topic {topic.name} has offsets {log.first_offset} to before "
            f"{log.durable_end}; position {position} is none, nor the next one"
        )
    return position


def _check_mark(action: CursorAction, topic: Topic, subscription: Subscription) -> None:
    """Refuse to advance a cursor that is not the one that the caller means any more."""
    mark = action.marks.get(topic.name)
    if mark is not None and mark != subscription.life:
        raise Conflict(
            f"cursor {subscription.name} of {topic.name} was dropped and made again; ask "
            "cursor.get where it stands, and advance it with the mark of that answer"
        )


def _rehearsed(action: CursorAction, topic: Topic) -> CursorAnswer:
    log = log_of(topic)
    return CursorAnswer(
        topic=topic.name,
        subscription=action.subscription,
        position=log.first_offset,
        frontier=log.durable_end,
        id=topic_id(topic),
        earliest=log.first_offset,
        holds=False,
    )
