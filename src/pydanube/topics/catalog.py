"""What topics, subscriptions, producers and consumers are, as kept in the metadata store."""

from collections.abc import Iterator, Sequence
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from pydanube.errors import AlreadyExists, Conflict, NotFound
from pydanube.metadata import keys
from pydanube.metadata.store import Delete, Expect, MetadataStore, Operation, Put
from pydanube.model.ids import ConsumerId, ProducerId, SubscriptionId, TopicId
from pydanube.model.policies import (
    DispatchConfig,
    DispatchStrategy,
    Durability,
    FailurePolicy,
    OwnRetention,
    Policies,
    SubscriptionType,
)
from pydanube.model.schemas import TopicSchema, ValidationPolicy
from pydanube.registry.shelf import Transaction, plan_release
from pydanube.topics.leases import Lease

AccessMode = Literal["Shared", "Exclusive"]

_OPERATIONS_AT_ONCE = 500
ID_BLOCK = 1_024
"""Ids are given in blocks of so many; a counter counts blocks."""

Record = TypeVar("Record", bound=Struct)


class TopicRecord(Struct, frozen=True, kw_only=True):
    """What a topic is."""

    id: TopicId
    strategy: DispatchStrategy
    durability: Durability = "fsync"
    schema_subject: str | None = None
    validation_policy: ValidationPolicy = "warn"
    validates_payloads: bool = False
    message_ttl_ms: int | None = None
    """In place of the namespace's policy; 0 lets messages live for ever."""
    replicas: int | None = None
    """In place of the namespace's policy; 0 is what the broker's configuration says."""
    retention: OwnRetention | None = None
    properties: dict[str, str] = {}
    """What programs keep with the topic; the broker does not look into them."""
    created_ms: int
    deleting: bool = False
    """Deletion has begun and is finished at the next start if a crash comes between."""

    @property
    def schema(self) -> TopicSchema | None:
        """What it asks of its messages; None if it is bound to no subject."""
        if self.schema_subject is None:
            return None
        return TopicSchema(
            subject=self.schema_subject,
            policy=self.validation_policy,
            validates_payloads=self.validates_payloads,
        )


class FoundTopic(Struct, frozen=True):
    """A topic, as the catalogue has it at some revision."""

    name: str
    record: TopicRecord
    revision: int


class ProducerRecord(Struct, frozen=True, kw_only=True):
    """Who may publish under an id."""

    id: ProducerId
    access_mode: AccessMode = "Shared"


class SubscriptionRecord(Struct, frozen=True, kw_only=True):
    """What a subscription is. How far it has come is in the journal."""

    id: SubscriptionId
    kind: SubscriptionType
    start: int
    """Where it began: the first offset it was to see."""
    lease: Lease | None = None
    """Of a cursor that somebody holds."""
    created_ms: int = 0
    """By the wall clock; 0 in records of earlier releases."""

    @property
    def life(self) -> str:
        """What tells it from whatever else bore its name, or will.

        The id is never given again; the time tells it from those of a broker whose data directory
        was emptied, since that one begins with the same ids.
        """
        return f"{self.id:x}-{self.created_ms:x}"


class ConsumerRecord(Struct, frozen=True, kw_only=True):
    """Who may receive under an id."""

    id: ConsumerId
    filters: tuple[str, ...] = ()


def counter_behind(number: int) -> int:
    """Return where a counter of blocks must be at least, so that an id is not given again."""
    return number // ID_BLOCK


class Ids:
    """Hands out numbers in blocks, so that most of them cost no write to the metadata."""

    def __init__(self, store: MetadataStore, counter_key: str) -> None:
        self._store = store
        self._counter_key = counter_key
        self._next = self._end = 0
        self._given = -1

    def never_again(self, given: int) -> None:
        """Return no number up to this one: journal or segments show that it was given before."""
        self._given = max(self._given, given)

    async def take(self) -> int:
        """Return a number that was never returned before, on any broker."""
        while max(self._next, self._given + 1) >= self._end:
            block = await self._store.next_id(self._counter_key)
            # Whoever else took a block while this one waited has its own.
            self._next, self._end = block * ID_BLOCK, (block + 1) * ID_BLOCK
            if self._end <= self._given:
                await self._store.leap(0, {self._counter_key: counter_behind(self._given)})
        number = max(self._next, self._given + 1)
        self._next = number + 1
        return number


