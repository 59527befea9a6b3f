"""One topic on the broker that serves it: its producers, its subscriptions, its messages."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec import Struct

from pydanube.dispatch.events import DeadLetter, DispatchSettings
from pydanube.dispatch.factory import create_dispatcher
from pydanube.errors import Corruption, DanubeError, InvalidRequest, NotFound, Unavailable
from pydanube.model.batch import Batch
from pydanube.model.ids import Offset, SubscriptionId, stable_producer_id
from pydanube.model.message import Message
from pydanube.model.policies import (
    FailurePolicy,
    Policies,
    Retention,
    SubscriptionType,
    retention_in_force,
)
from pydanube.model.progress import Progress
from pydanube.model.schemas import TopicSchema
from pydanube.model.sequences import Applied, MessageSequence, SequenceRange, sequence_key
from pydanube.model.timing import TIMING_ATTRIBUTES, check_timing
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope
from pydanube.runtime.watermark import Watermark
from pydanube.storage.segments.planning import RetentionRule
from pydanube.storage.storage import Storage
from pydanube.storage.topic_log import Guard, LastBatch, Piece, ProducerStamp, TopicLog
from pydanube.subscriptions.cursor import Cursor
from pydanube.subscriptions.dead_letter import DeadLetterOrigin, DeadLetterSink, dead_letter
from pydanube.subscriptions.subscription import Observer, Subscription, SubscriptionContext
from pydanube.topics.catalog import SubscriptionRecord, TopicRecord
from pydanube.topics.errors import MessageTooLarge
from pydanube.topics.expiry import first_unexpired
from pydanube.topics.gathering import Gatherer, Published
from pydanube.topics.inspection import Inspection, InspectionContext, InspectionObserver
from pydanube.topics.knowing import note_subscription, note_topic
from pydanube.topics.leases import CursorLeases
from pydanube.topics.lifecycle import Step, TopicState, next_state
from pydanube.topics.limits import Throttle
from pydanube.topics.producer import Producer
from pydanube.topics.sequencing import BatchPublished, Sequencer

_log = get_logger(__name__)


class TopicObserver(InspectionObserver, Protocol):
    """Is told what is worth counting."""

    def published(
        self, count: int, payload_bytes: int, latency_ms: float, *, durably: bool
    ) -> None:
        """Count messages that have been accepted together, durably or at best effort."""

    def subscription(self, name: str) -> Observer:
        """Return who counts what happens in a subscription."""


class TopicContext(Struct, frozen=True, kw_only=True):
    """What a topic works with."""

    clock: Clock
    tasks: TaskScope
    storage: Storage
    dead_letters: DeadLetterSink
    broker_url: str
    observer: TopicObserver
    inspection: InspectionContext
    epoch: int = 0
    """Of the ownership, in a cluster."""
    guard: Guard | None = None
    """Asked before anything is acknowledged: whether the topic is still this broker's."""


