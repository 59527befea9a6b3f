"""The pump of one subscription: feeds its dispatcher and carries out what it decides."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, assert_never

from msgspec import Struct

from pydanube.dispatch.events import (
    Acked,
    Action,
    Available,
    ClockMoved,
    Configured,
    ConsumerJoined,
    ConsumerLeft,
    ConsumerRemoved,
    Count,
    DeadLetter,
    DeadLetterStored,
    Deliver,
    Discard,
    Dispatcher,
    DispatchSettings,
    Drained,
    Event,
    Expired,
    ExpiredBelow,
    KeysRead,
    Nacked,
    Observed,
    Postponed,
    ReadKeys,
    SeekTo,
    Settle,
    Skipped,
    TimePassed,
    Unsent,
)
from pydanube.errors import DanubeError, Unavailable
from pydanube.model.ids import ConsumerId, Offset, SubscriptionId
from pydanube.model.policies import FailurePolicy, SubscriptionType
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock, Timer
from pydanube.runtime.tasks import TaskScope
from pydanube.storage.topic_log import Piece
from pydanube.subscriptions.consumer import Consumer, ConsumerStream
from pydanube.subscriptions.cursor import Cursor, Done
from pydanube.subscriptions.due_times import DueTimes
from pydanube.subscriptions.errors import ConsumerDisplaced, SubscriptionBusy
from pydanube.subscriptions.marks import Marks
from pydanube.subscriptions.outbox import Delivery
from pydanube.subscriptions.troubles import Line, Trouble, Troubles
from pydanube.subscriptions.troubles import Progress as TroublesProgress

STREAM_GRACE_MS = 10_000
"""How long a consumer that subscribed may take to open its stream."""
HOLDER_GRACE_MS = 2_000
"""How long an exclusive subscription waits for its holder to come back."""
TOO_LONG = "the client ended its stream at this message, longer than the 4 MiB it may receive"
"""Why a message failed that a client could not take."""
READ_AGAIN_SECONDS = 1.0
"""How long keys that could not be read are left alone."""

_log = get_logger(__name__)


class MessageSource(Protocol):
    """Where a reliable subscription's messages are read from."""

    @property
    def durable_end(self) -> Offset:
        """The first offset that cannot be read yet."""

    def read_cached(self, start: Offset, end: Offset) -> list[Piece] | None:
        """Return pieces from `start` on if they are near the tail."""

    async def read(self, start: Offset, end: Offset, *, bytes_max: int = ...) -> list[Piece]:
        """Return pieces from `start` on, wherever they are."""


class Observer(Protocol):
    """Is told what is worth counting."""

    poison_policy: str
    """What becomes of exhausted messages, for the count of them."""

    def observed(self, what: str, count: int) -> None:
        """Count something that happened in the subscription."""


def _for_ever() -> int | None:
    return None


class SubscriptionContext(Struct, frozen=True, kw_only=True):
    """What the pump works with."""

    topic: str
    """Its name, for what is told about the subscription."""
    clock: Clock
    tasks: TaskScope
    source: MessageSource | None
    """None on a best-effort topic: its messages are offered, not read."""
    cursor: Cursor | None
    observer: Observer
    store_dead_letter: Callable[["Subscription", DeadLetter], None]
    """Publishes a dead letter and reports back by `dead_letter_stored`."""
    message_ttl_ms: Callable[[], int | None] = _for_ever
    """How long messages of the topic may be delivered, as of now."""


