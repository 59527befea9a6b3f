"""A dispatcher among consumers, a log and a clock, with every law of dispatch checked at each step.

The world keeps its own, naive account of every single offset and compares. It never looks inside
the dispatcher.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

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
)
from pydanube.dispatch.factory import create_dispatcher
from pydanube.model.ids import ConsumerId, Offset
from pydanube.model.policies import SubscriptionType
from pydanube.model.progress import Progress, ProgressChange
from pydanube.storage.journal.progress import FoldedProgress

Factory = Callable[[SubscriptionType, Progress, DispatchSettings, Offset], Dispatcher]

ABSENCE_MS = 3_000
START = Offset(100)
"""Not 0, so that an offset is not mistaken for a count."""


def make_reliable(
    kind: SubscriptionType, progress: Progress, settings: DispatchSettings, seen_end: Offset
) -> Dispatcher:
    return create_dispatcher(kind, True, progress, settings, seen_end)


@dataclass
class Consumer:
    """What the world knows of a consumer."""

    filters: tuple[str, ...]
    connected: bool = False
    credit: int = 0
    undrained: int = 0


@dataclass
class Held:
    """A message that was delivered and is not settled."""

    attempts: int
    out_with: int | None = None
    """None while it waits for a retry, or is exhausted."""
    deadline_from_ms: int = 0
    not_before_ms: int = 0
    exhausted: bool = False


def wants(filters: tuple[str, ...], key: str) -> bool:
    def pattern(text: str) -> str:
        return "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in text)

    return not filters or any(re.fullmatch(pattern(text), key) for text in filters)


@dataclass
class World:
    """Feeds one dispatcher and checks what it does."""

    kind: SubscriptionType
    settings: DispatchSettings
    factory: Factory = make_reliable
    reads_at_once: bool = True
    now_ms: int = 1_000
    keys: list[str] = field(default_factory=list)
    """Of the messages in the log, from START on."""
    consumers: dict[int, Consumer] = field(default_factory=dict)
    """In the order in which they may get messages of a Failover subscription."""
    held: dict[int, Held] = field(default_factory=dict)
    delayed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """When a message that was postponed is due, and how often it was delivered before."""
    settled: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    read_asked: ReadKeys | None = None
    read_was_empty: bool = False
    observed: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.folded = FoldedProgress(Progress(START))
        self.first_seen_below = int(START)
        self.seen_end = int(START)
        self.dispatcher = self.factory(self.kind, Progress(START), self.settings, START)
        self.known_attempts: dict[int, int] = {}
        self.may_settle: set[int] = set()
        self.must_settle: set[int] = set()
        self.sound = True

    # What happens.

    @property
    def end(self) -> int:
        return START + len(self.keys)

    def publish(self, *keys: str) -> None:
        self.keys += keys
        self.feed(Available(Offset(self.end)))

    def join(self, consumer: int, credit: int, filters: tuple[str, ...] = ()) -> None:
        known = self.consumers.setdefault(consumer, Consumer(filters))
        if known.connected:
            self._take_back(consumer)
        known.connected, known.credit, known.undrained = True, credit, 0
        self.feed(ConsumerJoined(ConsumerId(consumer), credit, filters))

    def leave(self, consumer: int) -> None:
        if consumer in self.consumers:
            self._disconnect(consumer)
            if self.kind == "Failover":
                del self.consumers[consumer]
        self.feed(ConsumerLeft(ConsumerId(consumer)))

    def remove(self, consumer: int) -> None:
        if consumer in self.consumers:
            self._disconnect(consumer)
            del self.consumers[consumer]
        self.feed(ConsumerRemoved(ConsumerId(consumer)))

    def drain(self, consumer: int, count: int) -> None:
        known = self.consumers.get(consumer)
        if known is not None and known.connected:
            count = min(count, known.undrained)
            known.undrained -= count
            known.credit += count
        self.feed(Drained(ConsumerId(consumer), count))

    def ack(self, start: int, end: int) -> None:
        # What was published before a restart may have been delivered before it.
        seen = set(self.held) | set(range(START, self.seen_end)) - self.settled - set(self.delayed)
        self.must_settle = {offset for offset in seen if start <= offset < end}
        self.feed(Acked(Offset(start), Offset(end)))

    def nack(self, start: int, end: int, delay_ms: int = 0) -> None:
        for offset, held in self.held.items():
            if start <= offset < end and held.out_with is not None:
                self._fail(offset, held, delay_ms)
        self.feed(Nacked(Offset(start), Offset(end), delay_ms, "no"))

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.feed(TimePassed())

    def pass_time_until_woken(self) -> None:
        wake_at = self.dispatcher.wake_at_ms
        if wake_at is not None:
            self.pass_time(max(0, wake_at - self.now_ms))

    def answer_dead_letter(self, offset: int, stored: bool) -> None:
        if stored and offset in self.asked and offset in self.held:
            self.must_settle = {offset}
        elif offset in self.asked and offset in self.held:
            wait_ms = max(100, self.settings.policy.base_redelivery_delay_ms)
            if self.settings.policy.poison_policy == "DeadLetter":
                self.held[offset].not_before_ms = self.now_ms + wait_ms
            self._judge_again(offset)
        self.asked.discard(offset)
        self.feed(DeadLetterStored(Offset(offset), stored))

    def skip(self, start: int, end: int) -> None:
        self.must_settle = set(range(start, end)) - self.settled
        self.feed(Skipped(Offset(start), Offset(end)))

    def postpone(self, start: int, end: int, delay_ms: int) -> None:
        due_ms = self.now_ms + delay_ms
        for offset in [each for each in self._out() if start <= each < end]:
            self.delayed[offset] = (due_ms, self.held.pop(offset).attempts - 1)
        self.feed(Postponed(Offset(start), Offset(end), due_ms))

    def expire(self, start: int, end: int) -> None:
        self.must_settle = {offset for offset in self._out() if start <= offset < end}
        self._feed_expired(Expired(Offset(start), Offset(end)))

    def expire_below(self, end: int) -> None:
        kept = {offset for offset, held in self.held.items() if held.exhausted}
        kept |= set(self._out()) | self.settled
        self.must_settle = {offset for offset in range(START, end) if offset not in kept}
        self._feed_expired(ExpiredBelow(Offset(end)))

    def _feed_expired(self, event: Expired | ExpiredBelow) -> None:
        before, count = self.observed["expired"], len(self.must_settle)
        self.feed(event)
        assert self.observed["expired"] - before == count, "what expired was miscounted"

    def move_clock(self, by_ms: int) -> None:
        self.delayed = {at: (due - by_ms, count) for at, (due, count) in self.delayed.items()}
        self.feed(ClockMoved(by_ms))

    def seek(self, offset: int) -> None:
        """Go on from there; what outboxes hold is forgotten."""
        self.held.clear()
        self.delayed.clear()
        self.asked.clear()
        self.known_attempts.clear()
        self.settled = set(range(START, offset))
        self.folded = FoldedProgress(Progress(Offset(offset)))
        self.first_seen_below = self.seen_end = int(START)
        self.read_asked = None
        self.read_was_empty = False
        self.feed(SeekTo(Offset(offset)))
        for consumer, known in list(self.consumers.items()):
            self.drain(consumer, known.undrained)

    def _out(self) -> list[int]:
        return [offset for offset, held in self.held.items() if held.out_with is not None]

    def configure(self, settings: DispatchSettings) -> None:
        self.settings = settings
        for offset, held in self.held.items():
            if held.exhausted and offset not in self.asked:
                held.not_before_ms = 0
                self._judge_again(offset)
        self.feed(Configured(settings))

    def answer_read(self, count: int) -> None:
        if self.read_asked is None:
            return
        start = self.read_asked.start
        count = min(count, self.read_asked.count, self.end - start)
        keys = self.keys[start - START : start - START + max(0, count)]
        self.read_asked = None
        self.read_was_empty = not keys
        self.feed(KeysRead(start, keys))

    def restart(self) -> None:
        """Lose all that is not durable."""
        progress = self.folded.whole()
        self.known_attempts = self.durable_attempts()
        self.held.clear()
        self.delayed.clear()
        self.consumers.clear()
        self.asked.clear()
        self.read_asked = None
        self.read_was_empty = False
        self.first_seen_below = int(START)
        self.seen_end = self.end
        self.dispatcher = self.factory(self.kind, progress, self.settings, Offset(self.end))
        self.feed(Available(Offset(self.end)))

    def heal(self, filters: dict[int, tuple[str, ...]]) -> None:
        """Let everybody come back and ack all; then nothing may be left."""
        for consumer, patterns in filters.items():
            self.join(consumer, 1_000, patterns)
        for _ in range(200 + 20 * len(self.keys)):
            if self.dispatcher.cursor == max(self.end, self._reached()):
                break
            self.answer_read(10_000)
            for offset in list(self.asked):
                self.answer_dead_letter(offset, True)
            for offset, held in list(self.held.items()):
                if held.out_with is not None or held.exhausted:
                    self.ack(offset, offset + 1)
            for consumer in list(self.consumers):
                self.drain(consumer, 1_000)
            self.pass_time_until_woken()
        assert self.dispatcher.cursor == max(self.end, self._reached()), "messages were left over"
        assert self.dispatcher.in_flight_count == 0

    # What must follow.

    def feed(self, event: Event) -> None:
        # After a broken law the account is worthless; `heal` must not hide what was found.
        sound, self.sound = self.sound, False
        self._feed(event)
        self.sound = sound

    def _feed(self, event: Event) -> None:
        self._expire()
        actions = self.dispatcher.handle(event, self.now_ms)
        reads = [action for action in actions if isinstance(action, ReadKeys)]
        for action in actions:
            self._check(action)
        assert not self.must_settle, "what is done was not settled"
        self.may_settle = set()
        self._check_state()
        for read in reads:
            assert self.read_asked is None or self.read_asked.start < read.start
            self.read_asked = read
            if self.reads_at_once:
                self.answer_read(read.count)

    def _check(self, action: Action) -> None:
        match action:
            case Deliver(consumer, start, end, attempt):
                for offset in range(start, end):
                    self._check_delivery(consumer, offset, attempt)
            case Settle(start, end):
                self.folded.apply(ProgressChange(settled=((start, end),)))
                assert start < end
                for offset in range(start, end):
                    self._check_settled(offset)
            case Count(start, end, attempts):
                self.folded.apply(ProgressChange(attempts=((start, end, attempts),)))
                for offset in range(start, end):
                    assert self.held[offset].attempts == attempts, "a wrong count was kept"
            case DeadLetter(offset, attempts):
                held = self.held[offset]
                assert held.exhausted
                assert held.attempts == attempts
                assert held.not_before_ms <= self.now_ms, "a dead letter was hurried"
                assert offset not in self.asked
                self.asked.add(offset)
            case ReadKeys(start, count):
                assert self.kind == "KeyShared"
                assert count > 0
                assert start + count <= self.end
            case Observed(what, count):
                self.observed[what] += count
            case Discard():
                raise AssertionError("a reliable dispatcher discarded a message")

    def _check_delivery(self, consumer: int, offset: int, attempt: int) -> None:
        assert START <= offset < self.end, "it was not published"
        assert offset not in self.settled, "it is settled"
        known = self.consumers[consumer]
        assert known.connected, "the consumer is away"
        known.credit -= 1
        known.undrained += 1
        assert known.credit >= 0, "the consumer has no room"
        held = self.held.get(offset)
        if held is None:
            held = self._check_unseen(offset)
        assert held.out_with is None, "it is in flight elsewhere"
        assert not held.exhausted, "it is exhausted"
        assert held.not_before_ms <= self.now_ms, "it came before its time"
        held.attempts += 1
        assert attempt == held.attempts, "the attempts were miscounted"
        held.out_with, held.deadline_from_ms = consumer, self.now_ms
        self._check_consumer(consumer, offset)

    def _check_unseen(self, offset: int) -> Held:
        """Check the delivery of a message that nobody has got, or that was postponed since."""
        due_ms, attempts = self.delayed.pop(offset, (None, self.known_attempts.get(offset, 0)))
        if due_ms is None or self.kind == "KeyShared":
            self._check_first_delivery(offset)
        assert due_ms is None or due_ms <= self.now_ms, "it came before its own time"
        held = self.held[offset] = Held(attempts)
        self._check_window()
        return held

    def _check_first_delivery(self, offset: int) -> None:
        if self.kind != "KeyShared":
            assert offset >= self.first_seen_below, "new messages came out of order"
            self.first_seen_below = offset + 1
            return
        key = self.keys[offset - START]
        earlier = [START + at for at, other in enumerate(self.keys) if other == key]
        assert all(other in self.settled for other in earlier if other < offset), "key order"

    def _check_window(self) -> None:
        exhausted = sum(held.exhausted for held in self.held.values())
        assert len(self.held) - exhausted <= self.settings.window, "the window is exceeded"

    def _check_consumer(self, consumer: int, offset: int) -> None:
        match self.kind:
            case "Exclusive" | "Failover":
                assert consumer == next(iter(self.consumers)), "it is not the active one"
            case "KeyShared":
                key = self.keys[offset - START]
                assert wants(self.consumers[consumer].filters, key), "it does not want the key"
            case "Shared":
                pass

    def _check_settled(self, offset: int) -> None:
        assert offset not in self.settled, "it was settled twice"
        if offset in self.must_settle:
            self.must_settle.discard(offset)
        elif offset not in self.may_settle:
            assert self.kind == "KeyShared", "it was settled without a reason"
            key = self.keys[offset - START]
            known = [consumer.filters for consumer in self.consumers.values()]
            assert any(consumer.connected for consumer in self.consumers.values())
            assert not any(wants(filters, key) for filters in known), "somebody wants it"
        self.settled.add(offset)
        self.held.pop(offset, None)
        self.delayed.pop(offset, None)

    def _check_state(self) -> None:
        dispatcher = self.dispatcher
        assert dispatcher.cursor == self._reached(), "the cursor is not at the first unsettled one"
        assert dispatcher.in_flight_count == len(self.held), "messages are miscounted"
        assert dispatcher.delayed_count == len(self.delayed), "delayed messages are miscounted"
        waiting = [held for held in self.held.values() if held.out_with is None]
        exhausted = [held for held in waiting if held.exhausted]
        assert dispatcher.waiting_count == len(waiting) - len(exhausted)
        if self.settings.policy.poison_policy == "Block" and not self.asked:
            assert dispatcher.blocked_count == len(exhausted)
            self._check_told()
        durable = self.durable_attempts()
        for offset, held in self.held.items():
            assert held.out_with is not None or durable.get(offset) == held.attempts, "forgotten"
        moments = [
            held.deadline_from_ms + self.settings.policy.ack_timeout_ms
            for held in self.held.values()
            if held.out_with is not None
        ]
        moments += [held.not_before_ms for held in waiting if held.not_before_ms > self.now_ms]
        moments += [due_ms for due_ms, _ in self.delayed.values() if due_ms > self.now_ms]
        if moments:
            assert dispatcher.wake_at_ms is not None, "nobody will wake it"
            assert dispatcher.wake_at_ms <= min(moments), "it will wake too late"
        if self.kind != "KeyShared" and self.settings.rate_per_second is None:
            self._check_nothing_was_held_back(waiting)

    def _check_told(self) -> None:
        """What blocks is told: the first message of all, and how often it was delivered."""
        exhausted = {offset: held.attempts for offset, held in self.held.items() if held.exhausted}
        told = self.dispatcher.first_blocked
        expected = min(exhausted.items(), default=None)
        assert (told and (told.offset, told.attempts)) == expected, "who blocks is not told"

    def _check_nothing_was_held_back(self, waiting: list[Held]) -> None:
        takers = list(self.consumers.values())
        if self.kind != "Shared":
            takers = takers[:1]
        if not any(taker.credit for taker in takers):
            return
        due = [held for held in waiting if held.not_before_ms <= self.now_ms and not held.exhausted]
        assert not due, "a retry that is due was held back"
        exhausted = [held for held in waiting if held.exhausted]
        if exhausted and self.dispatcher.blocked_count:
            return
        fresh = set(range(START, self.end)) - self.settled - set(self.held)
        fresh -= {offset for offset, (due_ms, _) in self.delayed.items() if due_ms > self.now_ms}
        assert not fresh or len(self.held) >= self.settings.window, "a message was held back"

    def check_keys_flow(self) -> None:
        """Once everything has been read, a key with nothing in flight waits for a reason only."""
        consumers = list(self.consumers.values())
        busy = sum(not held.exhausted for held in self.held.values()) + len(self.asked)
        if (
            self.kind == "KeyShared"
            and self.settings.rate_per_second is None
            and self.read_asked is None
            and not self.read_was_empty
            and busy < self.settings.window
            and consumers
            and all(consumer.connected and consumer.credit for consumer in consumers)
        ):
            firsts: dict[str, int] = {}
            for at, key in enumerate(self.keys):
                if START + at not in self.settled:
                    firsts.setdefault(key, START + at)
            not_due = {at for at, (due_ms, _) in self.delayed.items() if due_ms > self.now_ms}
            assert not set(firsts.values()) - set(self.held) - not_due, "a key was held back"

    # The naive account.

    def durable_attempts(self) -> dict[int, int]:
        ranges = self.folded.whole().attempts
        return {offset: count for start, end, count in ranges for offset in range(start, end)}

    def _reached(self) -> int:
        cursor = int(START)
        while cursor in self.settled:
            cursor += 1
        return cursor

    def _disconnect(self, consumer: int) -> None:
        known = self.consumers[consumer]
        if known.connected:
            known.connected, known.credit = False, 0
            self._take_back(consumer)

    def _take_back(self, consumer: int) -> None:
        for held in self.held.values():
            if held.out_with == consumer:
                held.out_with = None
                held.not_before_ms = 0

    def _expire(self) -> None:
        for offset, held in self.held.items():
            deadline = held.deadline_from_ms + self.settings.policy.ack_timeout_ms
            late = held.out_with is not None and deadline <= self.now_ms
            if late and offset not in self.must_settle:
                self._fail(offset, held, 0)

    def _fail(self, offset: int, held: Held, delay_ms: int) -> None:
        policy = self.settings.policy
        held.out_with = None
        if held.attempts > policy.max_redelivery_count:
            held.exhausted = True
            held.not_before_ms = 0
            self._judge_again(offset)
            return
        delay = policy.base_redelivery_delay_ms
        if policy.backoff_strategy == "Exponential":
            delay *= 2 ** (held.attempts - 1)
        held.not_before_ms = self.now_ms + min(max(delay, delay_ms), policy.max_redelivery_delay_ms)

    def _judge_again(self, offset: int) -> None:
        held, policy = self.held[offset], self.settings.policy
        if held.attempts <= policy.max_redelivery_count:
            held.exhausted = False
            held.not_before_ms = 0
        elif policy.poison_policy == "Drop":
            self.may_settle.add(offset)
            self.must_settle.add(offset)