class Topic:
    """Takes messages in and tells its subscriptions. All of it runs on the event loop.

    A reliable topic answers a publish once the journal has made it as durable as the topic
    promises; a best-effort topic once its subscriptions have been offered the message.
    """

    def __init__(
        self, name: str, record: TopicRecord, policies: Policies, context: TopicContext
    ) -> None:
        self.name = name
        self.record = record
        self.policies = policies
        self.producers: dict[str, Producer] = {}
        self.exclusive_producer: Producer | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.leases = CursorLeases(context.clock)
        self.log: TopicLog | None = None
        self.served_since_ms = context.clock.now_ms()
        """Since when this broker serves it, by the wall clock."""
        self._context = context
        self._state = TopicState.ACTIVE
        self._settings: dict[str, DispatchSettings] = {}
        self._next_offered = 0
        self.frontier = Watermark()
        """The durable end, for whoever waits until it moves; closed with the topic."""
        self._sequencer: Sequencer | None = None
        if record.strategy == "Reliable":
            note_topic(context.storage, name, record)
            self.log = context.storage.topic(
                record.id, name, epoch=context.epoch, retention=self._retention
            )
            self.log.guard = context.guard
            self.frontier.advance_to(self.log.durable_end)
            self._gatherer = Gatherer(self._store)
            self._sequencer = Sequencer(name, self.log, context.clock, self._append)
            self._sequencer.names_idle_ms_max = policies.forget_sequences_after_ms
        else:
            self._gatherer = Gatherer(self._offer)
        self._inspection: Inspection | None = None
        self.set_schema(record.schema)
        rate = policies.max_publish_rate
        self._throttle = Throttle(name, rate, context.clock) if rate is not None else None

    @property
    def is_reliable(self) -> bool:
        """Whether its messages are stored."""
        return self.log is not None

    @property
    def retention(self) -> Retention:
        """How long its history stays."""
        return retention_in_force(self.policies, self.record.retention)

    def _retention(self) -> RetentionRule:
        """Return how long messages stay, and which must stay because somebody has yet to settle."""
        retention = self.retention
        held_from = None
        if retention.waits_for_subscriptions:
            holding = (
                each.cursor
                for each in self.subscriptions.values()
                if self.leases.holds(each.name) or each.active_consumers
            )
            held_from = min(holding, default=None)
        return RetentionRule(
            time_ms=retention.time_ms, bytes_max=retention.bytes, held_from=held_from
        )

    # Publishing.

    def publish(
        self, message: Message, answer: Published, number: MessageSequence | None = None
    ) -> None:
        """Take a message in; `answer` follows, now or later, exactly once.

        A message with a number is stored once, however often it is sent; on best-effort topics,
        which store nothing, the number means nothing.
        """
        refusal = self._refusal(message)
        if refusal is not None:
            answer(None, refusal)
        elif self._throttle is None:
            if number is None and self._inspection is None:
                self._gatherer.add(message, answer)
            else:
                self._take(message, answer, number)
        else:
            self._wait_for_turn(1, answer, partial(self._take, message, answer, number))

    def publish_batch(
        self, batch: Batch, answer: BatchPublished, *, stamp: SequenceRange | None = None
    ) -> None:
        """Take a batch in; `answer` follows, now or later, exactly once.

        A batch with a stamp is stored once, however often it is sent; see `SequenceRange` for
        sending several without waiting for the answers.
        """
        refusal = self._batch_refusal(batch, stamp)
        take = partial(self._take_batch, batch, answer, stamp)
        if refusal is not None:
            answer(None, refusal)
        elif self._throttle is None:
            take()
        else:
            self._wait_for_turn(batch.count, answer, take)

    def _refusal(self, message: Message) -> DanubeError | None:
        size_max = self.policies.max_message_size
        if size_max is not None and len(message.payload) > size_max:
            return self._too_large(len(message.payload), size_max)
        if message.attributes:
            try:
                check_timing(message.attributes)
            except InvalidRequest as error:
                return error
            if self.log is None and not message.attributes.keys().isdisjoint(TIMING_ATTRIBUTES):
                return self._cannot_wait()
        return self.closing()

    def _batch_refusal(self, batch: Batch, stamp: SequenceRange | None) -> DanubeError | None:
        if not batch.count:
            return InvalidRequest("a batch holds at least one message")
        size_max = self.policies.max_message_size
        # No payload is larger than all together, so that most batches need no look inside.
        if size_max is not None and batch.payload_bytes > size_max:
            largest = batch.largest_payload()
            if largest > size_max:
                return self._too_large(largest, size_max)
        try:
            batch.check_timings()
        except InvalidRequest as error:
            return error
        if self.log is None and batch.timings():
            return self._cannot_wait()
        if stamp is not None and self.log is None:
            return InvalidRequest(
                f"topic {self.name} is not reliable, so it cannot tell repeated batches; send "
                "them without sequences, or use a reliable topic"
            )
        return self.closing()

    def _too_large(self, size: int, size_max: int) -> MessageTooLarge:
        return MessageTooLarge(
            f"the payload has {size} bytes; topic {self.name} takes at most {size_max} "
            "(max_message_size)"
        )

    def _cannot_wait(self) -> InvalidRequest:
        return InvalidRequest(
            f"topic {self.name} is not reliable, so its messages can neither wait nor expire; send "
            f"them without {', '.join(TIMING_ATTRIBUTES)}, or use a reliable topic"
        )

    def closing(self) -> DanubeError | None:
        """Return why it takes no more messages, if so."""
        if self._state is TopicState.ACTIVE:
            return None
        return Unavailable(f"topic {self.name} is closing on this broker; look it up again")

    def doubt(self) -> DanubeError | None:
        """Return why the topic may be another broker's by now, None while it surely is not.

        Asked before anything is done that only the owner may do. The log asks for itself, and can
        wait; here everybody is answered at once.
        """
        guard = self._context.guard
        found = guard() if guard is not None else None
        if found == "wait":
            return Unavailable(f"another broker may own topic {self.name} by now; look it up again")
        return found

    def answer_held(self) -> None:
        """Answer what waited until it was certain whose topic this is."""
        if self.log is not None:
            self.log.settle()
        for subscription in self.subscriptions.values():
            subscription.answer_held()

    def _wait_for_turn(
        self, count: int, answer: Published | BatchPublished, take: Callable[[], None]
    ) -> None:
        assert self._throttle is not None

        def take_turn() -> None:
            closing = self.closing()
            if closing is None:
                take()
            else:
                answer(None, closing)

        try:
            self._throttle.add(count, take_turn)
        except DanubeError as error:
            answer(None, error)

    def _take(self, message: Message, answer: Published, number: MessageSequence | None) -> None:
        if self._inspection is None:
            self.pass_message(message, answer, number)
        else:
            self._inspection.add(message, answer, number)

    def _take_batch(
        self, batch: Batch, answer: BatchPublished, stamp: SequenceRange | None
    ) -> None:
        if self._inspection is None:
            self.pass_batch(batch, answer, stamp)
        else:
            self._inspection.add_batch(batch, answer, stamp)

    def pass_message(
        self, message: Message, answer: Published, number: MessageSequence | None
    ) -> None:
        """Store or offer a message that nothing speaks against; see `publish`."""
        if number is None or self._sequencer is None:
            self._gatherer.add(message, answer)
        else:
            self._sequencer.add(message, number, answer)

    def pass_batch(self, batch: Batch, answer: BatchPublished, stamp: SequenceRange | None) -> None:
        """Store or offer a batch that nothing speaks against; see `publish_batch`."""
        self._gatherer.flush()  # What came before it stays before it.
        if self.log is None:
            doubt = self.doubt()
            if doubt is None:
                self._offer_batch(batch)
            answer(Applied(None) if doubt is None else None, doubt)
            return
        if stamp is not None:
            assert self._sequencer is not None
            self._sequencer.append(batch, stamp, answer)
            return
        applied = Applied(self.log.next_offset)
        try:
            self._append(
                batch, None, lambda error: answer(applied if error is None else None, error)
            )
        except DanubeError as error:
            answer(None, error)

    def _store(self, messages: list[Message], answers: list[Published]) -> None:
        assert self.log is not None
        base = self.log.next_offset

        def stored(error: DanubeError | None) -> None:
            for row, answer in enumerate(answers):
                answer(Offset(base + row) if error is None else None, error)

        try:
            self._append(Batch.gather(messages), None, stored)
        except DanubeError as error:
            stored(error)

    def _append(
        self,
        batch: Batch,
        stamp: ProducerStamp | None,
        answer: Callable[[DanubeError | None], None],
    ) -> Offset:
        assert self.log is not None
        log, started = self.log, self._context.clock.monotonic_seconds()

        def stored(error: DanubeError | None) -> None:
            if error is not None:
                answer(error)
                return
            self._count(batch, started)
            answer(None)
            for subscription in self.subscriptions.values():
                subscription.available(log.durable_end)
            self.frontier.advance_to(log.durable_end)

        return log.append(batch, stored, durability=self.record.durability, stamp=stamp)

    def _offer(self, messages: list[Message], answers: list[Published]) -> None:
        doubt = self.doubt()
        if doubt is None:
            self._offer_batch(Batch.gather(messages))
        for answer in answers:
            answer(None, doubt)

    def _offer_batch(self, batch: Batch) -> None:
        base = Offset(self._next_offered)
        self._next_offered += batch.count
        for subscription in self.subscriptions.values():
            subscription.offer(Piece(base, batch, 0, batch.count))
        self._count(batch, self._context.clock.monotonic_seconds())

    def _count(self, batch: Batch, started: float) -> None:
        latency_ms = (self._context.clock.monotonic_seconds() - started) * 1000
        self._context.observer.published(
            batch.count, batch.payload_bytes, latency_ms, durably=self.is_reliable
        )

    async def last_batch(self, producer: str, session: int | None = None) -> LastBatch | None:
        """Return the latest numbered batch of a producer, once it is durable; None if none is."""
        if self.log is None:
            raise InvalidRequest(f"topic {self.name} is not reliable; it remembers no sequences")
        key = sequence_key(producer, session)
        known = self.log.last_batch(key)
        if known is not None:
            durable: asyncio.Future[DanubeError | None] = asyncio.get_running_loop().create_future()
            self.log.when_last_is_durable(key, durable.set_result)
            error = await durable
            if error is not None:
                raise Unavailable(str(error))
        return known

    def forget_idle_producers(self) -> None:
        """Remember no sequences that nobody will continue; to be called now and then."""
        if self._sequencer is not None:
            self._sequencer.forget_idle()

    # Schemas.

    def set_schema(self, schema: TopicSchema | None) -> None:
        """Say what messages have to be from now on; nothing is stored later that is not."""
        rule = None if schema is None or schema.policy == "none" else schema
        if self._inspection is None:
            if rule is None:
                return
            self._inspection = Inspection(
                self.name,
                self._context.inspection,
                self._context.clock,
                self._context.tasks,
                self._context.observer,
                self,
            )
        # What was let in under the earlier rule is stored under it, or has to come again.
        self._gatherer.flush()
        if self._sequencer is not None:
            self._sequencer.flush()
            self._sequencer.close(
                Unavailable(f"the schema of topic {self.name} has changed; send it again")
            )
        self._inspection.rule = rule
        if rule is None and self._inspection.is_idle:
            self._inspection = None

    @property
    def is_inspecting(self) -> bool:
        """Whether something waits for validation, so that it may still be refused."""
        return self._inspection is not None and not self._inspection.is_idle

    # Subscriptions.

    def note_subscription(self, name: str, record: SubscriptionRecord) -> None:
        """Let the journal know a subscription before it holds any progress of it."""
        note_subscription(self._context.storage, self.record.id, name, record)

    def add_subscription(
        self,
        subscription_id: SubscriptionId,
        name: str,
        kind: SubscriptionType,
        progress: Progress,
        settings: DispatchSettings,
        seen_end: Offset,
        life: str | None = None,
    ) -> Subscription:
        """Let a subscription see this topic's messages from its progress on.

        Its consumers may have got messages below `seen_end` before a restart.
        """
        context = self._context
        cursor = None
        if self.log is not None:
            cursor = Cursor(subscription_id, context.storage, context.clock, context.guard)
        else:
            progress = Progress(Offset(self._next_offered))
        observer = context.observer.subscription(name)
        self._apply(name, settings)
        subscription = Subscription(
            subscription_id,
            name,
            kind,
            create_dispatcher(kind, self.is_reliable, progress, settings, seen_end),
            SubscriptionContext(
                topic=self.name,
                clock=context.clock,
                tasks=context.tasks,
                source=self.log,
                cursor=cursor,
                observer=observer,
                store_dead_letter=self._store_dead_letter,
                message_ttl_ms=self.message_ttl_ms,
            ),
            life,
        )
        self.subscriptions[name] = subscription
        return subscription

    def configure_subscription(self, name: str, settings: DispatchSettings) -> None:
        """Apply settings to a subscription, at once."""
        self._apply(name, settings)
        self.subscriptions[name].configure(settings)

    def _apply(self, name: str, settings: DispatchSettings) -> None:
        self._settings[name] = settings
        observer = self._context.observer.subscription(name)
        observer.poison_policy = settings.policy.poison_policy

    def policy_of(self, name: str) -> FailurePolicy:
        """Return the failure policy that is in force for a subscription, set or not."""
        return self._settings[name].policy

    def remove_subscription(self, name: str) -> None:
        """Stop serving a subscription."""
        self.subscriptions.pop(name).close(Unavailable(f"subscription {name} has been deleted"))
        del self._settings[name]
        self.leases.remove(name)

    @property
    def active_consumers(self) -> int:
        """How many consumers can take messages now."""
        return sum(each.active_consumers for each in self.subscriptions.values())

    def live_producers(self, now_ms: int) -> list[Producer]:
        """Return the producers that have been heard of lately."""
        return [producer for producer in self.producers.values() if producer.is_live(now_ms)]

    # Time.

    def message_ttl_ms(self) -> int | None:
        """Return how long messages may be delivered after they were published."""
        own = self.record.message_ttl_ms
        return self.policies.message_ttl_ms if own is None else own or None

    async def pass_time(self) -> None:
        """Settle what has outlived its time, whoever is there; to be called now and then."""
        for name, subscription in self.subscriptions.items():
            subscription.check_clock()
            subscription.look_after(self._settings[name].policy)
        self._tell_lapsed_holds()
        ttl_ms = self.message_ttl_ms()
        if self.log is None or ttl_ms is None:
            return
        limit_ms = self._context.clock.now_ms() - ttl_ms
        reached = Offset(0)
        try:
            for subscription in sorted(self.subscriptions.values(), key=lambda each: each.cursor):
                if subscription.cursor >= reached:
                    reached = await first_unexpired(self.log, subscription.cursor, limit_ms)
                subscription.expire_below(reached)
        except DanubeError as error:
            _log.warning("could not expire messages; trying again", topic=self.name, cause=error)

    def _tell_lapsed_holds(self) -> None:
        for name, lease in self.leases.newly_lapsed():
            _log.warning(
                "the lease of a cursor has ended; it no longer holds history back from retention",
                topic=self.name,
                subscription=name,
                holder=lease.holder,
                ttl_ms=lease.ttl_ms,
            )

    # The end.

    def drain(self) -> None:
        """Take no more messages; those already taken go on to the journal."""
        self._gatherer.flush()
        if self._sequencer is not None:
            self._sequencer.flush()
            self._sequencer.close(
                Unavailable(f"topic {self.name} is closing on this broker; look it up again")
            )
        self._state = next_state(self._state, Step.DRAIN)

    def close(self, error: DanubeError | None) -> None:
        """Serve no more; every stream ends with `error`, or by whoever closes it if None."""
        self._state = next_state(self._state, Step.CLOSE)
        self.frontier.close(error or Unavailable(f"topic {self.name} has been deleted"))
        for subscription in self.subscriptions.values():
            subscription.close(error)

    # Dead letters.

    def _store_dead_letter(self, subscription: Subscription, action: DeadLetter) -> None:
        # Now, for the policy that decided this may be another one in a moment.
        target = self._settings[subscription.name].policy.dead_letter_topic
        assert target is not None, "the policy asks for a dead-letter topic"
        self._context.tasks.start(
            self._send_dead_letter(subscription, action, target), f"dead letter of {self.name}"
        )

    async def _send_dead_letter(
        self, subscription: Subscription, action: DeadLetter, target: str
    ) -> None:
        try:
            message = await self._read_one(action.offset)
            origin = DeadLetterOrigin(
                topic=self.name,
                subscription=subscription.name,
                offset=action.offset,
                producer_id=stable_producer_id(self.name, message.producer_name),
                broker_url=self._context.broker_url,
                attempts=action.attempts,
                reason=action.reason,
            )
            await self._context.dead_letters.store(target, dead_letter(message, origin))
        except DanubeError as error:
            mend = f"danube topics describe {target}"
            if isinstance(error, NotFound):
                mend = f"danube topics create {target} --dispatch-strategy reliable"
            subscription.dead_letter_failed(action.offset, target, str(error), mend)
        else:
            self._context.observer.subscription(subscription.name).observed("dead_letter", 1)
            subscription.dead_letter_stored(action.offset)

    async def _read_one(self, offset: Offset) -> Message:
        assert self.log is not None
        pieces = await self.log.read(offset, Offset(offset + 1))
        if not pieces or pieces[0].start != offset:
            raise Corruption(f"offset {offset} of topic {self.name} holds no message")
        return pieces[0].batch.messages(pieces[0].first_row, pieces[0].end_row)[0]