class Catalog:
    """Reads and writes this room's keys."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.topic_ids = Ids(store, keys.TOPIC_ID_COUNTER)
        self.subscription_ids = Ids(store, keys.SUBSCRIPTION_ID_COUNTER)

    async def metadata_have_given(self) -> int:
        """Return a topic id below which the metadata have given all, whoever else saw more."""
        return await Ids(self._store, keys.TOPIC_ID_COUNTER).take()

    # Namespaces.

    def namespaces(self) -> list[str]:
        """Return the names of all namespaces, sorted."""
        entries = self._store.list(keys.NAMESPACES)
        parts = [entry.key.removeprefix(keys.NAMESPACES).split("/") for entry in entries]
        return sorted(name for name, *rest in parts if rest == ["policy"])

    def namespace_policies(self, namespace: str) -> Policies | None:
        """Return a namespace's policies, None if there is no such namespace."""
        return self._read(keys.namespace_policy(namespace), Policies)

    async def create_namespace(self, namespace: str, policies: Policies) -> None:
        """Create a namespace; AlreadyExists if it is there."""
        key = keys.namespace_policy(namespace)
        try:
            await self._store.compare_and_swap(key, 0, _encode(policies))
        except Conflict:
            raise AlreadyExists(f"namespace {namespace} exists already") from None

    async def update_namespace(self, namespace: str, policies: Policies) -> None:
        """Replace a namespace's policies; NotFound if there is no such namespace."""
        entry = self._store.get(keys.namespace_policy(namespace))
        if entry is None:
            raise NotFound(f"namespace {namespace} does not exist")
        await self._store.compare_and_swap(entry.key, entry.revision, _encode(policies))

    async def delete_namespace(self, namespace: str) -> None:
        """Delete an empty namespace."""
        entry = self._store.get(keys.namespace_policy(namespace))
        if entry is None:
            raise NotFound(f"namespace {namespace} does not exist")
        if self._store.list(keys.namespace_topics(namespace)):
            raise Conflict(f"namespace {namespace} still has topics; delete them first")
        await self._store.transact([Expect(entry.key, entry.revision)], [Delete(entry.key)])

    # Topics.

    def topics(self) -> Iterator[tuple[str, TopicRecord]]:
        """Return the name and record of every topic."""
        for found in self.topics_at():
            yield found.name, found.record

    def topics_at(self) -> Iterator[FoundTopic]:
        """Return every topic with the revision of its record."""
        for entry in self._store.list(keys.TOPICS):
            name = entry.key.removeprefix(keys.TOPICS[:-1])
            if name.count("/") == 2:
                record = msgspec.json.decode(entry.value, type=TopicRecord)
                yield FoundTopic(name, record, entry.revision)

    def topic_policies(self, topic: str, namespace: str) -> Policies:
        """Return what holds for a topic: its own policies, else its namespace's."""
        own = self._read(keys.topic_policy(topic), Policies)
        return own or self.namespace_policies(namespace) or Policies()

    def topic(self, topic: str) -> TopicRecord | None:
        """Return a topic's record, wherever it is served."""
        return self._read(keys.topic_record(topic), TopicRecord)

    async def create_topic(
        self,
        topic: str,
        namespace: str,
        record: TopicRecord,
        binding: Transaction | None = None,
        also: Sequence[Operation] = (),
    ) -> int:
        """Create a topic in its namespace, with its binding to a schema subject if it has one.

        Returns the revision. Conflict if namespace or subject is not as it was.
        """
        policy = self._store.get(keys.namespace_policy(namespace))
        if policy is None:
            raise NotFound(f"namespace {namespace} does not exist; create it first")
        key = keys.topic_record(topic)
        conditions = [Expect(key, 0), Expect(policy.key, policy.revision)]
        operations: list[Operation] = [
            Put(key, _encode(record)),
            Put(keys.namespace_topic(topic), b"null"),
            *also,
        ]
        if binding is not None:
            conditions += binding.conditions
            operations += binding.operations
        return await self._store.transact(conditions, operations)

    async def update_topic(self, topic: str, record: TopicRecord) -> None:
        """Replace a topic's record."""
        await self._store.put(keys.topic_record(topic), _encode(record))

    async def bind_topic(
        self, topic: str, record: TopicRecord, binding: Transaction | None, released: str | None
    ) -> None:
        """Replace a topic's record, as `binding` says, and release the subject it had.

        Conflict if the subject is not as it was.
        """
        operations: list[Operation] = [Put(keys.topic_record(topic), _encode(record))]
        if released is not None:
            operations.append(plan_release(released, topic))
        if binding is not None:
            operations += binding.operations
        await self._store.transact(binding.conditions if binding else [], operations)

    async def begin_delete(self, topic: str, record: TopicRecord) -> None:
        """Mark a topic, so that after a crash the next start goes on with deleting it."""
        if not record.deleting:
            await self.update_topic(topic, msgspec.structs.replace(record, deleting=True))

    async def delete_topic(
        self, topic: str, subject: str | None = None, also: Sequence[Operation] = ()
    ) -> None:
        """Delete a topic that is marked, and all below it; a schema subject it had is released."""
        await self._delete_below(keys.topic_parts(topic))
        operations: list[Operation] = [
            Delete(keys.topic_record(topic)),
            Delete(keys.namespace_topic(topic)),
            *also,
        ]
        if subject is not None:
            operations.append(plan_release(subject, topic))
        await self._store.transact([], operations)

    async def _delete_below(self, prefix: str) -> None:
        while entries := self._store.list(prefix)[:_OPERATIONS_AT_ONCE]:
            operations: Sequence[Operation] = [Delete(entry.key) for entry in entries]
            await self._store.transact([], operations)

    # Producers.

    def producers(self, topic: str) -> Iterator[tuple[str, ProducerRecord]]:
        """Return the name and record of every producer of a topic."""
        return self._records(keys.producers(topic), ProducerRecord)

    async def put_producer(self, topic: str, name: str, record: ProducerRecord) -> None:
        """Know a producer."""
        await self._store.put(keys.producer(topic, name), _encode(record))

    async def delete_producer(self, topic: str, name: str) -> None:
        """Forget a producer."""
        await self._store.delete(keys.producer(topic, name))

    # Subscriptions and their consumers.

    def subscriptions(self, topic: str) -> Iterator[tuple[str, SubscriptionRecord]]:
        """Return the name and record of every subscription of a topic."""
        return self._records(keys.subscriptions(topic), SubscriptionRecord)

    def subscription(self, topic: str, name: str) -> SubscriptionRecord | None:
        """Return the record of one subscription."""
        return self._read(keys.subscription(topic, name), SubscriptionRecord)

    async def new_subscription(
        self, kind: SubscriptionType, start: int, lease: Lease | None, created_ms: int
    ) -> SubscriptionRecord:
        """Return the record of a subscription that is to be put, unlike any there has been."""
        return SubscriptionRecord(
            id=SubscriptionId(await self.subscription_ids.take()),
            kind=kind,
            start=start,
            lease=lease,
            created_ms=created_ms,
        )

    async def put_subscription(self, topic: str, name: str, record: SubscriptionRecord) -> None:
        """Know a subscription."""
        await self._store.put(keys.subscription(topic, name), _encode(record))

    async def delete_subscription(self, topic: str, name: str) -> None:
        """Delete a subscription and all below it.

        Its record goes first: should a crash come between, what is left below is a consumer's
        name or a policy, which a later subscription of the same name may find and use.
        """
        await self._store.delete(keys.subscription(topic, name))
        await self._delete_below(keys.subscription_parts(topic, name))

    def consumers(self, topic: str, subscription: str) -> Iterator[tuple[str, ConsumerRecord]]:
        """Return the name and record of every consumer of a subscription."""
        return self._records(keys.consumers(topic, subscription), ConsumerRecord)

    def topics_of_consumers(self) -> dict[ConsumerId, str]:
        """Return the topic of every consumer there is, whichever broker serves it."""
        found = {}
        for entry in self._store.list(keys.TOPICS):
            topic = keys.topic_of_consumer(entry.key)
            if topic is not None:
                found[msgspec.json.decode(entry.value, type=ConsumerRecord).id] = topic
        return found

    async def put_consumer(
        self, topic: str, subscription: str, name: str, record: ConsumerRecord
    ) -> None:
        """Know a consumer."""
        await self._store.put(keys.consumer(topic, subscription, name), _encode(record))

    async def delete_consumer(self, topic: str, subscription: str, name: str) -> None:
        """Forget a consumer."""
        await self._store.delete(keys.consumer(topic, subscription, name))

    def failure_policy(self, topic: str, subscription: str) -> FailurePolicy | None:
        """Return a subscription's failure policy, if one was set."""
        return self._read(keys.subscription_failure_policy(topic, subscription), FailurePolicy)

    async def put_failure_policy(
        self, topic: str, subscription: str, policy: FailurePolicy
    ) -> None:
        """Set a failure policy; the subscription need not exist yet."""
        key = keys.subscription_failure_policy(topic, subscription)
        await self._store.put(key, _encode(policy))

    def dispatch_config(self, topic: str, subscription: str) -> DispatchConfig | None:
        """Return a subscription's dispatch configuration, if one was set."""
        return self._read(keys.subscription_dispatch_config(topic, subscription), DispatchConfig)

    async def put_dispatch_config(
        self, topic: str, subscription: str, config: DispatchConfig
    ) -> None:
        """Set a dispatch configuration; the subscription need not exist yet."""
        key = keys.subscription_dispatch_config(topic, subscription)
        await self._store.put(key, _encode(config))

    def _read(self, key: str, kind: type[Record]) -> Record | None:
        entry = self._store.get(key)
        return msgspec.json.decode(entry.value, type=kind) if entry is not None else None

    def _records(self, prefix: str, kind: type[Record]) -> Iterator[tuple[str, Record]]:
        for entry in self._store.list(prefix):
            name = keys.name_directly_below(prefix, entry.key)
            if name is not None:
                yield name, msgspec.json.decode(entry.value, type=kind)


def _encode(record: Struct) -> bytes:
    return msgspec.json.encode(record)
