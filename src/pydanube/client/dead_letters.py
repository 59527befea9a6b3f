"""Dead letters: which topics hold them, what they say, and how they go back or are given up.

What has been dealt with lies below a cursor of the dead-letter topic, a subscription named CURSOR.
So nobody else's subscriptions on that topic are touched, and its history stays as retention says.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

from msgspec import Struct

from pydanube.client.client import Client
from pydanube.client.flight_actions import act
from pydanube.client.producer import Producer
from pydanube.errors import Conflict, DanubeError, InvalidRequest, NotFound
from pydanube.model.dead_letters import (
    ATTEMPTS,
    ORIGINAL_OFFSET,
    ORIGINAL_SUBSCRIPTION,
    ORIGINAL_TOPIC,
    REASON,
    requeued_attributes,
)
from pydanube.model.names import check_topic_name, namespace_of
from pydanube.wire.flight.descriptors import (
    CursorAction,
    CursorAnswer,
    FrontierAction,
    SubscriptionsAction,
    SubscriptionsAnswer,
    TopicFrontier,
)

CURSOR = "danube-dlq"
CHUNK_ROWS = 500
"""So many go back before they are taken out; a crash repeats no more than these."""
CHUNK_BYTES = 4 * 1024 * 1024
READ_MAX = 100

_Answer = TypeVar("_Answer", bound=Struct)


class DeadLetterTopic(Struct, frozen=True, kw_only=True):
    """A topic that holds dead letters, or will."""

    dead_letter_topic: str
    messages: int
    """Those that were neither requeued nor purged."""
    fed_by: list[str]
    """Topics and subscriptions whose failure policies name it."""


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A dead letter, and where it comes from as far as it says so."""

    topic: str
    offset: int
    original_topic: str | None
    original_offset: int | None
    subscription: str | None
    attempts: int | None
    reason: str | None
    publish_time_ms: int
    """Of the original."""
    producer_name: str
    routing_key: str | None
    attributes: Mapping[str, str]
    payload: bytes
    schema_id: int | None
    schema_version: int | None


class Settled(Struct, frozen=True, kw_only=True):
    """What was taken out of a dead-letter topic."""

    dead_letter_topic: str
    change: str
    messages: int
    left: int
    """What is in it now."""


class _Frontiers(Struct, frozen=True):
    topics: dict[str, TopicFrontier]


