"""Producers and consumers: who they are, what they may, and whether they are still wanted.

Their ids are derived from their names and kept in the catalogue, so that after a restart every
client goes on under the id it has.
"""

import asyncio

from msgspec import Struct, structs

from pydanube.dispatch.events import DispatchSettings
from pydanube.errors import (
    AlreadyExists,
    Conflict,
    DanubeError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from pydanube.model.ids import (
    ConsumerId,
    Offset,
    ProducerId,
    stable_consumer_id,
    stable_producer_id,
)
from pydanube.model.names import NAME_CHARACTERS_MAX, check_client_name, check_topic_name
from pydanube.model.policies import (
    DispatchConfig,
    DispatchStrategy,
    OwnRetention,
    SubscriptionType,
)
from pydanube.model.progress import Progress
from pydanube.model.schemas import SchemaReference
from pydanube.registry.registry import ResolvedSchema, SchemaRegistry
from pydanube.runtime.clock import Clock
from pydanube.storage.topic_log import TopicLog
from pydanube.subscriptions.consumer import Consumer
from pydanube.subscriptions.outbox import OUTBOX_MESSAGES_MAX
from pydanube.subscriptions.subscription import Subscription
from pydanube.topics.admission import (
    check_access,
    check_filters,
    check_room,
    check_served,
    check_strategy,
)
from pydanube.topics.catalog import AccessMode, ConsumerRecord, ProducerRecord, SubscriptionRecord
from pydanube.topics.errors import NotAddressed, TooManyProducers
from pydanube.topics.failure_policies import FailurePolicies
from pydanube.topics.leases import Lease
from pydanube.topics.manager import TopicManager, TopicRequest
from pydanube.topics.named_locks import NamedLocks
from pydanube.topics.positions import start_offset
from pydanube.topics.producer import Producer
from pydanube.topics.properties import with_property
from pydanube.topics.topic import Topic
from pydanube.topics.topic_schemas import TopicSchemas

CLOSE_WAIT_SECONDS = 6.0
"""Clients ask for their health every 5 s; a stream to be closed waits that long for the answer."""
FORGET_AFTER_MS = 24 * 3600 * 1000
"""A client that has not been heard of for a day is forgotten; it can register anew."""
IDLE_SUBSCRIPTION_MS = 60_000
_TOLD_MAX = 10_000


class RegisteredProducer(Struct, frozen=True):
    """A producer and its topic."""

    topic: Topic
    producer: Producer


class RegisteredConsumer(Struct, frozen=True):
    """A consumer and where it belongs."""

    topic: Topic
    subscription: Subscription
    consumer: Consumer


class Registration:
    """Lets producers and consumers in, finds them by id, and lets them go."""

    def __init__(self, topics: TopicManager, registry: SchemaRegistry, clock: Clock) -> None:
        self._topics = topics
        self._catalog = topics.catalog
        self._clock = clock
        self._producers: dict[ProducerId, RegisteredProducer] = {}
        self._consumers: dict[ConsumerId, RegisteredConsumer] = {}
        self._closing: dict[ConsumerId, Consumer] = {}
        self._told_closed: dict[int, None] = {}
        self._windows: dict[tuple[str, str], int] = {}
        """What consumers have asked for, by topic and subscription."""
        self._locks = NamedLocks()
        self.schemas = TopicSchemas(topics, registry, self._locks.hold)
        self.failure_policies = FailurePolicies(
            topics.catalog, self._locks.hold, self._reliable, self._apply_settings
        )

    # At the start.

    def restore(self) -> None:
        """Know every producer, subscription and consumer of the catalogue again."""
        for topic in self._topics:
            self.restore_topic(topic)

    def restore_topic(self, topic: Topic) -> None:
        """Know everybody again whom the catalogue has for one topic."""
        for name, producer in self._catalog.producers(topic.name):
            self._add_producer(topic, name, producer)
        for name, subscription in self._catalog.subscriptions(topic.name):
            self._restore_subscription(topic, name, subscription)

    def _restore_subscription(self, topic: Topic, name: str, record: SubscriptionRecord) -> None:
        seen_end = topic.log.durable_end if topic.log is not None else Offset(0)
        subscription = self._add_subscription(topic, name, record, seen_end)
        if record.lease is not None:
            topic.leases.restore(name, record.lease)
        subscription.idle_since_ms = self._clock.monotonic_ms()
        for consumer_name, known in self._catalog.consumers(topic.name, name):
            consumer = Consumer(known.id, consumer_name, known.filters)
            subscription.restore(consumer)
            self._consumers[consumer.id] = RegisteredConsumer(topic, subscription, consumer)

    # Producers.

    def sender(self, producer_id: int, topic_name: str) -> Topic:
        """Return the topic a producer may publish to now.

        An unknown id is Unavailable, since that makes every client register anew; a producer of
        another topic, or one that lost the topic to an exclusive one, must not try again.
        """
        registered = self._producers.get(ProducerId(producer_id))
        if registered is None:
            raise Unavailable(f"producer id {producer_id} is not known here; create it again")
        topic, producer = registered.topic, registered.producer
        if topic_name and topic_name != topic.name:
            raise InvalidRequest(
                f"producer {producer.name} belongs to {topic.name}, not {topic_name}"
            )
        now_ms = self._clock.monotonic_ms()
        holder = topic.exclusive_producer
        if holder is not None and holder is not producer and holder.is_live(now_ms):
            raise InvalidRequest(
                f"producer {holder.name} has exclusive access to topic {topic.name}"
            )
        producer.seen_ms = now_ms
        return topic

    async def create_producer(
        self,
        topic_name: str,
        name: str,
        strategy: DispatchStrategy | None,
        access_mode: AccessMode,
        schema: SchemaReference | None,
    ) -> Producer:
        """Let a producer in, under the id its name has on the topic.

        The first one with a schema binds the topic to its subject.
        """
        check_topic_name(topic_name)
        check_client_name("producer", name)
        existing = self._topics.find(topic_name)
        if existing is not None:
            check_strategy(existing, strategy)
        # Before the topic is created: there shall be none for a refusal.
        resolved = self.schemas.resolve(schema, existing) if schema is not None else None
        request = None
        if strategy is not None:
            subject = resolved.subject if resolved is not None else None
            request = TopicRequest(strategy=strategy, schema_subject=subject)
        topic = await self._topics.ensure(topic_name, request)
        check_strategy(topic, strategy)
        async with self._locks.hold(topic_name):
            if self._topics.find(topic_name) is not topic:
                raise Unavailable(f"topic {topic_name} has just been deleted; try again")
            return await self._register_producer(topic, name, access_mode, resolved)

    async def _register_producer(
        self, topic: Topic, name: str, access_mode: AccessMode, schema: ResolvedSchema | None
    ) -> Producer:
        now_ms = self._clock.monotonic_ms()
        known = topic.producers.get(name)
        others = [each for each in topic.live_producers(now_ms) if each is not known]
        check_access(topic, access_mode, others)
        if known is None:
            limit = topic.policies.max_producers_per_topic
            if limit is not None and len(others) >= limit:
                raise TooManyProducers(
                    f"topic {topic.name} has {len(others)} producers; max_producers_per_topic "
                    f"is {limit}"
                )
        if schema is not None:
            await self.schemas.attach(topic, schema)
        await self._leave_exclusive_producer(topic, name)
        if known is None or known.access_mode != access_mode:
            record = ProducerRecord(
                id=known.id if known else self._free_producer_id(topic.name, name),
                access_mode=access_mode,
            )
            await self._catalog.put_producer(topic.name, name, record)
            check_served(topic, self._topics.find(topic.name))
            known = self._add_producer(topic, name, record)
        known.seen_ms = self._clock.monotonic_ms()
        self._told_closed.pop(known.id, None)
        return known

    async def _leave_exclusive_producer(self, topic: Topic, name: str) -> None:
        # Whoever had the topic alone is gone, or the newcomer would not have been let in. Should
        # it come back, it must ask anew: it was promised to be alone, and is not any more.
        holder = topic.exclusive_producer
        if holder is not None and holder.name != name:
            await self._forget_producer(topic, holder)

    async def _forget_producer(self, topic: Topic, producer: Producer) -> None:
        # At once, before it can be heard of again; a record left by a crash does no harm.
        topic.producers.pop(producer.name, None)
        self._producers.pop(producer.id, None)
        if topic.exclusive_producer is producer:
            topic.exclusive_producer = None
        await self._catalog.delete_producer(topic.name, producer.name)

    def _free_producer_id(self, topic: str, name: str) -> ProducerId:
        salt = 0
        while (producer_id := stable_producer_id(topic, name, salt)) in self._producers:
            salt += 1
        return producer_id

    def _add_producer(self, topic: Topic, name: str, record: ProducerRecord) -> Producer:
        producer = Producer(record.id, name, record.access_mode, self._clock.monotonic_ms())
        topic.producers[name] = producer
        holder = topic.exclusive_producer
        if record.access_mode == "Exclusive":
            topic.exclusive_producer = producer
        elif holder is not None and holder.name == name:
            topic.exclusive_producer = None
        self._producers[record.id] = RegisteredProducer(topic, producer)
        return producer

    # Consumers.

    def consumer(self, consumer_id: int) -> RegisteredConsumer:
        """Return the consumer of an id."""
        registered = self._consumers.get(ConsumerId(consumer_id))
        if registered is None:
            raise NotFound(f"consumer id {consumer_id} is not known here; subscribe again")
        return registered

    def addressed(self, topic_name: str, subscription_name: str) -> tuple[Topic, Subscription]:
        """Return what an ack or nack is addressed to; a topic that moved is looked up again."""
        topic = self._topics.find(topic_name)
        if topic is None and (absence := self._topics.absence(topic_name)) is not None:
            raise absence
        subscription = topic.subscriptions.get(subscription_name) if topic else None
        if topic is None or subscription is None:
            shown = topic_name[:NAME_CHARACTERS_MAX]
            name = subscription_name[:NAME_CHARACTERS_MAX]
            raise NotAddressed(f"topic {shown} with subscription {name} is not on this broker")
        return topic, subscription

    async def subscribe(
        self,
        topic_name: str,
        subscription_name: str,
        consumer_name: str,
        kind: SubscriptionType,
        filters: tuple[str, ...],
        peer: str,
        start: str | None = None,
        *,
        credit: int = OUTBOX_MESSAGES_MAX,
        window: int | None = None,
    ) -> Consumer:
        """Let a consumer in, or let it take over its own name, under the id the name has.

        It is handed `credit` messages before it asks for more. With a `window` the subscription
        may have so many unacked from now on, unless a dispatch configuration was set for it.
        """
        topic = self._topics.get(topic_name)
        check_client_name("subscription", subscription_name)
        check_client_name("consumer", consumer_name)
        check_filters(filters)
        async with self._locks.hold(topic_name):
            if self._topics.find(topic_name) is not topic:
                raise NotFound(f"topic {topic_name} has just been deleted")
            subscription = topic.subscriptions.get(subscription_name)
            known = _consumer_named(subscription, consumer_name) if subscription else None
            check_room(topic, subscription, subscription_name, known)
            if subscription is None:
                begin = Offset(0) if topic.log is None else await start_offset(topic.log, start)
                subscription = await self._create_subscription(
                    topic, subscription_name, kind, begin
                )
            subscription.check_admits(consumer_name)
            if known is None:
                await self._leave_exclusive(topic, subscription)
                known = await self._create_consumer(topic, subscription, consumer_name, filters)
            self._forget_earlier_end(known.id)
            self._widen(topic, subscription, window)
            known.credit = credit
            subscription.join(known, peer)
            return known

    async def _create_subscription(
        self,
        topic: Topic,
        name: str,
        kind: SubscriptionType,
        start: int,
        lease: Lease | None = None,
    ) -> Subscription:
        record = await self._catalog.new_subscription(kind, start, lease, self._clock.now_ms())
        await self._catalog.put_subscription(topic.name, name, record)
        check_served(topic, self._topics.find(topic.name))
        return self._add_subscription(topic, name, record, Offset(0))

    def _add_subscription(
        self, topic: Topic, name: str, record: SubscriptionRecord, seen_end: Offset
    ) -> Subscription:
        progress = Progress(Offset(record.start))
        if topic.is_reliable:
            storage = self._topics.storage
            topic.note_subscription(name, record)
            recovered = storage.progress(record.id)
            if recovered is None:
                # The record in the catalogue is durable, so this one may follow when it likes.
                storage.create_progress(record.id, progress.cursor, lambda error: None)
            progress = recovered or progress
        settings = self.dispatch_settings(topic, name)
        return topic.add_subscription(
            record.id, name, record.kind, progress, settings, seen_end, record.life
        )

    # Cursors.

    def subscription(self, topic_name: str, name: str) -> tuple[TopicLog, Subscription]:
        """Return a subscription of a reliable topic, and where its messages are."""
        topic = self._reliable(topic_name)
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            raise NotFound(f"topic {topic_name} has no subscription {name}")
        assert topic.log is not None
        return topic.log, subscription

    async def create_cursor(
        self, topic_name: str, name: str, position: Offset, lease: Lease | None = None
    ) -> Subscription:
        """Create a subscription without consumers; AlreadyExists if there is one."""
        self._reliable(topic_name)
        check_client_name("subscription", name)
        async with self._locks.hold(topic_name):
            topic = self._reliable(topic_name)
            if name in topic.subscriptions:
                raise AlreadyExists(f"topic {topic_name} has a subscription {name} already")
            check_room(topic, None, name, None)
            created = await self._create_subscription(topic, name, "Exclusive", position, lease)
            if lease is not None:
                topic.leases.begin(name, lease)
            return created

    async def lease_cursor(self, topic_name: str, name: str, lease: Lease) -> Subscription:
        """Give a cursor to its newest holder, durably; earlier ones can advance it no more."""
        self.subscription(topic_name, name)
        async with self._locks.hold(topic_name):
            _, subscription = self.subscription(topic_name, name)
            await self._store_lease(topic_name, name, lease)
            self._topics.get(topic_name).leases.begin(name, lease)
            return subscription

    async def _store_lease(self, topic_name: str, name: str, lease: Lease) -> None:
        record = self._catalog.subscription(topic_name, name)
        assert record is not None, "a subscription is in the catalogue before it is served"
        await self._catalog.put_subscription(topic_name, name, structs.replace(record, lease=lease))

    async def seek(self, topic_name: str, name: str, position: Offset) -> Subscription:
        """Move a subscription; returns once that is durable. Its consumers go on from there."""
        self.subscription(topic_name, name)
        async with self._locks.hold(topic_name):
            _, subscription = self.subscription(topic_name, name)
            durable: asyncio.Future[DanubeError | None] = asyncio.get_running_loop().create_future()
            subscription.seek(position, durable.set_result)
            error = await durable
            if error is not None:
                raise error
            return subscription

    async def _leave_exclusive(self, topic: Topic, subscription: Subscription) -> None:
        # Whoever held it is gone, or the newcomer would not have been admitted.
        if subscription.kind == "Exclusive":
            for consumer in subscription.consumers:
                await self._forget_consumer(topic, subscription, consumer)

    async def _create_consumer(
        self, topic: Topic, subscription: Subscription, name: str, filters: tuple[str, ...]
    ) -> Consumer:
        if subscription.kind != "KeyShared":
            filters = ()
        salt = 0
        while (
            consumer_id := stable_consumer_id(topic.name, subscription.name, name, salt)
        ) in self._consumers:
            salt += 1
        record = ConsumerRecord(id=consumer_id, filters=filters)
        await self._catalog.put_consumer(topic.name, subscription.name, name, record)
        check_served(topic, self._topics.find(topic.name))
        consumer = Consumer(consumer_id, name, filters)
        self._consumers[consumer_id] = RegisteredConsumer(topic, subscription, consumer)
        return consumer

    async def _forget_consumer(
        self, topic: Topic, subscription: Subscription, consumer: Consumer
    ) -> None:
        # At once, before it can open a stream; a record left by a crash does no harm.
        subscription.remove(consumer)
        self._consumers.pop(consumer.id, None)
        await self._catalog.delete_consumer(topic.name, subscription.name, consumer.name)

    # Settings of subscriptions.

    def dispatch_settings(self, topic: Topic, subscription: str) -> DispatchSettings:
        """Return what holds for a subscription, whether it exists or not."""
        config = self._catalog.dispatch_config(topic.name, subscription)
        asked = self._windows.get((topic.name, subscription), 0)
        window = max(self._topics.settings.window, asked)
        return DispatchSettings(
            window=config.max_unacked_messages if config else window,
            policy=self.failure_policies.in_force(topic, subscription),
            rate_per_second=topic.policies.max_subscription_dispatch_rate,
        )

    def _widen(self, topic: Topic, subscription: Subscription, window: int | None) -> None:
        key = topic.name, subscription.name
        if window is not None and window > self._windows.get(key, 0):
            self._windows[key] = window
            self._apply_settings(topic, subscription.name)

    async def set_dispatch_config(
        self, topic_name: str, subscription: str, config: DispatchConfig
    ) -> None:
        """Store a dispatch configuration and apply it at once."""
        self._reliable(topic_name)
        check_client_name("subscription", subscription)
        async with self._locks.hold(topic_name):
            topic = self._reliable(topic_name)
            await self._catalog.put_dispatch_config(topic_name, subscription, config)
            self._apply_settings(topic, subscription)

    async def set_message_ttl(self, topic_name: str, ttl_ms: int | None) -> None:
        """Say how long messages of a topic, or of all its partitions, may be delivered.

        0 is for ever; with None the namespace's policy counts. It applies at once.
        """
        names = self._topics.partitions(topic_name)
        if not names:
            raise NotFound(f"topic {topic_name} does not exist on this broker")
        for name in names:
            async with self._locks.hold(name):
                topic = self._reliable(name)
                record = structs.replace(topic.record, message_ttl_ms=ttl_ms)
                await self._catalog.update_topic(name, record)
                topic.record = record

    async def set_replicas(self, topic_name: str, replicas: int | None) -> None:
        """Say in how many journals the messages of a topic, or of all its partitions, are.

        0 is as the broker's configuration says; with None the namespace's policy counts.
        """
        self._topics.check_replicas(replicas or 0)
        for topic in self.reliable_parts(topic_name):
            async with self._locks.hold(topic.name):
                record = structs.replace(self._reliable(topic.name).record, replicas=replicas)
                await self._catalog.update_topic(topic.name, record)
                topic.record = record

    async def set_retention(self, topic_name: str, own: OwnRetention | None) -> None:
        """Say how long the history of a topic, or of all its partitions, stays.

        With None, or a field of it, the namespace's policies count. It applies at once.
        """
        for topic in self.reliable_parts(topic_name):
            async with self._locks.hold(topic.name):
                record = structs.replace(self._reliable(topic.name).record, retention=own)
                await self._catalog.update_topic(topic.name, record)
                topic.record = record
        self._topics.storage.look_at_retention()

    async def set_property(self, topic_name: str, name: str, value: str | None) -> None:
        """Keep a text with a topic, or with all its partitions; None takes it away."""
        for topic in self.reliable_parts(topic_name):
            async with self._locks.hold(topic.name):
                record = self._reliable(topic.name).record
                properties = with_property(record.properties, name, value)
                record = structs.replace(record, properties=properties)
                await self._catalog.update_topic(topic.name, record)
                topic.record = record

    def reliable_parts(self, topic_name: str) -> list[Topic]:
        """Return a reliable topic, or all partitions of one."""
        names = self._topics.partitions(topic_name)
        if not names:
            raise NotFound(f"topic {topic_name} does not exist on this broker")
        return [self._reliable(name) for name in names]

    def _reliable(self, topic_name: str) -> Topic:
        topic = self._topics.get(topic_name)
        if not topic.is_reliable:
            raise Conflict(
                f"topic {topic_name} is not reliable; only reliable topics redeliver and keep "
                "messages"
            )
        return topic

    def _apply_settings(self, topic: Topic, subscription: str) -> None:
        if subscription in topic.subscriptions:
            settings = self.dispatch_settings(topic, subscription)
            topic.configure_subscription(subscription, settings)

    # Health.

    def producer_is_wanted(self, producer_id: int) -> bool:
        """Answer a producer's health check."""
        registered = self._producers.get(ProducerId(producer_id))
        if registered is None:
            return not self._tell_closed_once(producer_id)
        registered.producer.seen_ms = self._clock.monotonic_ms()
        return True

    def consumer_is_wanted(self, consumer_id: int) -> bool:
        """Answer a consumer's health check."""
        closing = self._closing.pop(ConsumerId(consumer_id), None)
        if closing is not None:
            self._tell_closed_once(consumer_id)
            self._clock.call_later(0.1, lambda: _end_stream(closing))
            return False
        registered = self._consumers.get(ConsumerId(consumer_id))
        if registered is None:
            return not self._tell_closed_once(consumer_id)
        return not registered.consumer.take_close()

    def _tell_closed_once(self, client_id: int) -> bool:
        # Telling it twice would make some clients register anew for ever.
        if client_id in self._told_closed:
            return False
        self._told_closed[client_id] = None
        if len(self._told_closed) > _TOLD_MAX:
            self._told_closed.pop(next(iter(self._told_closed)))
        return True

    def _forget_earlier_end(self, consumer_id: ConsumerId) -> None:
        """Let the streams of an earlier topic of the same name end now: their client is back."""
        self._told_closed.pop(consumer_id, None)
        closing = self._closing.pop(consumer_id, None)
        if closing is not None:
            _end_stream(closing)

    # Letting go.

    def retire(self, topic: Topic) -> None:
        """Forget everybody of a topic that is served here no more.

        Streams end once their clients have been told.
        """
        for producer in topic.producers.values():
            self._producers.pop(producer.id, None)
        for subscription in topic.subscriptions.values():
            self._windows.pop((topic.name, subscription.name), None)
            for consumer in subscription.consumers:
                self._consumers.pop(consumer.id, None)
                self._close_later(consumer)

    def _close_later(self, consumer: Consumer) -> None:
        if consumer.stream is None:
            return
        self._closing[consumer.id] = consumer

        def close_untold() -> None:
            if self._closing.pop(consumer.id, None) is not None:
                _end_stream(consumer)

        self._clock.call_later(CLOSE_WAIT_SECONDS, close_untold)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, or all partitions of it, and let everybody there go."""
        for each in self._topics.names_to_delete(name):
            await self.delete_physical(each)

    async def delete_physical(self, name: str) -> None:
        """Delete one topic that is served here, be it a partition, and let everybody there go."""
        async with self._locks.hold(name):
            topic = self._topics.find(name)
            if topic is not None:  # Unless another call has been faster.
                await self._topics.delete(topic)
                self.retire(topic)

    async def close_producer(self, producer_id: int) -> None:
        """Let a producer go that says so itself; an unknown one is gone already."""
        registered = self._producers.get(ProducerId(producer_id))
        if registered is None:
            return
        topic, producer = registered.topic, registered.producer
        async with self._locks.hold(topic.name):
            if topic.producers.get(producer.name) is producer and not producer.streams:
                await self._forget_producer(topic, producer)

    async def close_consumer(self, consumer_id: int, peer: str) -> None:
        """Let a consumer go that says so itself; an unknown one is gone already.

        Whoever has lost its name to another connection speaks for nobody.
        """
        registered = self._consumers.get(ConsumerId(consumer_id))
        if registered is None or registered.consumer.is_superseded(peer):
            return
        async with self._locks.hold(registered.topic.name):
            if self._consumers.get(ConsumerId(consumer_id)) is registered:
                await self._forget_consumer(
                    registered.topic, registered.subscription, registered.consumer
                )

    async def unsubscribe(
        self, topic_name: str, subscription_name: str, leaving: int | None = None
    ) -> None:
        """Delete a subscription nobody uses, or nobody but the consumer that is leaving."""
        self._topics.get(topic_name)
        async with self._locks.hold(topic_name):
            topic = self._topics.get(topic_name)
            subscription = topic.subscriptions.get(subscription_name)
            if subscription is None:
                raise NotFound(f"topic {topic_name} has no subscription {subscription_name}")
            active = sum(
                consumer.active and consumer.id != leaving for consumer in subscription.consumers
            )
            if active:
                raise Conflict(
                    f"subscription {subscription_name} has {active} active consumers; stop them "
                    "first"
                )
            await self._delete_subscription(topic, subscription)

    async def _delete_subscription(self, topic: Topic, subscription: Subscription) -> None:
        await self._catalog.delete_subscription(topic.name, subscription.name)
        for consumer in subscription.consumers:
            self._consumers.pop(consumer.id, None)
        topic.remove_subscription(subscription.name)
        self._windows.pop((topic.name, subscription.name), None)
        self._topics.storage.drop_subscription(subscription.id)

    async def sweep(self) -> None:
        """Forget what nobody has used for long: best-effort subscriptions, names of clients."""
        for topic in self._topics:
            async with self._locks.hold(topic.name):
                if self._topics.find(topic.name) is topic:
                    await self._sweep_topic(topic, self._clock.monotonic_ms())
            # Without the lock: this may read much, and nobody who enters needs to wait for it.
            await topic.pass_time()

    async def _sweep_topic(self, topic: Topic, now_ms: int) -> None:
        topic.forget_idle_producers()
        for name, lease in topic.leases.outdated():
            await self._store_lease(topic.name, name, lease)
            topic.leases.stored(name, lease)
        for subscription in list(topic.subscriptions.values()):
            if not topic.is_reliable and _is_idle(subscription, now_ms):
                await self._delete_subscription(topic, subscription)
        for producer in list(topic.producers.values()):
            if not producer.streams and now_ms - producer.seen_ms > FORGET_AFTER_MS:
                await self._forget_producer(topic, producer)
        for subscription in topic.subscriptions.values():
            for consumer in subscription.consumers:
                gone = now_ms - consumer.inactive_since_ms > FORGET_AFTER_MS
                if not consumer.active and gone:
                    await self._forget_consumer(topic, subscription, consumer)


def _is_idle(subscription: Subscription, now_ms: int) -> bool:
    since_ms = subscription.idle_since_ms
    if since_ms is None or subscription.active_consumers:
        return False
    return now_ms - since_ms > IDLE_SUBSCRIPTION_MS


def _consumer_named(subscription: Subscription, name: str) -> Consumer | None:
    return next((each for each in subscription.consumers if each.name == name), None)


def _end_stream(consumer: Consumer) -> None:
    if consumer.stream is not None:
        consumer.stream.end(Unavailable("the topic is no longer served here; look it up again"))
