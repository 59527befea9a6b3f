"""The door to the topics of this broker: creating, finding and deleting them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct

from pydanube.errors import (
    AlreadyExists,
    Conflict,
    DanubeError,
    InvalidRequest,
    NotFound,
    Unavailable,
    WrongBroker,
)
from pydanube.model.ids import TopicId
from pydanube.model.names import (
    check_namespace_name,
    check_topic_name,
    is_topic_name,
    namespace_of,
    partition_name,
    split_partition,
)
from pydanube.model.policies import (
    REPLICAS_MAX,
    WINDOW_DEFAULT,
    DispatchStrategy,
    Durability,
    Policies,
    Retention,
)
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope
from pydanube.storage.storage import Storage
from pydanube.storage.topic_log import Guard
from pydanube.subscriptions.dead_letter import DeadLetterSink
from pydanube.topics.catalog import Catalog, TopicRecord
from pydanube.topics.errors import TopicExists
from pydanube.topics.inspection import InspectionContext
from pydanube.topics.placement import Placement
from pydanube.topics.topic import Topic, TopicContext, TopicObserver

PARTITIONS_MAX = 1_000
_BINDING_ATTEMPTS_MAX = 100
_ALWAYS_THERE = ("default", "system")

_log = get_logger(__name__)


class TopicSettings(Struct, frozen=True, kw_only=True):
    """What the broker's configuration says about topics."""

    auto_create: bool = True
    window: int = WINDOW_DEFAULT
    policies: Policies = Policies()
    bootstrap_namespaces: tuple[str, ...] = ("default",)
    broker_url: str = ""
    replicas_max: int = REPLICAS_MAX
    """1 where segments lie on the broker's own disk."""


class TopicRequest(Struct, frozen=True, kw_only=True):
    """What a topic to be created shall be."""

    strategy: DispatchStrategy
    schema_subject: str | None = None
    durability: Durability = "fsync"


