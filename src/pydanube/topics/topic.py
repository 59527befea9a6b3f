"""One topic on the broker that serves it: its producers, its subscriptions, its messages."""

from typing import Protocol

from msgspec import Struct

from pydanube.dispatch.events import DeadLetter, DispatchSettings
from pydanube.dispatch.factory import create_dispatcher
from pydanube.errors import Corruption, DanubeError, Unavailable
from pydanube.model.batch import Batch
from pydanube.model.ids import Offset, SubscriptionId, stable_producer_id
from pydanube.model.message import Message
from pydanube.model.policies import Policies, SubscriptionType
from pydanube.model.progress import Progress
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope
from pydanube.storage.storage import Storage
from pydanube.storage.topic_log import Piece, TopicLog
from pydanube.subscriptions.cursor import Cursor
from pydanube.subscriptions.dead_letter import DeadLetterOrigin, DeadLetterSink, dead_letter
from pydanube.subscriptions.subscription import Observer, Subscription, SubscriptionContext
from pydanube.topics.catalog import TopicRecord
from pydanube.topics.errors import MessageTooLarge
from pydanube.topics.gathering import Gatherer, Published
from pydanube.topics.lifecycle import Step, TopicState, next_state
from pydanube.topics.limits import Throttle
from pydanube.topics.producer import Producer

_log = get_logger(__name__)


class TopicObserver(Protocol):
    """Is told what is worth counting."""

    def published(self, count: int, payload_bytes: int, latency_ms: int) -> None:
        """Count messages that have been accepted together."""

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
        self.log: TopicLog | None = None
        self._context = context
        self._state = TopicState.ACTIVE
        self._settings: dict[str, DispatchSettings] = {}
        self._next_offered = 0
        if record.strategy == "Reliable":
            self.log = context.storage.topic(record.id)
            self._gatherer = Gatherer(self._store)
        else:
            self._gatherer = Gatherer(self._offer)
        rate = policies.max_publish_rate
        self._throttle = None
        if rate is not None:
            self._throttle = Throttle(name, rate, context.clock, self._release)

    @property
    def is_reliable(self) -> bool:
        """Whether its messages are stored."""
        return self.log is not None

    # Publishing.

    def publish(self, message: Message, answer: Published) -> None:
        """Take a message in; `answer` follows, now or later, exactly once."""
        refusal = self._refusal(message)
        if refusal is not None:
            answer(None, refusal)
        elif self._throttle is None:
            self._gatherer.add(message, answer)
        else:
            self._throttle.add(message, answer)

    def _refusal(self, message: Message) -> DanubeError | None:
        size_max = self.policies.max_message_size
        if size_max is not None and len(message.payload) > size_max:
            return MessageTooLarge(
                f"the payload has {len(message.payload)} bytes; topic {self.name} takes at most "
                f"{size_max} (max_message_size)"
            )
        if self._state is not TopicState.ACTIVE:
            return Unavailable(f"topic {self.name} is closing on this broker; look it up again")
        return None

    def _release(self, message: Message, answer: Published) -> None:
        if self._state is TopicState.ACTIVE:
            self._gatherer.add(message, answer)
        else:
            answer(None, Unavailable(f"topic {self.name} is closing on this broker"))

    def _store(self, messages: list[Message], answers: list[Published]) -> None:
        assert self.log is not None
        base = self.log.next_offset
        started_ms = self._context.clock.monotonic_ms()

        def stored(error: DanubeError | None) -> None:
            self._stored(Offset(base), messages, answers, started_ms, error)

        try:
            self.log.append(Batch.gather(messages), stored, durability=self.record.durability)
        except DanubeError as error:
            for answer in answers:
                answer(None, error)

    def _stored(
        self,
        base: Offset,
        messages: list[Message],
        answers: list[Published],
        started_ms: int,
        error: DanubeError | None,
    ) -> None:
        if error is not None:
            for answer in answers:
                answer(None, error)
            return
        self._count(messages, started_ms)
        for row, answer in enumerate(answers):
            answer(Offset(base + row), None)
        assert self.log is not None
        for subscription in self.subscriptions.values():
            subscription.available(self.log.durable_end)

    def _offer(self, messages: list[Message], answers: list[Published]) -> None:
        base = Offset(self._next_offered)
        self._next_offered += len(messages)
        batch = Batch.gather(messages)
        for subscription in self.subscriptions.values():
            subscription.offer(Piece(base, batch, 0, batch.count))
        self._count(messages, self._context.clock.monotonic_ms())
        for answer in answers:
            answer(None, None)

    def _count(self, messages: list[Message], started_ms: int) -> None:
        payload_bytes = sum(len(message.payload) for message in messages)
        latency_ms = self._context.clock.monotonic_ms() - started_ms
        self._context.observer.published(len(messages), payload_bytes, latency_ms)

    # Subscriptions.

    def add_subscription(
        self,
        subscription_id: SubscriptionId,
        name: str,
        kind: SubscriptionType,
        progress: Progress,
        settings: DispatchSettings,
        seen_end: Offset,
    ) -> Subscription:
        """Let a subscription see this topic's messages from its progress on.

        Its consumers may have got messages below `seen_end` before a restart.
        """
        context = self._context
        cursor = None
        if self.log is not None:
            cursor = Cursor(subscription_id, context.storage, context.clock)
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
                clock=context.clock,
                tasks=context.tasks,
                source=self.log,
                cursor=cursor,
                observer=observer,
                store_dead_letter=self._store_dead_letter,
            ),
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

    def remove_subscription(self, name: str) -> None:
        """Stop serving a subscription."""
        self.subscriptions.pop(name).close(Unavailable(f"subscription {name} has been deleted"))
        del self._settings[name]

    @property
    def active_consumers(self) -> int:
        """How many consumers can take messages now."""
        return sum(each.active_consumers for each in self.subscriptions.values())

    def live_producers(self, now_ms: int) -> list[Producer]:
        """Return the producers that have been heard of lately."""
        return [producer for producer in self.producers.values() if producer.is_live(now_ms)]

    # The end.

    def drain(self) -> None:
        """Take no more messages; those already taken go on to the journal."""
        self._gatherer.flush()
        self._state = next_state(self._state, Step.DRAIN)

    def close(self, error: DanubeError | None) -> None:
        """Serve no more; every stream ends with `error`, or by whoever closes it if None."""
        self._state = next_state(self._state, Step.CLOSE)
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
            _log.warning(
                "dead letter not stored; it will be tried again",
                topic=self.name,
                subscription=subscription.name,
                offset=action.offset,
                target=target,
                cause=str(error),
            )
            subscription.dead_letter_stored(action.offset, stored=False)
        else:
            self._context.observer.subscription(subscription.name).observed("dead_letter", 1)
            subscription.dead_letter_stored(action.offset, stored=True)

    async def _read_one(self, offset: Offset) -> Message:
        assert self.log is not None
        pieces = await self.log.read(offset, Offset(offset + 1))
        if not pieces or pieces[0].start != offset:
            raise Corruption(f"offset {offset} of topic {self.name} holds no message")
        return pieces[0].batch.messages(pieces[0].first_row, pieces[0].end_row)[0]
