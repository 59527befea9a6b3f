"""What shall happen, drawn from a seed before anything is started. Pure.

Two lanes run at the same time: one harms brokers, the other one is an operator's and a user's, who
delete, make again, move and unsubscribe. Every kind of fault comes once before any comes again. A
quarter of the time nothing is done to the brokers; everything is healed at the end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from pydanube.model.policies import SubscriptionType
from pydanube.runtime.randomness import Randomness, SeededRandomness

Storage = Literal["local", "object_store"]
BrokerFault = Literal[
    "kill",
    "pause",
    "partition",
    "restart",
    "EIO",
    "ENOSPC",
    "slow sync",
    "stuck sync",
    "disk loss",
]
TopicDeed = Literal["recreate", "unsubscribe", "move"]
Kind = BrokerFault | TopicDeed
_Kind = TypeVar("_Kind", BrokerFault, TopicDeed)

BROKERS = 3
FAULTS: tuple[BrokerFault, ...] = get_args(BrokerFault)
TOPIC_DEEDS: tuple[TopicDeed, ...] = get_args(TopicDeed)
ONE_COPY: tuple[BrokerFault, ...] = tuple(fault for fault in FAULTS if fault != "disk loss")
"""With `storage.mode: local` there are no copies: a lost disk loses messages, as promised."""

_FIRST_AT = 5.0
_REST_MAX = 4.0
_WHOLE_CLUSTER = ("kill", "restart", "pause")
"""What may befall two brokers, or all of them."""


@dataclass(frozen=True, slots=True)
class Step:
    """One deed. Its lane does the next one when it is over and its time has come."""

    at: float
    """Seconds after the clients began to work."""
    kind: Kind
    brokers: tuple[int, ...] = ()
    topic: int = 0
    subscription: int = 0
    seconds: float = 0.0
    """How long a fault stays; 0 for deeds that are over when they are done."""
    unasked: bool = False
    """Whether our own consumers stay where they are while their topic is replaced."""

    def __str__(self) -> str:
        where = f"topic {self.topic}"
        if self.brokers:
            where = "broker " + ",".join(map(str, self.brokers))
        lasting = f" for {self.seconds:.1f} s" if self.seconds else ""
        manner = " under its consumers" if self.unasked else ""
        return f"{self.at:7.1f} s  {self.kind} of {where}{lasting}{manner}"


@dataclass(frozen=True, slots=True)
class SubscriptionPlan:
    """A subscription that every topic has, and who consumes it."""

    name: str
    kind: SubscriptionType
    members: tuple[str, ...]
    """The processes, by name, that have a consumer on it."""
    batches: bool = False

    @property
    def is_ordered(self) -> bool:
        return self.kind in ("Exclusive", "KeyShared")


@dataclass(frozen=True, slots=True)
class TopicPlan:
    name: str
    replicas: int


SUBSCRIPTIONS = (
    SubscriptionPlan("keyed", "KeyShared", ("first", "second")),
    SubscriptionPlan("batches", "Exclusive", ("second",), batches=True),
    SubscriptionPlan("stock", "Exclusive", ("stock",)),
    SubscriptionPlan("mixed", "Shared", ("first", "stock")),
)
OURS = ("first", "second")
STOCK = "stock"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run in one storage mode: the same for the same seed."""

    seed: str
    storage: Storage
    seconds: float
    topics: tuple[TopicPlan, ...]
    harm: tuple[Step, ...]
    """What happens to brokers."""
    deeds: tuple[Step, ...]
    """What happens to topics and subscriptions."""

    def __str__(self) -> str:
        steps = sorted((*self.harm, *self.deeds), key=lambda step: step.at)
        return "\n".join(map(str, steps))


def draw_schedule(
    seed: str,
    seconds: float,
    storage: Storage,
    *,
    faults: Sequence[BrokerFault] | None = None,
    deeds: Sequence[TopicDeed] = TOPIC_DEEDS,
    topics: int = 3,
) -> Schedule:
    """Return what a seed means."""
    possible = ONE_COPY if storage == "local" else FAULTS
    wanted = [fault for fault in (possible if faults is None else faults) if fault in possible]
    planned = tuple(
        TopicPlan(f"/default/chaos-{number}", 1 if storage == "local" else 2 + number % 2)
        for number in range(topics)
    )
    return Schedule(
        seed,
        storage,
        seconds,
        planned,
        tuple(_harm(SeededRandomness(f"{seed} {storage} brokers"), seconds, wanted)),
        tuple(_deeds(SeededRandomness(f"{seed} {storage} topics"), seconds, deeds, topics)),
    )


def quiet_share(schedule: Schedule) -> float:
    """Return which part of the time no fault is on any broker, as planned."""
    return 1 - sum(step.seconds for step in schedule.harm) / schedule.seconds


def _harm(chance: Randomness, seconds: float, faults: Sequence[BrokerFault]) -> Iterator[Step]:
    at = _FIRST_AT
    for fault in _bags(chance, faults):
        lasts = _lasting(chance, fault)
        if at + lasts > seconds:
            return
        yield Step(at, fault, brokers=_victims(chance, fault), seconds=lasts)
        # A third of what was harm is rest, so that a quarter of the time is.
        at += lasts * 4 / 3 + chance.uniform(1.0, _REST_MAX)


def _deeds(
    chance: Randomness, seconds: float, deeds: Sequence[TopicDeed], topics: int
) -> Iterator[Step]:
    at = _FIRST_AT + chance.uniform(2.0, 6.0)
    for deed in _bags(chance, deeds):
        if at > seconds - _FIRST_AT:
            return
        yield Step(
            at,
            deed,
            topic=chance.below(topics),
            subscription=chance.below(len(SUBSCRIPTIONS)),
            unasked=deed == "recreate" and chance.below(3) == 0,
        )
        at += chance.uniform(8.0, 16.0)


def _bags(chance: Randomness, kinds: Sequence[_Kind]) -> Iterator[_Kind]:
    """Give all kinds in any order, then all of them again in another, for ever."""
    while kinds:
        left = list(kinds)
        while left:
            yield left.pop(chance.below(len(left)))


def _lasting(chance: Randomness, fault: BrokerFault) -> float:
    match fault:
        case "kill" | "restart":
            return chance.uniform(0.5, 4.0)  # Before it is started again.
        case "pause" | "partition" | "stuck sync":
            return chance.uniform(2.0, 12.0)
        case "disk loss":
            return chance.uniform(2.0, 6.0)
        case _:
            return chance.uniform(2.0, 8.0)


def _victims(chance: Randomness, fault: BrokerFault) -> tuple[int, ...]:
    """Choose one broker most of the time; now and then a majority, or all."""
    first = chance.below(BROKERS)
    if fault not in _WHOLE_CLUSTER:
        return (first,)
    draw = chance.below(6)
    count = BROKERS if draw == 0 else 2 if draw == 1 else 1
    return tuple(sorted((first + each) % BROKERS for each in range(count)))