class TopicManager:
    """Keeps the population of topics that are served here.

    A broker alone serves every topic of the catalogue; in a cluster `placement` says which.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        storage: Storage,
        clock: Clock,
        tasks: TaskScope,
        settings: TopicSettings,
        dead_letters: DeadLetterSink,
        observe: Callable[[str], TopicObserver],
        inspection: InspectionContext,
    ) -> None:
        self.placement: Placement | None = None
        """Where topics are, in a cluster; set before anything is served."""
        self.catalog = catalog
        self.storage = storage
        self.settings = settings
        self._clock = clock
        self._tasks = tasks
        self._dead_letters = dead_letters
        self._observe = observe
        self._inspection = inspection
        self._topics: dict[str, Topic] = {}
        self._creating: dict[str, asyncio.Future[None]] = {}
        self._partitions: dict[str, set[int]] = {}
        """The partitions of each base, those being created included."""

    # At the start and the end of the broker.

    async def ensure_namespaces(self) -> None:
        """Make sure of the namespaces that are always there."""
        for namespace in dict.fromkeys((*_ALWAYS_THERE, *self.settings.bootstrap_namespaces)):
            if self.catalog.namespace_policies(check_namespace_name(namespace)) is None:
                with suppress(AlreadyExists):  # Another broker has been faster.
                    await self.catalog.create_namespace(namespace, self.settings.policies)

    async def restore(self) -> None:
        """Serve every topic of the catalogue."""
        for name, record in list(self.catalog.topics()):
            if record.deleting:
                await self.delete_stored(name, record)
            else:
                self.load(name, record)

    def load(self, name: str, record: TopicRecord) -> Topic:
        """Serve a topic from now on."""
        return self.admit(self.build(name, record))

    def build(
        self, name: str, record: TopicRecord, epoch: int = 0, guard: Guard | None = None
    ) -> Topic:
        """Return a topic that nobody finds yet; in a cluster, with what its ownership rests on."""
        context = TopicContext(
            clock=self._clock,
            tasks=self._tasks,
            storage=self.storage,
            dead_letters=self._dead_letters,
            broker_url=self.settings.broker_url,
            observer=self._observe(name),
            inspection=self._inspection,
            epoch=epoch,
            guard=guard,
        )
        policies = self.catalog.topic_policies(name, namespace_of(name))
        return Topic(name, record, policies, context)

    def admit(self, topic: Topic) -> Topic:
        """Let a topic be found, and so served."""
        self._topics[topic.name] = topic
        self._note_partition(topic.name)
        return topic

    def _note_partition(self, name: str) -> None:
        split = split_partition(name)
        if split is not None:
            self._partitions.setdefault(split[0], set()).add(split[1])

    def _forget_partition(self, name: str) -> None:
        split = split_partition(name)
        if split is not None and name not in self._topics:
            self._partitions[split[0]].discard(split[1])

    def release(self, topic: Topic) -> None:
        """Serve a topic no more; it has been closed."""
        if self._topics.get(topic.name) is topic:
            del self._topics[topic.name]
            self._forget_partition(topic.name)

    def drain(self) -> None:
        """Let every topic refuse new messages."""
        for topic in self._topics.values():
            topic.drain()

    def close(self) -> None:
        """End every stream in the way that makes clients come back."""
        for topic in self._topics.values():
            topic.close(Unavailable("the broker is stopping; connect again"))

    # Finding topics.

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._topics.values()))

    def __len__(self) -> int:
        return len(self._topics)

    def find(self, name: str) -> Topic | None:
        """Return the topic of exactly that name."""
        return self._topics.get(name)

    def get(self, name: str) -> Topic:
        """Return the topic of that name; NotFound, or InvalidRequest for what is no name."""
        topic = self._topics.get(name)
        if topic is None:
            check_topic_name(name)
            raise self.absence(name) or NotFound(f"topic {name} does not exist on this broker")
        return topic

    def absence(self, name: str) -> DanubeError | None:
        """Return why a topic that another broker may serve is not here; None if there is none."""
        if self.placement is None or not is_topic_name(name):
            return None
        return self.placement.absence(name)

    def partitions(self, name: str) -> list[str]:
        """Return the topic itself, or the partitions of that base in order, or nothing."""
        if name in self._topics:
            return [name]
        check_topic_name(name)
        if self.placement is not None:
            return [name] if self.catalog.topic(name) else self.placement.partitions(name)
        indexes = sorted(self._partitions.get(name, ()))
        names = (partition_name(name, index) for index in indexes)
        return [each for each in names if each in self._topics]

    def known(self) -> Iterator[tuple[str, TopicRecord]]:
        """Return name and record of every topic there is, whichever broker serves it."""
        if self.placement is None:
            return ((topic.name, topic.record) for topic in self)
        return ((name, record) for name, record in self.catalog.topics() if not record.deleting)

    def in_namespace(self, namespace: str) -> list[Topic]:
        """Return a namespace's topics, sorted by name."""
        names = sorted(name for name in self._topics if namespace_of(name) == namespace)
        return [self._topics[name] for name in names]

    # Creating and deleting topics.

    async def ensure(self, name: str, request: TopicRequest | None) -> Topic:
        """Return the topic, created as requested if it is missing and the settings allow it."""
        while True:
            topic = self._topics.get(name)
            if topic is not None:
                return topic
            check_topic_name(name)
            absence = self.absence(name)
            if absence is not None:
                raise absence
            if not self.settings.auto_create:
                raise NotFound(
                    f"topic {name} does not exist, and auto_create_topics is off; create it first"
                )
            if request is None:
                raise InvalidRequest(f"topic {name} cannot be created: unknown dispatch strategy")
            try:
                return await self.create(name, request)
            except TopicExists:
                if not self._is_taken(name):
                    raise  # Another topic's name excludes this one.

    async def create(self, name: str, request: TopicRequest) -> Topic:
        """Create a topic; TopicExists if it, or one whose name excludes it, is there."""
        check_topic_name(name)
        earlier = self._creating.get(name)
        if earlier is not None:
            await asyncio.shield(earlier)
        self._check_free(name)
        creating = asyncio.get_running_loop().create_future()
        self._creating[name] = creating
        self._note_partition(name)
        try:
            record = TopicRecord(
                id=TopicId(await self.catalog.topic_ids.take()),
                strategy=request.strategy,
                durability=request.durability,
                schema_subject=request.schema_subject,
                created_ms=self._clock.now_ms(),
            )
            revision = await self._enter_catalog(name, record)
            _log.info("topic created", topic=name, delivery=request.strategy)
            if self.placement is not None:
                return await self.placement.open_new(name, record, revision)
            return self.load(name, record)
        finally:
            del self._creating[name]
            self._forget_partition(name)  # Unless it is there now.
            creating.set_result(None)

    async def _enter_catalog(self, name: str, record: TopicRecord) -> int:
        for _ in range(_BINDING_ATTEMPTS_MAX):
            binding = None
            if record.schema_subject is not None:
                binding = self._inspection.registry.plan_use(record.schema_subject, name, None)
            also = self.placement.plan_new(name, record) if self.placement is not None else ()
            try:
                return await self.catalog.create_topic(
                    name, namespace_of(name), record, binding, also
                )
            except Conflict:
                if self.catalog.topic(name) is not None:
                    raise TopicExists(f"topic {name} exists already") from None
                if binding is None:
                    raise
                # The subject, most likely, has just been changed.
        raise Unavailable(f"topic {name} changed too often meanwhile; try again")

    async def create_partitioned(self, base: str, partitions: int, request: TopicRequest) -> None:
        """Create all partitions of a topic."""
        check_topic_name(base)
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidRequest(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}")
        if split_partition(base):
            raise InvalidRequest(f"{base} is itself named like a partition")
        for index in range(partitions):
            self._check_free(partition_name(base, index))
        for index in range(partitions):
            with suppress(WrongBroker):  # It is there, and another broker serves it.
                await self.create(partition_name(base, index), request)

    def _check_free(self, name: str) -> None:
        if self._is_taken(name):
            raise TopicExists(f"topic {name} exists already")
        split = split_partition(name)
        if split is not None and self._is_taken(split[0]):
            raise TopicExists(f"topic {split[0]} exists and is not partitioned")
        elsewhere = self.placement.partitions(name) if self.placement is not None else ()
        if self._partitions.get(name) or elsewhere:
            raise TopicExists(f"topic {name} exists already, as a partitioned topic")

    def _is_taken(self, name: str) -> bool:
        if name in self._topics or name in self._creating:
            return True
        return self.placement is not None and self.catalog.topic(name) is not None

    def names_to_delete(self, name: str) -> list[str]:
        """Return what deleting `name` deletes: the topic, or all its partitions."""
        check_topic_name(name)
        split = split_partition(name)
        if split is not None and self._is_taken(name):
            raise NotFound(
                f"Cannot delete individual partition {name}; delete {split[0]} to delete them all"
            )
        names = self.partitions(name)
        if not names:
            raise NotFound(f"topic {name} does not exist on this broker")
        return names

    async def delete(self, topic: Topic) -> None:
        """Delete one topic with its messages and subscriptions. Its streams are left to end."""
        topic.drain()
        topic.close(None)
        await self.delete_stored(topic.name, topic.record)
        self.release(topic)
        for subscription in topic.subscriptions.values():
            self.storage.drop_subscription(subscription.id)
        if topic.is_reliable:
            self.storage.drop_topic(topic.record.id)
        _log.info("topic deleted", topic=topic.name)

    async def delete_stored(self, name: str, record: TopicRecord) -> None:
        """Delete a topic's segments and all that the metadata knows of it, in that order."""
        await self.catalog.begin_delete(name, record)
        if record.strategy == "Reliable":
            await self.storage.remove_segments(record.id, name)
        also = self.placement.plan_delete(name) if self.placement is not None else ()
        await self.catalog.delete_topic(name, record.schema_subject, also)

    # Namespaces.

    def namespace_policies(self, namespace: str) -> Policies:
        """Return a namespace's policies."""
        policies = self.catalog.namespace_policies(check_namespace_name(namespace))
        if policies is None:
            raise NotFound(f"namespace {namespace} does not exist")
        return policies

    async def create_namespace(self, namespace: str) -> None:
        """Create a namespace with the broker's policies."""
        await self.catalog.create_namespace(check_namespace_name(namespace), self.settings.policies)

    async def set_namespace_ttl(self, namespace: str, ttl_ms: int | None) -> None:
        """Say how long messages of a namespace's topics may be delivered; applies at once."""
        policies = self.namespace_policies(namespace)
        await self._change_policies(
            namespace, msgspec.structs.replace(policies, message_ttl_ms=ttl_ms)
        )

    async def set_namespace_replicas(self, namespace: str, replicas: int | None) -> None:
        """Say in how many journals the messages of a namespace's topics are."""
        self.check_replicas(replicas or 0)
        policies = self.namespace_policies(namespace)
        await self._change_policies(namespace, msgspec.structs.replace(policies, replicas=replicas))

    def check_replicas(self, replicas: int) -> None:
        """Refuse a number of copies that this broker's storage cannot have."""
        if replicas > self.settings.replicas_max:
            raise InvalidRequest(
                f"replicas {replicas} is beyond {self.settings.replicas_max}"
                + (
                    ": copies need segments that other brokers can read; set storage.mode to "
                    "shared_fs or object_store"
                    if self.settings.replicas_max == 1
                    else ""
                )
            )

    async def set_namespace_retention(self, namespace: str, retention: Retention) -> None:
        """Say how long the history of a namespace's topics stays; applies at once."""
        policies = self.namespace_policies(namespace)
        changed = msgspec.structs.replace(
            policies,
            retention_ms=retention.time_ms,
            retention_bytes=retention.bytes,
            retention_waits_for_subscriptions=retention.waits_for_subscriptions,
        )
        await self._change_policies(namespace, changed)
        self.storage.look_at_retention()

    async def _change_policies(self, namespace: str, policies: Policies) -> None:
        await self.catalog.update_namespace(namespace, policies)
        self.apply_policies(namespace)

    def apply_policies(self, namespace: str) -> None:
        """Let a namespace's topics have the policies that the catalogue holds."""
        for topic in self.in_namespace(namespace):
            topic.policies = self.catalog.topic_policies(topic.name, namespace)

    async def delete_namespace(self, namespace: str) -> None:
        """Delete an empty namespace."""
        if namespace in _ALWAYS_THERE:
            raise Conflict(f"namespace {namespace} belongs to the broker and stays")
        await self.catalog.delete_namespace(check_namespace_name(namespace))
