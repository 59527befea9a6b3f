"""What `danube recover` finds, and what it would write into the metadata. It only decides.

Nothing in journal or segments is deleted, ever: a plan only adds entries and tells topics apart.
"""

from collections.abc import Mapping, Set

import msgspec
from msgspec import Struct

from pydanube.model.ids import Offset, SubscriptionId, TopicId
from pydanube.model.names import is_topic_name, namespace_of
from pydanube.storage.journal.comparison import MissingTopic
from pydanube.storage.journal.contents import EarlierTopic
from pydanube.storage.journal.known import KnownSubscription
from pydanube.storage.segments.catalog import directory_of
from pydanube.topics.catalog import SubscriptionRecord, TopicRecord


class FoundDirectory(Struct, frozen=True):
    """One life of a topic in the segment store, and the objects in it."""

    topic: str
    topic_id: TopicId
    keys: tuple[str, ...]


class NewTopic(Struct, frozen=True, kw_only=True):
    """A topic that gets an entry."""

    name: str
    record: TopicRecord
    journal_first: Offset
    journal_end: Offset
    """The journal holds [first, end)."""
    epoch: int
    from_segments: bool
    """Its segments are in a directory of this id and name."""
    note: str = ""


class NewSubscription(Struct, frozen=True, kw_only=True):
    """A subscription that gets an entry."""

    topic: str
    name: str
    record: SubscriptionRecord


class Situation(Struct, frozen=True, kw_only=True):
    """What there is, as far as plans rest on it."""

    names: Mapping[str, TopicId]
    """Every topic of the metadata."""
    subscriptions: Set[tuple[str, str]]
    """Topic and name of every subscription of the metadata."""
    missing: tuple[MissingTopic, ...]
    missing_subscriptions: tuple[KnownSubscription, ...]
    earlier: Mapping[TopicId, EarlierTopic]
    """By the id each is to get: topics that share theirs with a later one."""
    directories: tuple[FoundDirectory, ...]
    """Those that belong to no topic of the metadata."""
    given_names: Mapping[TopicId, str]
    """What the operator calls topics without a name."""
    now_ms: int


def plan_topics(situation: Situation) -> list[NewTopic]:
    """Return the topics to enter, each under a name that is free."""
    taken = set(situation.names)
    living = set(situation.names.values())
    by_id = {each.topic_id: each for each in situation.directories}
    planned = []
    for one in situation.missing:
        found = by_id.pop(one.id, None)
        known = one.known
        name = known.name if known is not None else found.topic if found is not None else None
        planned.append(
            _new_topic(
                situation,
                taken,
                one.id,
                name,
                record=known.record if known is not None else None,
                held=(one.first, one.end),
                epoch=one.epoch,
                found=found,
            )
        )
    for topic_id, found in sorted(by_id.items()):
        if topic_id not in living and found.keys:
            planned.append(
                _new_topic(
                    situation,
                    taken,
                    topic_id,
                    found.topic,
                    record=None,
                    held=(Offset(0), Offset(0)),
                    epoch=0,
                    found=found,
                )
            )
    for topic_id, earlier in sorted(situation.earlier.items()):
        index = earlier.index
        name = situation.given_names.get(earlier.topic_id)
        planned.append(
            _new_topic(
                situation,
                taken,
                topic_id,
                name,
                record=None,
                held=(index.first_offset, Offset(index.end)),
                epoch=index.epoch,
                found=None,
            )
        )
    return planned


def _new_topic(
    situation: Situation,
    taken: set[str],
    topic_id: TopicId,
    name: str | None,
    *,
    record: bytes | None,
    held: tuple[Offset, Offset],
    epoch: int,
    found: FoundDirectory | None,
) -> NewTopic:
    notes = []
    name = situation.given_names.get(topic_id, name)
    if name is None or not is_topic_name(name):
        name = f"/default/recovered-{topic_id}"
        notes.append(f"its name is not known; --name {topic_id}=/NAMESPACE/TOPIC gives it one")
    if name in taken:
        notes.append(f"{name} is another topic by now")
        name = f"{name}-recovered-{topic_id}"
    taken.add(name)
    if record is not None:
        entry = msgspec.json.decode(record, type=TopicRecord)
    else:
        entry = TopicRecord(id=topic_id, strategy="Reliable", created_ms=situation.now_ms)
        notes.append("its settings are not known and are the defaults")
    if entry.schema_subject is not None:
        notes.append(f"bind it to schema {entry.schema_subject} again")
    attached = found is not None and found.topic == name
    if found is not None and found.keys and not attached:
        notes.append(
            f"its segments stay where they are, in {directory_of(found.topic, topic_id)}, without "
            "an entry: delete or rename the other topic and recover again"
        )
    return NewTopic(
        name=name,
        record=msgspec.structs.replace(
            entry, id=topic_id, deleting=False, schema_subject=None, validates_payloads=False
        ),
        journal_first=held[0],
        journal_end=held[1],
        epoch=epoch,
        from_segments=attached,
        note="; ".join(notes),
    )


def plan_subscriptions(situation: Situation, topics: list[NewTopic]) -> list[NewSubscription]:
    """Return the subscriptions to enter; their progress is in the journal already."""
    name_of = {topic_id: name for name, topic_id in situation.names.items()}
    name_of |= {each.record.id: each.name for each in topics}
    planned = []
    for one in situation.missing_subscriptions:
        topic = name_of.get(one.topic_id)
        if topic is None or (topic, one.name) in situation.subscriptions:
            continue
        record = msgspec.json.decode(one.record, type=SubscriptionRecord)
        planned.append(NewSubscription(topic=topic, name=one.name, record=record))
    return planned


def namespaces_of(topics: list[NewTopic]) -> list[str]:
    """Return the namespaces that these topics need."""
    return sorted({namespace_of(each.name) for each in topics})


def highest_ids(
    situation: Situation, topics: list[NewTopic], given: tuple[TopicId, SubscriptionId]
) -> tuple[TopicId, SubscriptionId]:
    """Return the highest ids that anything ever had."""
    topic_ids = [each.record.id for each in topics]
    topic_ids += [each.topic_id for each in situation.directories]
    subscription_ids = [each.id for each in situation.missing_subscriptions]
    return (
        TopicId(max([given[0], *topic_ids])),
        SubscriptionId(max([given[1], *subscription_ids])),
    )
