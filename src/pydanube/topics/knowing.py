"""Tells the storage what topics and subscriptions are, so that it knows without the metadata."""

import msgspec

from pydanube.model.ids import TopicId
from pydanube.storage.storage import Storage
from pydanube.topics.catalog import SubscriptionRecord, TopicRecord


def note_topic(storage: Storage, name: str, record: TopicRecord) -> None:
    """Note a topic before it takes messages."""
    storage.knowing.topic(record.id, name, msgspec.json.encode(record))


def note_subscription(
    storage: Storage, topic_id: TopicId, name: str, record: SubscriptionRecord
) -> None:
    """Note a subscription, and whose messages its progress is about."""
    storage.belongs(record.id, topic_id)
    if record.lease is not None:
        # Who holds a cursor changes often, and nobody holds one that was recovered.
        record = msgspec.structs.replace(record, lease=None)
    storage.knowing.subscription(record.id, topic_id, name, msgspec.json.encode(record))
