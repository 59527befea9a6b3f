"""What a dispatcher is told, and what it decides.

Every range is [start, end): `end` is the next offset, never the last one. A cursor is the first
offset that is not settled. Ranges never carry payloads.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from pydanube.model.ids import ConsumerId, Offset
from pydanube.model.policies import FailurePolicy
from pydanube.model.ranges import Range


class DispatchSettings(Struct, frozen=True, kw_only=True):
    """What may change while a subscription lives."""

    window: int
    policy: FailurePolicy
    rate_per_second: int | None = None


class Available(Struct, frozen=True, gc=False):
    """The topic holds durable messages up to `end`."""

    end: Offset


class KeysRead(Struct, frozen=True):
    """The answer to ReadKeys: the routing keys of the messages from `start` on.

    `keys[i]` belongs to offset start + i. An empty list means nothing could be read yet. A
    best-effort dispatcher never asks: it is given the keys of every published message.
    """

    start: Offset
    keys: Sequence[str]


class Skipped(Struct, frozen=True, gc=False):
    """These offsets hold no message any more; they count as settled."""

    start: Offset
    end: Offset


class Postponed(Struct, frozen=True, gc=False):
    """Messages that were delivered have not been sent: they are not due before `due_ms`."""

    start: Offset
    end: Offset
    due_ms: int


class Expired(Struct, frozen=True, gc=False):
    """Messages that were delivered have not been sent: their time is over. They are settled."""

    start: Offset
    end: Offset


class ExpiredBelow(Struct, frozen=True, gc=False):
    """The time of all messages below `end` is over; those not out with a consumer are settled."""

    end: Offset


class ClockMoved(Struct, frozen=True, gc=False):
    """The clock that messages are due by was set forward: they are due so much earlier."""

    by_ms: int


class SeekTo(Struct, frozen=True, gc=False):
    """Go on from `offset`, whatever was delivered or settled before; consumers keep their places.

    Deliveries that have not been sent must not be, and an answer to what was asked before must not
    be fed any more.
    """

    offset: Offset


class ConsumerJoined(Struct, frozen=True):
    """A consumer can take messages: it is new, or it is back, or it took over its own name.

    A join of a consumer that is present counts as left and joined: what it had in flight is
    delivered again, first and in offset order.
    """

    consumer: ConsumerId
    credit: int
    """How many messages its outbox has room for."""
    filters: tuple[str, ...] = ()
    """Of its first join; they hold until it is removed."""


class Unsent(Struct, frozen=True):
    """A consumer that is about to leave, or to join anew, has not been sent these messages.

    So they have not been delivered once more: this attempt does not count.
    """

    consumer: ConsumerId
    ranges: tuple[Range, ...]


class ConsumerLeft(Struct, frozen=True, gc=False):
    """Its stream ended. It keeps its place until it is removed, and gets nothing."""

    consumer: ConsumerId


class ConsumerRemoved(Struct, frozen=True, gc=False):
    """It is gone for good."""

    consumer: ConsumerId


class Drained(Struct, frozen=True, gc=False):
    """A consumer's outbox has handed over this many messages and has room for as many more."""

    consumer: ConsumerId
    count: int


class Acked(Struct, frozen=True, gc=False):
    """These messages are done. Offsets that are not in flight are ignored."""

    start: Offset
    end: Offset


class Nacked(Struct, frozen=True):
    """These messages failed, and are wanted again not before `delay_ms`."""

    start: Offset
    end: Offset
    delay_ms: int = 0
    reason: str | None = None


class DeadLetterStored(Struct, frozen=True):
    """The answer to DeadLetter: it is durable in the dead-letter topic, or it failed for now."""

    offset: Offset
    stored: bool


class Configured(Struct, frozen=True):
    """New settings; they apply from now on, to what is in flight as well."""

    settings: DispatchSettings


class TimePassed(Struct, frozen=True):
    """Time has come for what `wake_at_ms` asked for."""


Event = (
    Available
    | KeysRead
    | Skipped
    | Postponed
    | Expired
    | ExpiredBelow
    | ClockMoved
    | SeekTo
    | ConsumerJoined
    | Unsent
    | ConsumerLeft
    | ConsumerRemoved
    | Drained
    | Acked
    | Nacked
    | DeadLetterStored
    | Configured
    | TimePassed
)


class Deliver(Struct, frozen=True, gc=False):
    """Put these messages into the consumer's outbox."""

    consumer: ConsumerId
    start: Offset
    end: Offset
    attempt: int
    """1 for the first delivery."""


class Settle(Struct, frozen=True, gc=False):
    """These messages are done for this subscription; make that durable."""

    start: Offset
    end: Offset


class Count(Struct, frozen=True, gc=False):
    """These messages have been delivered `attempts` times without success; make that durable."""

    start: Offset
    end: Offset
    attempts: int


class DeadLetter(Struct, frozen=True):
    """Publish this message to the dead-letter topic, then report DeadLetterStored."""

    offset: Offset
    attempts: int
    reason: str | None


class ReadKeys(Struct, frozen=True, gc=False):
    """Read the routing keys of up to `count` messages from `start` on, then report KeysRead.

    If messages at `start` are gone, report Skipped instead; it will ask again from there.
    """

    start: Offset
    count: int


class Discard(Struct, frozen=True, gc=False):
    """A best-effort message reached nobody: no consumer, or no room."""

    start: Offset
    end: Offset


class Observed(Struct, frozen=True):
    """Something worth counting happened `count` times.

    It is one of nack, ack_timeout, redelivery, exhausted, expired.
    """

    what: str
    count: int


Action = Deliver | Settle | Count | DeadLetter | ReadKeys | Discard | Observed


class BlockedMessage(Struct, frozen=True):
    """A message that is exhausted and blocks: how often it was delivered, and why it failed."""

    offset: Offset
    attempts: int
    reason: str | None


class Dispatcher(Protocol):
    """One subscription's decisions.

    Carry out the returned actions in order, and all of them before the next event.
    """

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take one event in; `now_ms` never goes backwards."""

    @property
    def cursor(self) -> Offset:
        """The first offset that is not settled."""

    @property
    def wake_at_ms(self) -> int | None:
        """When TimePassed is due, or None while nothing waits for time."""

    def holder(self, offset: Offset) -> ConsumerId | None:
        """Return whom a message is out with; None if it is not out, or goes without acks."""

    @property
    def in_flight_count(self) -> int:
        """Messages delivered and not yet settled, waiting and exhausted ones included."""

    @property
    def waiting_count(self) -> int:
        """Messages that wait for a retry."""

    @property
    def blocked_count(self) -> int:
        """Messages that are exhausted and block under the poison policy."""

    @property
    def first_blocked(self) -> BlockedMessage | None:
        """The one of them with the lowest offset."""

    @property
    def delayed_count(self) -> int:
        """Messages that wait for their own time to be delivered."""