class Subscription:
    """A named position in a topic, and the consumers that share it.

    All its methods run on the event loop and return at once; what must be read or published
    happens elsewhere and comes back as an event. So nobody waits for a slow consumer.
    """

    def __init__(
        self,
        subscription_id: SubscriptionId,
        name: str,
        kind: SubscriptionType,
        dispatcher: Dispatcher,
        context: SubscriptionContext,
        life: str | None = None,
    ) -> None:
        self.id = subscription_id
        self.name = name
        self.kind = kind
        self._marks = Marks(f"{subscription_id:x}" if life is None else life)
        self.idle_since_ms: int | None = None
        self._consumers: dict[ConsumerId, Consumer] = {}
        self._dispatcher = dispatcher
        self._context = context
        self._timer: Timer | None = None
        self._timer_at_ms = 0
        self._troubles = Troubles(context.topic, name, by_key=kind == "KeyShared")
        self._settlements = 0
        self._offered: Piece | None = None
        self._due_times = DueTimes(context.clock)
        self._era = 0
        self._closed = False
        if context.source is not None:
            self._feed(Available(context.source.durable_end))

    # What the topic tells.

    def available(self, end: Offset) -> None:
        """Take note that the topic's durable end has moved."""
        self._feed(Available(end))

    def offer(self, piece: Piece) -> None:
        """Hand a best-effort message to whoever is there; it is never seen again."""
        self._offered = piece
        if self.kind == "KeyShared":
            keys = piece.batch.routing_keys(piece.first_row, piece.end_row)
            self._feed(KeysRead(piece.start, keys))
        else:
            self._feed(Available(piece.end))
        self._offered = None

    def configure(self, settings: DispatchSettings) -> None:
        """Apply new settings to what is in flight as well."""
        self._feed(Configured(settings))

    def close(self, error: DanubeError | None) -> None:
        """Do nothing any more; every stream ends with `error`, or by whoever closes it if None."""
        if error is not None:
            # So that deliveries under way count as attempts when the broker is back.
            for consumer in self._consumers.values():
                if consumer.active:
                    self._return_unsent(consumer)
                    self._feed(ConsumerLeft(consumer.id))
        self._closed = True
        if self._context.cursor is not None:
            self._context.cursor.close()
        if self._timer is not None:
            self._timer.cancel()
        for consumer in self._consumers.values():
            if error is not None and consumer.stream is not None:
                consumer.stream.end(error)

    # What consumers do.

    @property
    def consumers(self) -> Sequence[Consumer]:
        """Everybody who is known here, in the order of joining."""
        return list(self._consumers.values())

    @property
    def active_consumers(self) -> int:
        """How many of them can take messages now."""
        return sum(consumer.active for consumer in self._consumers.values())

    def restore(self, consumer: Consumer) -> None:
        """Know a consumer from before a restart; it gets nothing until it opens a stream."""
        consumer.inactive_since_ms = self._now_ms()
        self._consumers[consumer.id] = consumer
        if self.kind == "KeyShared":
            # Messages that only its filters match must wait for it, not pass as unwanted.
            self._feed(ConsumerJoined(consumer.id, 0, consumer.filters))
            self._feed(ConsumerLeft(consumer.id))

    def away_ms(self) -> dict[str, int]:
        """Return the consumers that are not here, and for how long, where others wait for them."""
        if self.kind != "Exclusive":
            return {}
        now_ms = self._now_ms()
        return {
            consumer.name: now_ms - consumer.inactive_since_ms
            for consumer in self._consumers.values()
            if not consumer.active
        }

    def been_away(self, away_ms: Mapping[str, int]) -> None:
        """Take note of how long restored consumers had been gone when the topic came here."""
        for consumer in self._consumers.values():
            consumer.inactive_since_ms -= away_ms.get(consumer.name, 0)

    def rival_of(self, name: str) -> Consumer | None:
        """Return who holds an exclusive subscription against `name`, if anybody does."""
        if self.kind != "Exclusive":
            return None
        now = self._now_ms()
        for consumer in self._consumers.values():
            awaited = now - consumer.inactive_since_ms < HOLDER_GRACE_MS
            present = consumer.active or (awaited and not consumer.said_goodbye)
            if consumer.name != name and present:
                return consumer
        return None

    def check_admits(self, name: str) -> None:
        """Refuse a consumer of that name while another one holds the subscription."""
        rival = self.rival_of(name)
        if rival is not None:
            raise SubscriptionBusy(
                f"subscription {self.name} is exclusive and held by consumer {rival.name}; "
                "use another subscription name, or another subscription type"
            )

    def check_served(self) -> None:
        """Refuse streams of a subscription that is served no more."""
        if self._closed:
            raise Unavailable(
                f"subscription {self.name} is no longer served here; look it up again"
            )

    def join(self, consumer: Consumer, peer: str) -> None:
        """Let a consumer in, or let it take its own name over from an earlier connection."""
        self._take(consumer, peer)
        if consumer.stream is not None:
            consumer.stream.end(None)
            consumer.stream = None
        self._activate(consumer)
        if consumer.grace is not None:
            consumer.grace.cancel()
        consumer.grace = self._context.clock.call_later(
            STREAM_GRACE_MS / 1000, lambda: self._give_up_waiting(consumer)
        )

    def open_stream(self, consumer: Consumer, peer: str) -> ConsumerStream:
        """Give the consumer's messages to a new stream; an earlier one ends cleanly."""
        earlier = consumer.stream
        if earlier is not None:
            earlier.end(None)
        self._take(consumer, peer)
        stream = ConsumerStream(consumer)
        consumer.stream = stream
        # A consumer that has just subscribed keeps what its outbox gathered meanwhile.
        if earlier is not None or not consumer.active or consumer.streamed:
            self._activate(consumer)
        consumer.streamed = True
        return stream

    def check_holds(self, consumer: Consumer, peer: str) -> None:
        """Refuse a connection whose consumer's name another one has now."""
        if consumer.is_superseded(peer):
            raise ConsumerDisplaced(
                f"another consumer has come under the name {consumer.name} and has taken its place "
                f"in subscription {self.name}; give each consumer a name of its own, or none"
            )

    def _take(self, consumer: Consumer, peer: str) -> None:
        displaced = consumer.taken_by(peer)
        consumer.said_goodbye = False
        if displaced is not None and consumer.may_tell_displaced(self._now_ms()):
            _log.warning(
                "a consumer was displaced by another one of the same name",
                topic=self._context.topic,
                subscription=self.name,
                consumer=consumer.name,
                displaced=displaced,
                by=peer,
                next="give each consumer a name of its own, or none",
            )

    def close_stream(self, stream: ConsumerStream) -> None:
        """Take note that a stream has ended, for whatever reason."""
        consumer = stream.consumer
        if consumer.stream is not stream:
            return
        consumer.stream = None
        self._deactivate(consumer)

    def refused(self, stream: ConsumerStream) -> Offset | None:
        """Take note that a client has reset its stream; return the message it cannot take, if any.

        That message has failed: it backs off and follows the failure policy, and whatever lies
        behind it goes on. To be called before the stream is closed.
        """
        if stream.consumer.stream is not stream:
            return None
        for offset in stream.long_messages.recent(self._now_ms()):
            if self._dispatcher.holder(offset) == stream.consumer.id:
                # A client does not read beyond what it cannot take: it is the first one.
                self._feed(Nacked(offset, Offset(offset + 1), reason=TOO_LONG))
                return offset
        return None

    def say_goodbye(self, consumer: Consumer) -> None:
        """Free the place of a consumer that closes, and may yet come back under its name.

        A stream that it still has ends by itself; whoever else has one under that name keeps it.
        """
        consumer.said_goodbye = True
        self._give_up_waiting(consumer)

    def drained(self, stream: ConsumerStream, count: int) -> None:
        """Take note that a stream has sent messages, or for other reasons wants so many more."""
        if stream.consumer.stream is stream:
            self._feed(Drained(stream.consumer.id, count))

    def remove(self, consumer: Consumer) -> None:
        """Forget a consumer for good."""
        if consumer.id not in self._consumers:
            return
        self._return_unsent(consumer)
        del self._consumers[consumer.id]
        if consumer.stream is not None:
            consumer.stream.end(Unavailable(f"consumer {consumer.name} has lost its place"))
            consumer.stream = None
        self._feed(ConsumerRemoved(consumer.id))

    @property
    def mark(self) -> str:
        """What its deliveries carry, so that whoever settles them can show whose they were."""
        return self._marks.current

    @property
    def life(self) -> str:
        """What tells it from whatever else has borne its name, or will."""
        return self._marks.life

    def may_settle(self, mark: str | None, offset: Offset, peer: str) -> bool:
        """Tell whether an ack or nack of a message speaks of a delivery of this subscription.

        It shows so by the mark of that delivery. Without one, the message must be out now with a
        consumer on the very connection that the ack or nack came on.
        """
        if mark is not None:
            return self.knows(mark)
        holder = self._dispatcher.holder(offset)
        return holder is not None and self._consumers[holder].is_held_by(peer)

    def knows(self, mark: str) -> bool:
        """Tell whether a mark is of a delivery of this subscription that may still be settled."""
        return self._marks.are(mark)

    def ignore(self, done: Done) -> None:
        """Answer an ack or nack that settles nothing here, when one before it would be answered."""
        self._answer_when_durable(done)

    def ack(self, start: Offset, end: Offset, done: Done) -> None:
        """Settle messages that this subscription has delivered; see `may_settle`.

        `done` follows once that is durable.
        """
        self._feed(Acked(start, end))
        self._answer_when_durable(done)

    def nack(
        self, start: Offset, end: Offset, delay_ms: int, reason: str | None, done: Done
    ) -> None:
        """Have messages delivered again, after the policy's delay or the longer one asked for.

        The caller has made sure that they were delivered, as with `ack`. `done` follows once it is
        durable that they failed.
        """
        self._feed(Nacked(start, end, delay_ms, reason))
        self._answer_when_durable(done)

    def _answer_when_durable(self, done: Done) -> None:
        if self._closed:
            done(Unavailable(f"subscription {self.name} is no longer served here"))
        elif self._context.cursor is None:
            done(None)
        else:
            self._context.cursor.when_durable(done)

    def answer_held(self) -> None:
        """Answer what waited until it was certain whose topic this is."""
        if self._context.cursor is not None:
            self._context.cursor.answer()

    def advance(self, end: Offset, done: Done) -> None:
        """Settle all messages below `end`, delivered or not; `done` follows once it is durable."""
        if self.cursor < end:
            self._feed(Skipped(self.cursor, end))
        self._answer_when_durable(done)

    def missing(self, stream: ConsumerStream, start: Offset, end: Offset) -> None:
        """Take note that offsets handed to a stream hold no message any more."""
        if stream.consumer.stream is stream:
            stream.consumer.outbox.sent(start, end)
        self._feed(Skipped(start, end))
        self.drained(stream, end - start)

    # What waits for its time, or outlives it.

    def sendable(self, stream: ConsumerStream, delivery: Delivery, piece: Piece) -> Sequence[Piece]:
        """Return the parts of a piece that a stream may send now, just before it does.

        The rest is not due yet and comes back when it is, or has outlived its time and is settled,
        or is a delivery from before the subscription was moved.
        """
        if stream.consumer.stream is stream:
            stream.consumer.outbox.sent(piece.start, piece.end)
        if delivery.era != self._era:
            self.drained(stream, piece.count)
            return ()
        held = piece.batch.held_back(
            piece.first_row,
            piece.end_row,
            now_ms=self._context.clock.now_ms(),
            ttl_ms=self._context.message_ttl_ms(),
        )
        if not held:
            return (piece,)
        parts: list[Piece] = []
        row = piece.first_row
        for run in held:
            if row < run.first_row:
                parts.append(Piece(piece.base, piece.batch, row, run.first_row))
            row = run.end_row
            self._hold_back(
                stream, Offset(piece.base + run.first_row), Offset(piece.base + row), run.due_ms
            )
        if row < piece.end_row:
            parts.append(Piece(piece.base, piece.batch, row, piece.end_row))
        return parts

    def _hold_back(
        self, stream: ConsumerStream, start: Offset, end: Offset, due_ms: int | None
    ) -> None:
        if stream.consumer.stream is not stream:
            return  # All it had is with others again; they will see for themselves.
        if due_ms is None:
            self._feed(Expired(start, end))
        else:
            self._feed(Postponed(start, end, self._due_times.monotonic_ms(due_ms)))
        self.drained(stream, end - start)

    def expire_below(self, end: Offset) -> None:
        """Settle what lies below `end` and is with no consumer: its time is over."""
        if self.cursor < end:
            self._feed(ExpiredBelow(end))

    def check_clock(self) -> None:
        """Let delayed messages be due if the wall clock was set forward; to be called at times."""
        moved_ms = self._due_times.take_move()
        if moved_ms and self.delayed_count:
            self._feed(ClockMoved(moved_ms))

    def seek(self, offset: Offset, done: Done) -> None:
        """Go on from there, whatever was settled before; `done` follows once it is durable.

        Deliveries not yet sent are forgotten, and acks of earlier ones settle nothing, unless the
        broker is restarted in between.
        """
        cursor = self._context.cursor
        assert cursor is not None, "best-effort messages cannot be gone back to"
        if not self._closed:
            self._era += 1
            self._marks.move(self._context.clock.now_ms())
            cursor.seek(offset)
            dropped = [(each.id, each.outbox.message_count) for each in self._consumers.values()]
            for consumer in self._consumers.values():
                consumer.outbox.clear()
            self._feed(SeekTo(offset))
            for consumer_id, count in dropped:
                self._feed(Drained(consumer_id, count))
        self._answer_when_durable(done)

    def dead_letter_stored(self, offset: Offset) -> None:
        """Take note that a dead letter is durable."""
        self._tell(self._troubles.freed("dead letters"))
        self._feed(DeadLetterStored(offset, stored=True))

    def dead_letter_failed(self, offset: Offset, target: str, cause: str, mend: str) -> None:
        """Take note that a dead letter cannot be stored now; it is asked for again."""
        reason = f"dead letters cannot be stored in {target}: {cause}"
        next_step = f"{mend}; the broker tries again by itself"
        self._tell(self._troubles.hindered("dead letters", reason, next_step))
        self._feed(DeadLetterStored(offset, stored=False))

    def look_after(self, policy: FailurePolicy) -> None:
        """See whether it gets on, and say so if not; to be called now and then."""
        progress = TroublesProgress(
            settlements=self._settlements,
            pending=max(0, self.lag - self.delayed_count),
            active_consumers=self.active_consumers,
            policy=policy,
        )
        self._tell(self._troubles.look(progress, self._now_ms()))

    @property
    def trouble(self) -> Trouble | None:
        """What keeps it from going on, if anything does."""
        return self._troubles.present

    # What operators see.

    @property
    def cursor(self) -> Offset:
        """The first offset that is not settled."""
        return self._dispatcher.cursor

    @property
    def waiting_count(self) -> int:
        """Messages that wait for a retry."""
        return self._dispatcher.waiting_count

    @property
    def blocked_count(self) -> int:
        """Exhausted messages that block."""
        return self._dispatcher.blocked_count

    @property
    def delayed_count(self) -> int:
        """Messages known to wait for their own time."""
        return self._dispatcher.delayed_count

    @property
    def lag(self) -> int:
        """Durable messages that are not settled."""
        source = self._context.source
        return max(0, source.durable_end - self.cursor) if source is not None else 0

    def _activate(self, consumer: Consumer) -> None:
        self._consumers[consumer.id] = consumer
        consumer.active = True
        consumer.streamed = False
        consumer.close_due = False
        self.idle_since_ms = None
        # Whatever it had is unacked and will be delivered again, in order.
        self._return_unsent(consumer)
        credit = consumer.credit - consumer.outbox.message_count
        self._feed(ConsumerJoined(consumer.id, max(0, credit), consumer.filters))

    def _deactivate(self, consumer: Consumer) -> None:
        consumer.active = False
        consumer.close_due = True
        consumer.inactive_since_ms = self._now_ms()
        if not self.active_consumers:
            self.idle_since_ms = consumer.inactive_since_ms
        self._return_unsent(consumer)
        self._feed(ConsumerLeft(consumer.id))

    def _return_unsent(self, consumer: Consumer) -> None:
        """Empty the outbox of a consumer that leaves or joins anew; best-effort messages stay."""
        unsent = consumer.outbox.unsent()
        if unsent:
            self._feed(Unsent(consumer.id, unsent))
        if self._context.source is not None:
            consumer.outbox.clear()

    def _give_up_waiting(self, consumer: Consumer) -> None:
        if consumer.active and consumer.stream is None and not self._closed:
            self._deactivate(consumer)

    # The pump.

    def _feed(self, event: Event) -> None:
        if self._closed:
            return
        events = deque([event])
        while events:
            for action in self._dispatcher.handle(events.popleft(), self._now_ms()):
                answer = self._carry_out(action)
                if answer is not None:
                    events.append(answer)
        if self._dispatcher.blocked_count != self._troubles.blocked_count:
            self._tell_blocked()
        self._set_timer()

    def _tell_blocked(self) -> None:
        count, first = self._dispatcher.blocked_count, self._dispatcher.first_blocked
        self._tell(self._troubles.block_changed(count, first))

    def _tell(self, line: Line | None) -> None:
        if line is not None:
            write = _log.warning if line.is_bad else _log.info
            write(line.event, **line.fields)

    def _carry_out(self, action: Action) -> Event | None:
        context = self._context
        match action:
            case Deliver():
                return self._deliver(action)
            case Settle(start, end):
                self._settlements += 1
                if context.cursor is not None:
                    context.cursor.settle(start, end)
            case Count(start, end, attempts):
                if context.cursor is not None:
                    context.cursor.count(start, end, attempts)
            case DeadLetter():
                context.store_dead_letter(self, action)
            case ReadKeys(start, count):
                return self._read_keys(start, Offset(start + count))
            case Discard(start, end):
                context.observer.observed("discarded", end - start)
            case Observed(what, count):
                context.observer.observed(what, count)
            case _:
                assert_never(action)
        return None

    def _deliver(self, action: Deliver) -> Event | None:
        pieces = None
        if self._offered is not None:
            pieces = [self._offered.between(action.start, action.end)]
        delivery = Delivery(action.start, action.end, action.attempt, pieces, self._era)
        if self._consumers[action.consumer].outbox.put(delivery):
            return None
        self._context.observer.observed("discarded", delivery.count)
        return Drained(action.consumer, delivery.count)  # It takes no room in the outbox.

    def _read_keys(self, start: Offset, end: Offset) -> Event | None:
        source = self._context.source
        assert source is not None, "a best-effort dispatcher is given its keys"
        pieces = source.read_cached(start, end)
        if pieces is None:
            self._context.tasks.start(
                self._read_keys_later(source, start, end), f"keys of {self.name}"
            )
            return None
        self._tell(self._troubles.freed("keys"))
        return self._keys_of(pieces, start)

    async def _read_keys_later(self, source: MessageSource, start: Offset, end: Offset) -> None:
        era = self._era
        try:
            answer = self._keys_of(await source.read(start, end), start)
            self._tell(self._troubles.freed("keys"))
        except DanubeError as error:
            # A disk may heal, and damage may be given up; what lies behind waits for it.
            reason = f"routing keys cannot be read: {error}"
            next_step = "see the broker's /readyz and log; the broker tries again by itself"
            self._tell(self._troubles.hindered("keys", reason, next_step))
            await self._context.clock.sleep(READ_AGAIN_SECONDS)
            answer = KeysRead(start, ())
        if era == self._era:
            self._feed(answer)

    def _keys_of(self, pieces: list[Piece], start: Offset) -> Event:
        if pieces and pieces[0].start > start:
            return Skipped(start, pieces[0].start)
        keys: list[str] = []
        for piece in pieces:
            if piece.start != start + len(keys):
                break  # The rest lies behind a hole; it is asked for again from there.
            keys += piece.batch.routing_keys(piece.first_row, piece.end_row)
        return KeysRead(start, keys)

    def _set_timer(self) -> None:
        wake_at = self._dispatcher.wake_at_ms
        # A timer that fires too early is harmless; setting it anew for every ack would not be.
        if wake_at is None or (self._timer is not None and self._timer_at_ms <= wake_at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = wake_at
        delay_ms = max(0, wake_at - self._now_ms())
        self._timer = self._context.clock.call_later(delay_ms / 1000, self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        self._context.observer.observed("wake_up", 1)
        self._feed(TimePassed())

    def _now_ms(self) -> int:
        return self._context.clock.monotonic_ms()
