"""What the journal notes of the metadata: whose ids it holds, and how far the metadata were. Pure.

A topic id that the metadata do not have is deleted if they are at least as far as when this journal
last knew the topic; else they are an older copy, and the topic is not known to them yet. Ids never
return, so there is no third case.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec
from msgspec import Struct

from pydanube.model.ids import SubscriptionId, TopicId

_PAYLOAD_BYTES_MAX = 1024 * 1024

_Named = TypeVar("_Named", "KnownTopic", "KnownSubscription")


class KnownTopic(Struct, frozen=True, array_like=True):
    """A topic as the metadata had it at a revision."""

    id: TopicId
    revision: int
    name: str
    record: bytes
    """Its record in the metadata; the journal does not look into it."""


class KnownSubscription(Struct, frozen=True, array_like=True):
    """A subscription as the metadata had it at a revision."""

    id: SubscriptionId
    topic_id: TopicId
    revision: int
    name: str
    record: bytes


class Note(Struct, frozen=True, array_like=True):
    """The payload of a KNOWN frame; each field adds to what was noted before."""

    revision: int = 0
    """The metadata had reached it when this was written."""
    topic_id_max: int = 0
    subscription_id_max: int = 0
    """The highest ids that this journal has ever held."""
    topics: tuple[KnownTopic, ...] = ()
    subscriptions: tuple[KnownSubscription, ...] = ()
    gone_topics: tuple[TopicId, ...] = ()
    """Deleted: what the journal held of them counts no more."""
    gone_subscriptions: tuple[SubscriptionId, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Note)


def encode_note(note: Note) -> bytes:
    """Return a KNOWN payload."""
    return _encoder.encode(note)


def decode_note(payload: bytes) -> Note:
    """Read a KNOWN payload."""
    return _decoder.decode(payload)


class Known:
    """All notes of a journal, added up."""

    def __init__(self) -> None:
        self.reached: Callable[[], int] = lambda: 0
        """How far the metadata are at the moment; set by whoever has them."""
        self.revision = 0
        """How far they were when the journal was last told."""
        self.topic_id_max = 0
        self.subscription_id_max = 0
        self.topics: dict[TopicId, KnownTopic] = {}
        self.subscriptions: dict[SubscriptionId, KnownSubscription] = {}
        self.gone_topics: set[TopicId] = set()
        self.gone_subscriptions: set[SubscriptionId] = set()

    def add(self, note: Note) -> None:
        """Take in one more note."""
        self.revision = max(self.revision, note.revision)
        self.topic_id_max = max(self.topic_id_max, note.topic_id_max)
        self.subscription_id_max = max(self.subscription_id_max, note.subscription_id_max)
        for topic in note.topics:
            self.topics[topic.id] = topic
            self.topic_id_max = max(self.topic_id_max, topic.id)
        for subscription in note.subscriptions:
            self.subscriptions[subscription.id] = subscription
            self.subscription_id_max = max(self.subscription_id_max, subscription.id)
        for topic_id in note.gone_topics:
            self._forget_topic(topic_id)
        for subscription_id in note.gone_subscriptions:
            self.subscriptions.pop(subscription_id, None)
            self.gone_subscriptions.add(subscription_id)

    def _forget_topic(self, topic_id: TopicId) -> None:
        self.topics.pop(topic_id, None)
        self.gone_topics.add(topic_id)
        for each in [each for each in self.subscriptions.values() if each.topic_id == topic_id]:
            del self.subscriptions[each.id]

    def saw(self, topics: Iterable[TopicId], subscriptions: Iterable[SubscriptionId]) -> None:
        """Take in whose records the journal holds."""
        self.topic_id_max = max(self.topic_id_max, *topics, 0)
        self.subscription_id_max = max(self.subscription_id_max, *subscriptions, 0)

    def keep_only(self, topics: Iterable[TopicId], subscriptions: Iterable[SubscriptionId]) -> None:
        """Forget all others; the highest ids stay."""
        kept_topics, kept_subscriptions = set(topics), set(subscriptions)
        for topic_id in self.topics.keys() - kept_topics:
            del self.topics[topic_id]
        for subscription_id in self.subscriptions.keys() - kept_subscriptions:
            del self.subscriptions[subscription_id]
        self.gone_topics.clear()
        self.gone_subscriptions.clear()

    def notes(self) -> Iterator[bytes]:
        """Return payloads for a snapshot; none if nothing was ever noted."""
        revision = max(self.revision, self.reached())
        if not revision:
            return
        yield encode_note(Note(revision, self.topic_id_max, self.subscription_id_max))
        for some in _in_parts(self.topics.values()):
            yield encode_note(Note(topics=tuple(some)))
        for others in _in_parts(self.subscriptions.values()):
            yield encode_note(Note(subscriptions=tuple(others)))


def _in_parts(known: Iterable[_Named]) -> Iterator[list[_Named]]:
    part: list[_Named] = []
    size = 0
    for each in known:
        part.append(each)
        size += len(each.record) + len(each.name) + 64
        if size >= _PAYLOAD_BYTES_MAX:
            yield part
            part, size = [], 0
    if part:
        yield part
