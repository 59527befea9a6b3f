"""What clients asked for and what they saw, in one order: the material of the checkers.

`RecordedChannel` writes it at the wire, so that every client leaves the same traces, whichever
engine carries its calls. Each operation ends ok, fail (it certainly did not happen) or info (it
may have happened, or may still happen).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["ok", "fail", "info"]


@dataclass(slots=True)
class Send:
    """A message on its way to the broker; `at` and `ended` are moments in the history's order."""

    at: int
    client: str
    topic: str
    producer: str
    value: str
    key: str | None
    ended: int | None = None
    outcome: Outcome = "info"
    offset: int | None = None
    numbered: bool = False
    """The producer has given it a number, so that sending it again stores nothing more."""
    continues_nothing: bool = False
    """It was refused because the topic did not know the session that it continues."""


@dataclass(slots=True)
class Ack:
    at: int
    client: str
    topic: str
    subscription: str
    offset: int
    ended: int | None = None
    outcome: Outcome = "info"


@dataclass(slots=True)
class Nack:
    at: int
    client: str
    topic: str
    subscription: str
    offset: int
    attempt: int
    """The highest attempt its client had seen, on streams of the broker that it was sent to."""
    boot: int
    ended: int | None = None
    outcome: Outcome = "info"
    boot_ended: int = -1
    seen: dict[str, int] = field(default_factory=dict)
    """The highest attempt from each broker when it was sent; which one it reaches is seen later."""


@dataclass(slots=True)
class Stream:
    """One call that receives messages."""

    number: int
    client: str
    consumer: str
    session_at: int
    """From here on the broker may have been gathering messages for it; never too late."""
    boot: int


@dataclass(slots=True)
class Delivery:
    at: int
    stream: Stream
    topic: str
    subscription: str
    offset: int
    value: str
    key: str | None
    producer: str
    attempt: int
    attributes: Mapping[str, str]


@dataclass(slots=True)
class Registered:
    """A name that a broker gave an id to."""

    at: int
    kind: Literal["producer", "consumer"]
    name: str
    id: int


@dataclass(slots=True)
class Life:
    """One life of a subscription whose name has others, and what it owes to whoever reads it."""

    topic: str
    subscription: str
    name: str
    owed: dict[int, str]
    """What was published to it and answered, and acked by nobody who had it from this life."""
    read_from: int
    """From here on, all that it owes must still come."""
    read_to: int


@dataclass
class History:
    """Everything that happened, in one order."""

    sends: list[Send] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    nacks: list[Nack] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    registered: list[Registered] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    boot: int = 0
    """How often the broker has been started."""
    note: Callable[[str], None] = lambda text: None
    """Is told what happened, in words."""
    answered: Callable[[], None] = lambda: None
    """Is called whenever a client has been told that something is done."""
    _now: int = 0

    def now(self) -> int:
        """Return a moment later than all before."""
        self._now += 1
        return self._now

    @property
    def operations(self) -> int:
        """How much there is to check."""
        return len(self.sends) + len(self.acks) + len(self.nacks) + len(self.deliveries)
