"""What all dispatchers of reliable topics do alike: settle, count attempts, wait, give up."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from sys import maxsize
from typing import assert_never, cast

from pydanube.dispatch.events import (
    Acked,
    Action,
    Available,
    BlockedMessage,
    ClockMoved,
    Configured,
    ConsumerJoined,
    ConsumerLeft,
    ConsumerRemoved,
    Count,
    DeadLetter,
    DeadLetterStored,
    Deliver,
    DispatchSettings,
    Drained,
    Event,
    Expired,
    ExpiredBelow,
    KeysRead,
    Nacked,
    Observed,
    Postponed,
    SeekTo,
    Settle,
    Skipped,
    TimePassed,
    Unsent,
)
from pydanube.dispatch.in_flight import InFlight
from pydanube.dispatch.members import Member
from pydanube.dispatch.poison import DEAD_LETTER_RETRY_MS_MIN, Exhausted, Failure
from pydanube.dispatch.range_map import Known, joined
from pydanube.dispatch.redelivery import NEVER, Waiting, is_exhausted, retry_delay_ms
from pydanube.dispatch.settled import Settled
from pydanube.dispatch.token_bucket import TokenBucket
from pydanube.dispatch.undelivered import Undelivered
from pydanube.model.ids import ConsumerId, Offset
from pydanube.model.progress import Progress
from pydanube.model.ranges import RangeSet

# Offsets are plain numbers in here. To call NewType for each would cost as much as the action.
_DELIVER = cast("Callable[[ConsumerId, int, int, int], Deliver]", Deliver)
_SETTLE = cast("Callable[[int, int], Settle]", Settle)

DELAYED_MAX = 10_000
"""How many messages may wait for their own time, before nothing new is looked at."""


class ReliableDispatcher(ABC):
    """Delivers every message until it is settled, and settles nothing without a reason.

    At any time an offset is in one place: undelivered, in flight, waiting for a retry, waiting for
    its own time, exhausted, or settled. Every offset below the cursor is settled, and no settled
    one is delivered again, unless the subscription is told to go back. What is in flight, waiting
    for a retry or on its way to the dead-letter topic never grows beyond the window; what is
    exhausted and blocked is left out, since it may stay for ever.

    Messages below `seen_end` may have been delivered before this dispatcher was made: whoever got
    one then may ack it now, before it is delivered again.
    """

    def __init__(self, progress: Progress, settings: DispatchSettings, seen_end: Offset) -> None:
        self._settings = settings
        self._seen_end = seen_end
        self._now_ms = 0
        self._end = 0
        self._settled = Settled(progress.cursor, RangeSet(progress.settled))
        self._undelivered = Undelivered(progress)
        self._in_flight = InFlight()
        self._retries = Waiting()
        self._delayed = Waiting()
        self._exhausted = Exhausted()
        self._bucket: TokenBucket | None = None
        self._rate_lifts_at_ms = NEVER
        # Nothing is due before; what is settled meanwhile may leave it too early.
        self._timer_at_ms = NEVER
        self._actions: list[Action] = []

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take one event in; `now_ms` never goes backwards."""
        assert now_ms >= self._now_ms, "time went backwards"
        self._now_ms = now_ms
        actions = self._actions = []
        match event:
            case Available():
                self._end = max(self._end, event.end)
            case Acked():
                settled = self._settle_known(event.start, event.end)
                if event.start < self._seen_end:
                    self._settle_seen_before(event.start, event.end, settled)
            case Drained():
                self._drain(event.consumer, event.count)
            case Nacked():
                self._nack(event)
            case KeysRead():
                self._take_keys(event)
            case ConsumerJoined():
                self._join(event)
            case Unsent():
                for start, end in event.ranges:
                    self._in_flight.discount(event.consumer, start, end, now_ms)
            case ConsumerLeft():
                self._leave(event.consumer)
            case ConsumerRemoved():
                self._remove(event.consumer)
            case Skipped():
                self._skip(event.start, event.end)
            case Postponed():
                self._postpone(event)
            case Expired():
                self._expire(self._in_flight.take(event.start, event.end))
            case ExpiredBelow():
                self._expire_below(event.end)
            case ClockMoved():
                self._delayed.hurry(event.by_ms)
                self._timer_at_ms = self._next_timer_ms()
            case SeekTo():
                self._seek(event.offset)
            case DeadLetterStored():
                self._answer_dead_letter(event)
            case Configured():
                self._configure(event.settings)
            case TimePassed():
                pass
            case _:
                assert_never(event)
        # After the event, so that an ack that crosses with its timeout is honoured.
        if now_ms >= self._timer_at_ms:
            self._pass_time()
        self._fill()
        return actions

    @property
    def cursor(self) -> Offset:
        """The first offset that is not settled."""
        return Offset(self._settled.cursor)

    @property
    def wake_at_ms(self) -> int | None:
        """When TimePassed is due, or None while nothing waits for time."""
        timer = self._next_timer_ms()
        return None if timer >= NEVER else timer

    @property
    def in_flight_count(self) -> int:
        """Messages delivered and not yet settled, waiting and exhausted ones included."""
        exhausted = self._exhausted.blocked_count + self._exhausted.leaving_count
        return self._in_flight.count + self._retries.count + exhausted

    def holder(self, offset: Offset) -> ConsumerId | None:
        """Return whom a message is out with; None if it is not out."""
        return self._in_flight.holder(offset)

    @property
    def waiting_count(self) -> int:
        """Messages that wait for a retry."""
        return self._retries.count

    @property
    def blocked_count(self) -> int:
        """Messages that are exhausted and block under the poison policy."""
        return self._exhausted.blocked_count

    @property
    def first_blocked(self) -> BlockedMessage | None:
        """The one of them with the lowest offset."""
        found = self._exhausted.first_blocked()
        if found is None:
            return None
        offset, failure = found
        return BlockedMessage(Offset(offset), failure.attempts, failure.reason)

    @property
    def delayed_count(self) -> int:
        """Messages that wait for their own time to be delivered."""
        return self._delayed.count

    # What the kinds of subscription decide.

    @abstractmethod
    def _fill(self) -> None:
        """Deliver what can be delivered now: retries in offset order, then new messages."""

    @abstractmethod
    def _join(self, event: ConsumerJoined) -> None: ...

    @abstractmethod
    def _leave(self, consumer: ConsumerId) -> None: ...

    @abstractmethod
    def _remove(self, consumer: ConsumerId) -> None: ...

    @abstractmethod
    def _drain(self, consumer: ConsumerId, count: int) -> None: ...

    @abstractmethod
    def _take_keys(self, event: KeysRead) -> None: ...

    def _after_readying(self, start: int, end: int) -> None:  # noqa: B027  # Most need nothing.
        """Take note that messages may be delivered again."""

    def _after_due(self, start: int, end: int) -> None:  # noqa: B027  # Most need nothing.
        """Take note that the time of messages has come."""

    def _take_undelivered(self, start: int, end: int) -> list[Known[int]]:
        return self._undelivered.take(start, end)

    # What they have in common.

    def _room(self) -> int:
        """Return how many new messages the window allows; below zero after it has shrunk."""
        taken = self._in_flight.count + self._retries.count + self._exhausted.leaving_count
        return self._settings.window - taken

    def _allowance(self) -> int:
        """Return how many messages the rate allows; if none, wake up when it does again.

        To be asked only when there is something to deliver.
        """
        if self._settings.rate_per_second is None:
            return maxsize
        if self._bucket is None:
            self._bucket = TokenBucket(self._settings.rate_per_second, self._now_ms)
        allowance = self._bucket.allowance(self._now_ms)
        if not allowance:
            self._rate_lifts_at_ms = self._bucket.next_at_ms()
            self._wake_by(self._rate_lifts_at_ms)
        return allowance

    def _wake_by(self, time_ms: int) -> None:
        if time_ms < self._timer_at_ms:
            self._timer_at_ms = time_ms

    def _deliver(self, member: Member, start: int, end: int, attempt: int) -> None:
        """Hand messages that are in no other place to a consumer that has room for them."""
        count = end - start
        assert 0 < count <= member.credit, "a consumer got more than it has room for"
        member.credit -= count
        if self._bucket is not None:
            self._bucket.spend(count)
        now_ms = self._now_ms
        self._in_flight.add(start, end, member.id, attempt, now_ms)
        deadline_ms = now_ms + self._settings.policy.ack_timeout_ms
        if deadline_ms < self._timer_at_ms:
            self._timer_at_ms = deadline_ms
        self._actions.append(_DELIVER(member.id, start, end, attempt))
        if attempt > 1:
            self._actions.append(Observed("redelivery", count))

    def _settle_known(self, start: int, end: int) -> list[Known[int]]:
        """Settle what was delivered, wherever it is now, and return it; ignore all else."""
        pieces = self._in_flight.take(start, end)
        if self._retries.count:
            pieces += self._retries.take(start, end)
        if self._exhausted.blocked_count or self._exhausted.leaving_count:
            pieces += self._exhausted.take(start, end)
        if pieces:
            self._settle(pieces)
        return pieces

    def _settle_seen_before(self, start: int, end: int, settled: list[Known[int]]) -> None:
        """Settle the rest of an ack, as far as somebody may have got it before the restart."""
        if self._settled.cursor < end and _count(settled) < end - start:
            self._settle_undelivered(start, min(end, self._seen_end))

    def _settle(self, pieces: list[Known[int]]) -> None:
        """Settle messages that are in no other place any more."""
        if len(pieces) > 1:
            pieces = joined([(at, to, 0) for at, to, _ in sorted(pieces)])
        for start, end, _ in pieces:
            self._settled.add(start, end)
            self._actions.append(_SETTLE(start, end))

    def _skip(self, start: int, end: int) -> None:
        self._settle_known(start, end)
        if self._delayed.count:
            self._settle(self._delayed.take(start, end))
        self._settle_undelivered(start, end)

    def _postpone(self, event: Postponed) -> None:
        """Let messages wait for their own time, as if they had not been delivered."""
        for start, end, attempts in self._in_flight.take(event.start, event.end):
            self._delayed.schedule(start, end, attempts - 1, event.due_ms)
            self._wake_by(event.due_ms)

    def _expire(self, pieces: list[Known[int]]) -> None:
        """Settle messages whose time is over and that are in no other place any more."""
        if pieces:
            self._actions.append(Observed("expired", _count(pieces)))
            self._settle(pieces)

    def _expire_below(self, end: int) -> None:
        self._expire(self._retries.take(0, end) + self._delayed.take(0, end))
        count = self._settle_undelivered(self._settled.cursor, min(end, self._end))
        if count:
            self._actions.append(Observed("expired", count))

    def _seek(self, offset: int) -> None:
        """Forget all that happened to messages; what was delivered comes back to nobody."""
        progress = Progress(Offset(offset))
        # Acks of what was delivered before speak of another delivery.
        self._seen_end = Offset(0)
        self._settled = Settled(offset, RangeSet())
        self._undelivered = Undelivered(progress)
        self._in_flight = InFlight()
        self._retries = Waiting()
        self._delayed = Waiting()
        self._exhausted = Exhausted()
        self._timer_at_ms = self._next_timer_ms()

    def _settle_undelivered(self, start: int, end: int) -> int:
        taken = self._take_undelivered(start, end)
        for at, to, _ in taken:
            self._settled.add(at, to)
            self._actions.append(_SETTLE(at, to))
        return _count(taken)

    def _nack(self, event: Nacked) -> None:
        pieces = self._in_flight.take(event.start, event.end)
        if pieces:
            self._actions.append(Observed("nack", _count(pieces)))
            self._fail(pieces, event.delay_ms, event.reason)

    def _fail(self, pieces: list[Known[int]], delay_ms: int, reason: str | None) -> None:
        policy = self._settings.policy
        for start, end, attempts in joined(pieces):
            if is_exhausted(policy, attempts):
                self._actions.append(Observed("exhausted", end - start))
                if policy.poison_policy != "Drop":
                    self._count(start, end, attempts)
                self._give_up(start, end, Failure(attempts, reason))
            else:
                self._count(start, end, attempts)
                wait_ms = retry_delay_ms(policy, attempts, delay_ms)
                self._retry(start, end, attempts, wait_ms)

    def _retry(self, start: int, end: int, attempts: int, wait_ms: int) -> None:
        if wait_ms > 0:
            self._retries.schedule(start, end, attempts, self._now_ms + wait_ms)
            self._wake_by(self._now_ms + wait_ms)
        else:
            self._make_ready(start, end, attempts)

    def _make_ready(self, start: int, end: int, attempts: int) -> None:
        self._retries.make_ready(start, end, attempts)
        self._after_readying(start, end)

    def _take_back(self, consumer: ConsumerId) -> None:
        """Have all that is out with a consumer delivered again at once.

        The lost attempt is counted, but a disconnect says nothing against the message, so it
        never exhausts it.
        """
        for start, end, attempts in joined(self._in_flight.take_from(consumer)):
            if attempts:
                self._count(start, end, attempts)
            self._make_ready(start, end, attempts)

    def _count(self, start: int, end: int, attempts: int) -> None:
        self._actions.append(Count(Offset(start), Offset(end), attempts))

    def _give_up(self, start: int, end: int, failure: Failure) -> None:
        """Treat exhausted messages by the poison policy."""
        match self._settings.policy.poison_policy:
            case "Drop":
                self._settle([(start, end, failure.attempts)])
            case "Block":
                self._exhausted.block(start, end, failure)
            case "DeadLetter":
                for offset in range(start, end):
                    self._ask_dead_letter(offset, failure)

    def _ask_dead_letter(self, offset: int, failure: Failure) -> None:
        self._exhausted.ask(offset, failure)
        self._actions.append(DeadLetter(Offset(offset), failure.attempts, failure.reason))

    def _answer_dead_letter(self, event: DeadLetterStored) -> None:
        failure = self._exhausted.answer(event.offset)
        if failure is None:
            return
        if event.stored:
            self._settle([(event.offset, event.offset + 1, failure.attempts)])
            return
        policy = self._settings.policy
        if policy.poison_policy == "DeadLetter" and is_exhausted(policy, failure.attempts):
            wait_ms = max(policy.base_redelivery_delay_ms, DEAD_LETTER_RETRY_MS_MIN)
            self._exhausted.ask_again_at(event.offset, failure, self._now_ms + wait_ms)
            self._wake_by(self._now_ms + wait_ms)
        else:
            self._judge_again(event.offset, event.offset + 1, failure)

    def _judge_again(self, start: int, end: int, failure: Failure) -> None:
        """Treat messages that were exhausted under an earlier policy by the present one."""
        if is_exhausted(self._settings.policy, failure.attempts):
            self._give_up(start, end, failure)
        else:
            self._make_ready(start, end, failure.attempts)

    def _configure(self, settings: DispatchSettings) -> None:
        self._settings = settings
        rate = settings.rate_per_second
        if rate is None:
            self._bucket = None
        elif self._bucket is not None:
            self._bucket.change_rate(rate, self._now_ms)
        for start, end, failure in self._exhausted.take_undecided():
            self._judge_again(start, end, failure)
        self._rate_lifts_at_ms = NEVER
        # Deadlines may have moved into the past.
        self._timer_at_ms = self._next_timer_ms()

    def _pass_time(self) -> None:
        """Do all that is due."""
        now_ms = self._now_ms
        late = self._in_flight.take_delivered_before(now_ms - self._settings.policy.ack_timeout_ms)
        if late:
            self._actions.append(Observed("ack_timeout", _count(late)))
            self._fail(late, 0, "ack timeout")
        for start, end, attempts in self._retries.take_due(now_ms):
            self._make_ready(start, end, attempts)
        for start, end, attempts in self._delayed.take_due(now_ms):
            self._delayed.make_ready(start, end, attempts)
            self._after_due(start, end)
        for start, _, failure in self._exhausted.take_due(now_ms):
            self._ask_dead_letter(start, failure)
        self._rate_lifts_at_ms = NEVER
        self._timer_at_ms = self._next_timer_ms()

    def _next_timer_ms(self) -> int:
        timer = self._in_flight.oldest_ms + self._settings.policy.ack_timeout_ms
        if self._retries.count:
            timer = min(timer, self._retries.next_due_ms())
        if self._delayed.count:
            timer = min(timer, self._delayed.next_due_ms())
        if self._exhausted.leaving_count:
            timer = min(timer, self._exhausted.next_due_ms())
        return min(timer, self._rate_lifts_at_ms, NEVER)


def _count(pieces: list[Known[int]]) -> int:
    return sum(end - start for start, end, _ in pieces)