class DeadLetters:
    """The dead letters of a cluster, over the client port of any broker."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._brokers = client.brokers

    async def topics(self, namespace: str | None = None) -> list[DeadLetterTopic]:
        """Return the topics that failure policies name, and those whose names end in -dlq."""
        known = await self._subscriptions(SubscriptionsAction(pattern=".*"))
        fed: dict[str, list[str]] = {name: [] for name in known if name.endswith("-dlq")}
        for name in sorted(known):
            for each in known[name].subscriptions:
                policy = each.failure_policy
                if policy.poison_policy == "DeadLetter" and policy.dead_letter_topic is not None:
                    fed.setdefault(policy.dead_letter_topic, []).append(
                        f"{name} {each.subscription}"
                    )
        shown = [name for name in sorted(fed) if namespace in (None, namespace_of(name))]
        return [
            DeadLetterTopic(
                dead_letter_topic=name,
                messages=await self._left(name) if name in known else 0,
                fed_by=fed[name],
            )
            for name in shown
        ]

    async def read(
        self, topic: str, *, count: int = READ_MAX, start: int | None = None
    ) -> AsyncIterator[DeadLetter]:
        """Iterate over dead letters, the oldest first, and take none out.

        From `start` on if given, those too that were dealt with already.
        """
        place = await self._place(topic)
        first = place.position if start is None else max(start, place.earliest)
        async for letters in self._letters(topic, first, min(first + count, place.frontier)):
            for letter in letters:
                yield letter

    async def requeue(
        self, topic: str, *, count: int | None = None, to: str | None = None
    ) -> Settled:
        """Publish dead letters to the topics they come from, or to another, the oldest first.

        What was there when it began, or the first `count` of it. Each is taken out once it is on
        disk where it goes; a crash in between repeats some and loses none. They get their place at
        the end of their topic, and every subscription of it sees them.
        """
        if to is not None and check_topic_name(to) == topic:
            raise InvalidRequest(f"dead letters of {topic} cannot be requeued to itself")
        place = await self._hold(topic)
        end = place.frontier if count is None else min(place.frontier, place.position + count)
        done = 0
        producers: dict[str, Producer[bytes]] = {}
        try:
            async for letters in self._letters(topic, place.position, end):
                await self._send_back(letters, to, producers)
                await self._advance(topic, letters[-1].offset + 1)
                done += len(letters)
        except DanubeError as error:
            error.add_note(f"{done} dead letters were requeued and taken out before")
            raise
        finally:
            for producer in producers.values():
                await producer.close()
        return await self._settled(topic, "requeued", done)

    async def purge(self, topic: str, *, count: int | None = None) -> Settled:
        """Take dead letters out without publishing them, the oldest first."""
        place = await self._hold(topic)
        end = place.frontier if count is None else min(place.frontier, place.position + count)
        if end > place.position:
            await self._advance(topic, end)
        return await self._settled(topic, "purged", end - place.position)

    # Going back.

    async def _send_back(
        self, letters: Sequence[DeadLetter], to: str | None, producers: dict[str, Producer[bytes]]
    ) -> None:
        """Publish them where they belong, in order; all of them are on disk afterwards."""
        targets = [to or _target(letter) for letter in letters]
        for target in dict.fromkeys(targets):
            if target not in producers:
                producers[target] = await self._producer(target, letters[targets.index(target)])
        pairs = zip(targets, letters, strict=True)
        for target, some in groupby(pairs, key=lambda pair: pair[0]):
            await producers[target].send_batch([_row(letter) for _, letter in some])

    async def _producer(self, target: str, letter: DeadLetter) -> Producer[bytes]:
        names = await self._brokers.partitions(check_topic_name(target))
        if not names:
            raise NotFound(
                f"topic {target}, from which dead letter {letter.offset} of {letter.topic} comes, "
                "does not exist any more; give another one with --to, or create it"
            )
        known = await self._subscriptions(SubscriptionsAction(topics=names))
        weak = {told.durability for told in known.values()} - {"fsync"}
        if weak:
            raise Conflict(
                f"topic {target} acknowledges before a message is on disk, so a dead letter that "
                "is taken out could be lost; give a topic with durability fsync with --to"
            )
        return await self._client.producer(target)

    # Places.

    async def _hold(self, topic: str) -> CursorAnswer:
        """Return where the cursor is; it begins with the oldest dead letter."""
        await self._must_exist(topic)
        create = CursorAction(
            subscription=CURSOR, topic=topic, position="earliest", existing="keep"
        )
        return _from_the_oldest(await self._act("cursor.create", create, CursorAnswer))

    async def _place(self, topic: str) -> CursorAnswer:
        """Return where the cursor is or would begin, without making one."""
        await self._must_exist(topic)
        get = CursorAction(subscription=CURSOR, topic=topic)
        try:
            return _from_the_oldest(await self._act("cursor.get", get, CursorAnswer))
        except NotFound:
            asked = FrontierAction(topics=[topic])
            found = (await self._act("frontier", asked, _Frontiers)).topics[topic]
            return CursorAnswer(
                topic=topic,
                subscription=CURSOR,
                position=found.earliest,
                frontier=found.frontier,
                id=found.id,
                earliest=found.earliest,
                holds=False,
            )

    async def _must_exist(self, topic: str) -> None:
        names = await self._brokers.partitions(check_topic_name(topic))
        if names != [topic]:
            raise NotFound(
                f"there is no dead-letter topic {topic}; danube dlq list names those there are"
                if not names
                else f"topic {topic} has partitions; give one of them, such as {names[0]}"
            )

    async def _left(self, topic: str) -> int:
        place = await self._place(topic)
        return place.frontier - place.position

    async def _advance(self, topic: str, position: int) -> None:
        action = CursorAction(subscription=CURSOR, topic=topic, position=position)
        await self._act("cursor.advance", action, CursorAnswer)

    async def _settled(self, topic: str, change: str, messages: int) -> Settled:
        left = await self._left(topic)
        return Settled(dead_letter_topic=topic, change=change, messages=messages, left=left)

    # Reading and asking.

    async def _letters(
        self, topic: str, start: int, end: int
    ) -> AsyncIterator[Sequence[DeadLetter]]:
        """Read from `start` to before `end`, some at a time: each was stored by itself."""
        if start >= end:
            return
        gathered: list[DeadLetter] = []
        size = 0
        async for batch in self._client.reader(topic, start=start, end=end).batches():
            for first in range(0, batch.rows.num_rows, CHUNK_ROWS):
                rows = batch.rows.slice(first, CHUNK_ROWS)
                size += rows.nbytes
                gathered += [
                    _letter(topic, batch.offset + first + number, row)
                    for number, row in enumerate(rows.to_pylist())
                ]
                if len(gathered) >= CHUNK_ROWS or size >= CHUNK_BYTES:
                    yield gathered
                    gathered, size = [], 0
        if gathered:
            yield gathered

    async def _subscriptions(self, action: SubscriptionsAction) -> Mapping[str, Any]:
        return (await self._act("subscriptions", action, SubscriptionsAnswer)).topics

    async def _act(self, name: str, action: Struct, kind: type[_Answer]) -> _Answer:
        """Ask any broker; each of these actions may be repeated without harm."""
        attempt = 0
        while True:
            try:
                return await act(self._brokers.service, name, action, kind)
            except DanubeError as error:
                if not (error.retryable and self._brokers.surroundings.retry.allows(attempt)):
                    raise
            self._brokers.ask_another()
            await self._brokers.pause(attempt)
            attempt += 1


def _from_the_oldest(place: CursorAnswer) -> CursorAnswer:
    """Leave out what retention has taken."""
    if place.position >= place.earliest:
        return place
    return CursorAnswer(
        topic=place.topic,
        subscription=place.subscription,
        position=place.earliest,
        frontier=place.frontier,
        id=place.id,
        earliest=place.earliest,
        holds=place.holds,
    )


def _target(letter: DeadLetter) -> str:
    if letter.original_topic is None:
        raise InvalidRequest(
            f"message {letter.offset} of {letter.topic} does not say which topic it comes from; "
            "name one with --to, or purge it"
        )
    return letter.original_topic


def _row(letter: DeadLetter) -> dict[str, object]:
    place = f"{letter.topic}@{letter.offset}"
    return {
        "payload": letter.payload,
        "producer_name": letter.producer_name,
        "routing_key": letter.routing_key,
        "attributes": requeued_attributes(letter.attributes, place, letter.publish_time_ms),
        "schema_id": letter.schema_id,
        "schema_version": letter.schema_version,
    }


def _letter(topic: str, offset: int, row: Mapping[str, Any]) -> DeadLetter:
    attributes = dict(row["attributes"] or ())
    return DeadLetter(
        topic=topic,
        offset=offset,
        original_topic=attributes.get(ORIGINAL_TOPIC),
        original_offset=_number(attributes.get(ORIGINAL_OFFSET)),
        subscription=attributes.get(ORIGINAL_SUBSCRIPTION),
        attempts=_number(attributes.get(ATTEMPTS)),
        reason=attributes.get(REASON),
        publish_time_ms=row["publish_time"],
        producer_name=row["producer_name"],
        routing_key=row["routing_key"],
        attributes=attributes,
        payload=row["payload"],
        schema_id=row["schema_id"],
        schema_version=row["schema_version"],
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
