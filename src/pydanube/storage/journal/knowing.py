"""Notes in the journal what the metadata know, before the journal holds anything of it."""

from collections.abc import Callable
from contextlib import suppress

from pydanube.errors import DanubeError
from pydanube.model.ids import SubscriptionId, TopicId
from pydanube.storage.journal.known import (
    Known,
    KnownSubscription,
    KnownTopic,
    Note,
    encode_note,
)
from pydanube.storage.journal.records import Kind
from pydanube.storage.journal.writer import Entry, JournalWriter

_RESERVE_BYTES = 16 * 1024 * 1024
"""Notes are few and small, and publishes that are refused must not hold them up."""


class Knowing:
    """Writes notes. None is waited for: one lies in the journal before what it is about does.

    A note that is refused, because the journal has stopped, is refused with all that would follow.
    """

    def __init__(self, known: Known, writer: JournalWriter) -> None:
        self._known = known
        self._writer = writer
        self.is_on = False

    def follow(self, revision: Callable[[], int]) -> None:
        """Begin to note; `revision` tells how far the metadata are, whenever it is asked."""
        self._known.reached = revision
        self.is_on = True
        self._note(Note(revision=revision()))

    def topic(self, topic_id: TopicId, name: str, record: bytes) -> None:
        """Note a topic that is served from now on, unless the journal has it as it is."""
        known = self._known.topics.get(topic_id)
        if known is None or (known.name, known.record) != (name, record):
            revision = self._known.reached()
            topic = KnownTopic(topic_id, revision, name, record)
            self._note(Note(revision=revision, topics=(topic,)))

    def subscription(
        self, subscription_id: SubscriptionId, topic_id: TopicId, name: str, record: bytes
    ) -> None:
        """Note a subscription of such a topic, unless the journal has it as it is."""
        known = self._known.subscriptions.get(subscription_id)
        if known is None or (known.name, known.record) != (name, record):
            revision = self._known.reached()
            one = KnownSubscription(subscription_id, topic_id, revision, name, record)
            self._note(Note(revision=revision, subscriptions=(one,)))

    def topic_gone(self, topic_id: TopicId) -> None:
        """Note that a topic was deleted; the metadata have said so before."""
        if topic_id in self._known.topics:
            self._note(Note(gone_topics=(topic_id,)))

    def subscription_gone(self, subscription_id: SubscriptionId) -> None:
        """Note that a subscription was deleted, or is kept by another broker now."""
        if subscription_id in self._known.subscriptions:
            self._note(Note(gone_subscriptions=(subscription_id,)))

    def _note(self, note: Note) -> None:
        if not self.is_on:
            return
        self._known.add(note)
        with suppress(DanubeError):
            entry = Entry(Kind.KNOWN, (encode_note(note),), durability="fsync")
            self._writer.queue(entry, reserve_bytes=_RESERVE_BYTES)
