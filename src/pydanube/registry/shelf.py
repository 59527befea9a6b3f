"""Reads and writes the registry's keys. A record is decoded once per change of it."""

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from pydanube.metadata import keys
from pydanube.metadata.store import Delete, Expect, MetadataStore, Operation, Put
from pydanube.registry.errors import SchemaNotFound
from pydanube.registry.records import (
    SubjectIndex,
    SubjectRecord,
    TopicUse,
    VersionRecord,
    encode,
)

DECODED_MAX = 1_024

Record = TypeVar("Record", bound=Struct)


class Kept(Struct, Generic[Record], frozen=True):
    """A record, and the revision of the change that wrote it."""

    record: Record
    revision: int


class Transaction(Struct, frozen=True):
    """What must hold, and what is written then."""

    conditions: Sequence[Expect]
    operations: Sequence[Operation]


class Shelf:
    """Finds subjects and versions, and says what to write. Only `apply` writes."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._decoded: dict[str, Kept[SubjectRecord]] = {}

    # Reading.

    def subject(self, subject: str) -> Kept[SubjectRecord] | None:
        """Return a subject as it is now."""
        entry = self._store.get(keys.subject(subject))
        if entry is None:
            self._decoded.pop(subject, None)
            return None
        known = self._decoded.pop(subject, None)
        if known is None or known.revision != entry.revision:
            record = msgspec.json.decode(entry.value, type=SubjectRecord)
            known = Kept(record, entry.revision)
        self._decoded[subject] = known  # Last: it was used last.
        if len(self._decoded) > DECODED_MAX:
            self._decoded.pop(next(iter(self._decoded)))
        return known

    def require(self, subject: str) -> Kept[SubjectRecord]:
        """Return a subject; SchemaNotFound if there is none."""
        kept = self.subject(subject)
        if kept is None:
            raise SchemaNotFound(f"schema subject {subject[:256]} not found; register it first")
        return kept

    def subject_of(self, schema_id: int) -> str | None:
        """Return which subject has an id."""
        entry = self._store.get(keys.schema_id(schema_id))
        return (
            None if entry is None else msgspec.json.decode(entry.value, type=SubjectIndex).subject
        )

    def subjects(self) -> list[SubjectRecord]:
        """Return all subjects in the order of their ids."""
        names = (
            msgspec.json.decode(entry.value, type=SubjectIndex).subject
            for entry in self._store.list(keys.SCHEMA_INDEX)
        )
        found = (self._store.get(keys.subject(name)) for name in names)
        return [
            msgspec.json.decode(entry.value, type=SubjectRecord)
            for entry in found
            if entry is not None
        ]

    def count(self) -> int:
        """Return how many subjects there are."""
        return len(self._store.list(keys.SCHEMA_INDEX))

    def version(self, subject: str, version: int) -> VersionRecord | None:
        """Return one version of a subject."""
        entry = self._store.get(keys.subject_version(subject, version))
        return None if entry is None else msgspec.json.decode(entry.value, type=VersionRecord)

    def uses(self, subject: str) -> Mapping[str, TopicUse]:
        """Return the topics that are bound to a subject."""
        prefix = keys.subject_topics(subject)
        found: dict[str, TopicUse] = {}
        for entry in self._store.list(prefix):
            topic = keys.name_directly_below(prefix, entry.key)
            if topic is not None:
                found[topic] = msgspec.json.decode(entry.value, type=TopicUse)
        return found

    # Writing.

    async def apply(self, transaction: Transaction) -> None:
        """Write all of it or nothing; Conflict if something has changed meanwhile."""
        await self._store.transact(transaction.conditions, transaction.operations)

    async def next_id(self) -> int:
        """Return an id that no subject has had."""
        return await self._store.next_id(keys.SCHEMA_ID_COUNTER)

    def plan_creation(self, record: SubjectRecord, first: VersionRecord) -> Transaction:
        """Enter a subject with its first version."""
        key = keys.subject(record.subject)
        index = SubjectIndex(subject=record.subject)
        return Transaction(
            [Expect(key, 0)],
            [
                Put(key, encode(record)),
                Put(keys.schema_id(record.id), encode(index)),
                Put(keys.subject_version(record.subject, first.version), encode(first)),
            ],
        )

    def plan_change(
        self,
        kept: Kept[SubjectRecord],
        changed: SubjectRecord,
        *,
        added: VersionRecord | None = None,
        removed: int | None = None,
    ) -> Transaction:
        """Change a subject, unless somebody else has."""
        key = keys.subject(changed.subject)
        operations: list[Operation] = [Put(key, encode(changed))]
        if added is not None:
            operations.append(
                Put(keys.subject_version(changed.subject, added.version), encode(added))
            )
        if removed is not None:
            operations.append(Delete(keys.subject_version(changed.subject, removed)))
        return Transaction([Expect(key, kept.revision)], operations)

    def plan_removal(self, kept: Kept[SubjectRecord]) -> Transaction:
        """Remove a subject with all its versions."""
        record = kept.record
        key = keys.subject(record.subject)
        versions = [
            Delete(keys.subject_version(record.subject, each.version)) for each in record.versions
        ]
        return Transaction(
            [Expect(key, kept.revision)],
            [Delete(key), Delete(keys.schema_id(record.id)), *versions],
        )

    def plan_use(self, subject: str, topic: str, version: int | None) -> Transaction | None:
        """Note that a topic is bound to a subject, and that its producers name a version.

        The subject is written too, unchanged: whoever deletes it at the same time must notice.
        None if all that is known already.
        """
        key, topic_key = keys.subject(subject), keys.subject_topic(subject, topic)
        entry, known = self._store.get(key), self._store.get(topic_key)
        use = TopicUse() if known is None else msgspec.json.decode(known.value, type=TopicUse)
        if known is not None and (version is None or version in use.versions):
            return None
        if version is not None:
            use = TopicUse(versions=tuple(sorted({*use.versions, version})))
        operations: list[Operation] = [Put(topic_key, encode(use))]
        if entry is not None:
            operations.append(Put(key, entry.value))
        conditions = [
            Expect(key, 0 if entry is None else entry.revision),
            Expect(topic_key, 0 if known is None else known.revision),
        ]
        return Transaction(conditions, operations)


def plan_release(subject: str, topic: str) -> Operation:
    """Note that a topic is not bound to a subject any more."""
    return Delete(keys.subject_topic(subject, topic))
