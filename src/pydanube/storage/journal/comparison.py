"""Compares what a journal holds with how far the metadata are. Pure.

Whatever is newer than the metadata is named and kept; only what they have had and have no more is
deleted. See `known` for the law.
"""

from collections.abc import Mapping, Set
from types import MappingProxyType

from msgspec import Struct

from pydanube.model.ids import Offset, SubscriptionId, TopicId
from pydanube.storage.journal.contents import JournalContents, TopicIndex
from pydanube.storage.journal.known import KnownSubscription, KnownTopic


class Abandoned(Struct, frozen=True):
    """Revisions (start, end] that a restored copy of the metadata has skipped for good."""

    start: int
    end: int


class Reach(Struct, frozen=True, kw_only=True):
    """How far the metadata are."""

    revision: int
    abandoned: tuple[Abandoned, ...] = ()
    recovered: Mapping[TopicId, int] = MappingProxyType({})
    """Topics that were brought in from journals before, and up to which epoch."""

    def has_been_at(self, revision: int) -> bool:
        """Tell whether the metadata know all that there was at a revision of theirs."""
        if any(each.start < revision <= each.end for each in self.abandoned):
            return False
        return revision <= self.revision

    def has_been_told(self, topic_id: TopicId, epoch: int) -> bool:
        """Tell whether a topic under an epoch was brought in before."""
        return epoch <= self.recovered.get(topic_id, -1)


class MissingTopic(Struct, frozen=True, kw_only=True):
    """A topic in the journal that is newer than the metadata."""

    id: TopicId
    known: KnownTopic | None
    """None if only its epoch, or its id, shows that it is newer."""
    first: Offset
    end: Offset
    """The journal holds [first, end) of it; nothing if they are equal."""
    epoch: int


class Compared(Struct, frozen=True, kw_only=True):
    """What the journal has and the metadata have not."""

    topics: tuple[MissingTopic, ...] = ()
    moved: tuple[MissingTopic, ...] = ()
    """Topics that the metadata have, under an ownership of before this journal's."""
    subscriptions: tuple[KnownSubscription, ...] = ()
    copies: tuple[TopicId, ...] = ()
    """Copies of other brokers' topics that are newer: kept until their owner has told of them."""
    doubtful: tuple[MissingTopic, ...] = ()
    """Of a journal that was written before there were notes: deleted, or newer."""
    is_ahead: bool = False
    """The journal was written when the metadata were further than they are."""


def compare(
    contents: JournalContents,
    topics: Set[TopicId],
    subscriptions: Set[SubscriptionId],
    reach: Reach,
) -> Compared:
    """Compare a journal with the topics and subscriptions that the metadata have."""
    known = contents.known
    missing, doubtful, copies = [], [], []
    for topic_id in sorted((contents.topics.keys() | known.topics.keys()) - topics):
        index = contents.topics.get(topic_id, TopicIndex())
        one = _describe(topic_id, index, known.topics.get(topic_id))
        seen_at = max(one.known.revision if one.known is not None else 0, index.epoch)
        if topic_id in known.gone_topics or reach.has_been_told(topic_id, index.epoch):
            continue
        if index.copy is not None:
            if not reach.has_been_at(seen_at):
                copies.append(topic_id)
        elif not seen_at:
            # Once there are notes, one without has been looked at, and was deleted.
            doubtful += [] if known.revision else [one]
        elif not reach.has_been_at(seen_at):
            missing.append(one)
    return Compared(
        topics=tuple(missing),
        moved=tuple(
            _describe(topic_id, index, known.topics.get(topic_id))
            for topic_id, index in sorted(contents.topics.items())
            if topic_id in topics
            and index.copy is None
            and not reach.has_been_at(index.epoch)
            and not reach.has_been_told(topic_id, index.epoch)
        ),
        subscriptions=tuple(
            each
            for each in known.subscriptions.values()
            if each.id not in subscriptions and not reach.has_been_at(each.revision)
        ),
        copies=tuple(copies),
        doubtful=tuple(doubtful),
        is_ahead=not reach.has_been_at(known.revision),
    )


def first_needed(index: TopicIndex) -> Offset:
    """Return the offset below which the journal holds nothing, so that segments must."""
    return index.first_offset


def _describe(topic_id: TopicId, index: TopicIndex, known: KnownTopic | None) -> MissingTopic:
    end = max(index.end, index.next_offset)
    return MissingTopic(
        id=topic_id,
        known=known,
        first=index.first_offset if index.bases else Offset(end),
        end=Offset(end),
        epoch=index.epoch,
    )
