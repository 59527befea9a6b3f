"""Flight's DoAction: frontiers, times, places, cursors, segments, for tools and pipelines."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec

from pydanube.broker.servicers.flight_cursors import check_action
from pydanube.broker.servicers.flight_parts import has_more
from pydanube.broker.servicers.flight_questions import (
    AskCursor,
    AskFrontier,
    AskJoin,
    AskOffsets,
    AskProducer,
    AskProperty,
    AskSegments,
    AskSubscriptions,
    CursorVerb,
    Kept,
)
from pydanube.broker.servicers.flight_topics import FlightTopics
from pydanube.errors import InvalidRequest, NotFound
from pydanube.model.names import split_partition
from pydanube.runtime.tasks import carry_through
from pydanube.wire.flight.descriptors import (
    SEGMENTS_MAX,
    CursorAction,
    CursorAnswer,
    FrontierAction,
    GetPropertyAction,
    JoinSegmentsAction,
    JoinSegmentsAnswer,
    ListedTopic,
    ListSegmentsAction,
    ListSegmentsAnswer,
    LocateAction,
    LocateAnswer,
    OffsetsAction,
    ProducerAction,
    ProducerAnswer,
    PropertyAnswer,
    SetPropertyAction,
    ShareAction,
    ShareAnswer,
    SubscriptionsAction,
    SubscriptionsAnswer,
    TopicFrontier,
    TopicOffset,
    TopicPlace,
    TopicSubscriptions,
    decode,
    encode,
)
from pydanube.wire.flight.handing_over import is_readable
from pydanube.wire.flight.service import ACTIONS

_Action = Callable[[bytes], Awaitable[bytes]]


class FlightActions:
    """Carries out actions by name, wherever the topics are that they concern."""

    def __init__(self, topics: FlightTopics, store: str) -> None:
        self._topics = topics
        self._store = store
        self._actions: Mapping[str, _Action] = {
            "frontier": self._frontier,
            "offsets": self._offsets,
            "locate": self._locate,
            "cursor.create": partial(self._cursor, "create"),
            "cursor.lease": partial(self._cursor, "lease"),
            "cursor.advance": partial(self._cursor, "advance"),
            "cursor.get": partial(self._cursor, "get"),
            "subscriptions": self._subscriptions,
            "producer": self._producer,
            "share": self._share,
            "property.set": self._set_property,
            "property.get": self._get_property,
            "segments.list": self._list_segments,
            "segments.join": self._join_segments,
            "seek": partial(self._cursor, "seek"),
        }
        assert self._actions.keys() == ACTIONS.keys(), "an action is not listed, or not served"

    async def run(self, name: str, body: bytes) -> bytes:
        """Return the answer of an action; both are JSON."""
        action = self._actions.get(name)
        if action is None:
            raise InvalidRequest(f"there is no action {name[:64]!r}, only {', '.join(ACTIONS)}")
        return await action(body)

    # Frontiers, times and places.

    async def _frontier(self, body: bytes) -> bytes:
        action = decode(FrontierAction, body, "the body of frontier")
        names = self._topics.chosen(action.topics, action.pattern)
        found: Mapping[str, TopicFrontier] = {}
        if not action.wait_ms or self._topics.are_spread(names):
            found = await self._frontiers(names)
        if action.wait_ms and not any(
            has_more(name, each.frontier, action.after) for name, each in found.items()
        ):
            await self._topics.wait_for_more(
                AskFrontier(names=names, after=action.after, wait_ms=action.wait_ms)
            )
            if action.pattern is not None:
                names = self._topics.chosen((), action.pattern)
            found = await self._frontiers(names)
        return msgspec.json.encode({"topics": found})

    async def _frontiers(self, names: list[str]) -> Mapping[str, TopicFrontier]:
        told = await self._topics.ask(AskFrontier(names=names), TopicFrontier)
        return {name: each.answer for name, each in told.items()}

    async def _offsets(self, body: bytes) -> bytes:
        action = decode(OffsetsAction, body, "the body of offsets")
        names = self._topics.chosen(action.topics, action.pattern)
        told = await self._topics.ask(AskOffsets(names=names, time_ms=action.time_ms), TopicOffset)
        return msgspec.json.encode({"topics": {name: each.answer for name, each in told.items()}})

    async def _locate(self, body: bytes) -> bytes:
        action = decode(LocateAction, body, "the body of locate")
        names = dict.fromkeys(
            each for name in action.topics for each in self._topics.physical(name)
        )
        places = {name: self._topics.place_of(name) for name in names}
        return encode(
            LocateAnswer(
                topics={
                    name: TopicPlace(location=location, here=here)
                    for name, (location, here) in places.items()
                }
            )
        )

    # Properties.

    async def _set_property(self, body: bytes) -> bytes:
        action = decode(SetPropertyAction, body, "the body of property.set")
        question = AskProperty(
            names=self._topics.physical(action.topic), name=action.name, value=action.value
        )
        await carry_through(self._topics.ask(question, Kept))
        kept = {} if action.value is None else {action.topic: action.value}
        return encode(PropertyAnswer(topics=kept))

    async def _get_property(self, body: bytes) -> bytes:
        action = decode(GetPropertyAction, body, "the body of property.get")
        chosen = set(self._topics.chosen((), action.pattern))
        found: dict[str, str] = {}
        for name, record in self._topics.known():
            value = record.properties.get(action.name)
            if value is not None and name in chosen:
                base, _ = split_partition(name) or (name, 0)
                found.setdefault(base, value)
        return encode(PropertyAnswer(topics=found))

    # Cursors.

    async def _cursor(self, verb: CursorVerb, body: bytes) -> bytes:
        what = verb if verb == "seek" else f"cursor.{verb}"
        action = decode(CursorAction, body, f"the body of {what}")
        names = self._meant(action)
        check_action(verb, action, names)
        question = AskCursor(names=names, verb=verb, action=action)
        if verb != "get" and self._topics.are_spread(names):
            # So that what one broker refuses changes nothing at another.
            rehearsal = msgspec.structs.replace(question, rehearse=True)
            await self._topics.ask(rehearsal, CursorAnswer)
        told = await carry_through(self._topics.ask(question, CursorAnswer))
        answers = {name: each.answer for name, each in told.items()}
        if [action.topic] == list(answers):
            return encode(answers[names[0]])
        return msgspec.json.encode({"subscription": action.subscription, "cursors": answers})

    def _meant(self, action: CursorAction) -> list[str]:
        given = [action.topic is not None, bool(action.topics), action.positions is not None]
        if given.count(True) != 1:
            raise InvalidRequest("give one of topic, topics and positions, to say where")
        if action.positions is None:
            names = action.topics if action.topic is None else [action.topic]
            return self._topics.chosen(names, None)
        if not action.positions:
            raise InvalidRequest("positions name no topic")
        return [self._alone(name) for name in action.positions]

    def _alone(self, name: str) -> str:
        """Return the name of a physical topic; refuse that of a base."""
        if self._topics.physical(name) != [name]:
            raise NotFound(f"topic {name} has partitions; name them one by one")
        return name

    # Subscriptions.

    async def _subscriptions(self, body: bytes) -> bytes:
        action = decode(SubscriptionsAction, body, "the body of subscriptions")
        names = self._topics.chosen(action.topics, action.pattern)
        question = AskSubscriptions(names=names, subscription=action.subscription)
        # What changes hands is not waited for: whoever watches asks again.
        told = await self._topics.ask_once(question, TopicSubscriptions)
        return encode(
            SubscriptionsAnswer(topics={name: each.answer for name, each in told.items()})
        )

    # Producers.

    async def _producer(self, body: bytes) -> bytes:
        action = decode(ProducerAction, body, "the body of producer")
        question = AskProducer(names=[self._alone(action.topic)], action=action)
        told = await self._topics.ask(question, ProducerAnswer)
        return encode(told[action.topic].answer)

    async def _share(self, body: bytes) -> bytes:
        action = decode(ShareAction, body, "the body of share")
        return encode(ShareAnswer(readable=is_readable(action.memory)))

    # Segments.

    async def _list_segments(self, body: bytes) -> bytes:
        action = decode(ListSegmentsAction, body, "the body of segments.list")
        names = self._topics.chosen([action.topic], None)
        # The oldest are enough: whoever joins them lists again.
        most = max(SEGMENTS_MAX // len(names), 2)
        told = await self._topics.ask(AskSegments(names=names, most=most), ListedTopic)
        found = {name: each.answer for name, each in told.items()}
        return encode(ListSegmentsAnswer(store=self._store, topics=found))

    async def _join_segments(self, body: bytes) -> bytes:
        action = decode(JoinSegmentsAction, body, "the body of segments.join")
        question = AskJoin(names=[self._alone(action.topic)], action=action)
        told = await self._topics.ask(question, JoinSegmentsAnswer)
        return encode(told[action.topic].answer)
