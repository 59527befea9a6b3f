"""What a simulated cluster consists of, drawn by seed. Pure."""

from dataclasses import dataclass, fields, replace
from typing import Literal

from pydanube.model.policies import FailurePolicy, SubscriptionType
from pydanube.runtime.randomness import Randomness
from pydanube.storage.config import Segments
from tests.support.plans import (
    CHURNS_ONE_IN,
    DEAD_LETTERS,
    GENTLE,
    KEYS,
    ConsumerPlan,
    ProducerPlan,
    SubscriptionPlan,
    TopicPlan,
    pick,
)
from tests.support.workloads import Temper

KINDS: tuple[SubscriptionType, ...] = ("Exclusive", "Exclusive", "Failover", "Shared", "KeyShared")

FaultName = Literal[
    "kill",
    "power",
    "stop",
    "partition",
    "one_way",
    "delay",
    "breaks",
    "pause",
    "clock",
    "move",
    "drain",
    "wipe",
    "members",
    "slow_disk",
    "store",
    "calls",
    "drift",
    "unheard",
    "unsure",
    "sick_disk",
    "room",
]


@dataclass(frozen=True, slots=True)
class ClusterFaults:
    """What may go wrong."""

    kill: bool = False
    """A process is killed; the operating system keeps what was written."""
    power: bool = False
    """A machine loses power: unsynced bytes are lost, torn or reordered."""
    stop: bool = False
    """A broker is told to stop, and is started again."""
    partition: bool = False
    """Brokers, and clients with them, fall into two groups that do not hear of each other."""
    one_way: bool = False
    """Nothing passes from one host to another, while the other direction is open."""
    delay: bool = False
    breaks: bool = False
    """Connections break, some of them while answers are on the way."""
    pause: bool = False
    """A broker stands still for seconds and goes on as if nothing had happened."""
    clock: bool = False
    """A wall clock jumps."""
    move: bool = False
    """An operator moves a topic."""
    drain: bool = False
    """An operator empties a broker, and lets it serve again."""
    wipe: bool = False
    """A disk is lost for good, and another machine takes the place of its machine."""
    members: bool = False
    """A broker is added to the cluster, and removed from it."""
    slow_disk: bool = False
    store: bool = False
    """The store of segments fails now and then."""
    calls: bool = False
    """Calls between brokers are lost, unanswered, brought twice, or late and out of order."""
    drift: bool = False
    """Clocks run at different speeds all the time, also those by which leases are counted."""
    unheard: bool = False
    """A topic moves while clients hear nothing of what its owner answers, and ask again later."""
    unsure: bool = False
    """The owner of a topic that moves is not sure of its place for a moment, and then it is."""
    sick_disk: bool = False
    """A write fails, or hangs for as long as its process lives."""

    room: bool = False
    """A machine has no descriptors, or no disk space, for a while; never drawn, but asked for."""

    @classmethod
    def every(cls) -> "ClusterFaults":
        return cls(**{each.name: True for each in fields(cls)})

    @classmethod
    def only(cls, *names: FaultName) -> "ClusterFaults":
        return cls(**{name: True for name in names})

    @classmethod
    def drawn(cls, randomness: Randomness) -> "ClusterFaults":
        """Return about a third of them."""
        drawn = {each.name: randomness.below(3) == 0 for each in fields(cls)}
        return cls(**{**drawn, "room": False})

    @property
    def any(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    brokers: int
    replicas: int
    topics: tuple[TopicPlan, ...]
    segments: Segments
    file_bytes_max: int
    seconds: float
    """How long things are broken."""
    gap_seconds: float = 2.5
    """At most so long nothing new is broken."""
    churns: bool = False
    """A topic is deleted and created again and again."""
    scribes: bool = False
    """Somebody writes and reads metadata, and the order of all that is checked."""

    @property
    def reliable(self) -> tuple[TopicPlan, ...]:
        return tuple(topic for topic in self.topics if topic.reliable)

    @property
    def has_dead_letters(self) -> bool:
        return any(not each.is_gentle for topic in self.topics for each in topic.subscriptions)


def draw_cluster_plan(randomness: Randomness) -> ClusterPlan:
    """Return a cluster with all that may be in one."""
    plan = draw_plain_plan(randomness)
    more = []
    if randomness.below(4) == 0:
        more.append(_draw_harsh_topic(randomness))
    if randomness.below(4) == 0:
        more.append(_draw_best_effort_topic(randomness))
    churns = randomness.below(CHURNS_ONE_IN) == 0
    return replace(plan, topics=(*plan.topics, *more), scribes=True, churns=churns)


def draw_plain_plan(randomness: Randomness) -> ClusterPlan:
    """Return a cluster with reliable topics whose consumers ack everything, and nothing else."""
    return ClusterPlan(
        brokers=pick(randomness, (3, 3, 3, 5)),
        replicas=pick(randomness, (1, 2, 2, 3)),
        topics=tuple(
            _draw_topic(randomness, short) for short in ("a", "b")[: 1 + randomness.below(2)]
        ),
        segments=pick(
            randomness,
            (
                Segments(),
                Segments(seal_bytes=1_500, seal_seconds=1),
                Segments(seal_bytes=10_000, seal_seconds=3),
            ),
        ),
        file_bytes_max=pick(randomness, (1_500, 6_000, 30_000)),
        seconds=randomness.uniform(4.0, 9.0),
    )


def _draw_topic(randomness: Randomness, short: str) -> TopicPlan:
    kinds = [pick(randomness, KINDS) for _ in range(1 + randomness.below(2))]
    return TopicPlan(
        name=f"/default/{short}",
        reliable=True,
        partitions=None,
        keys=KEYS if "KeyShared" in kinds else (),
        producers=tuple(
            ProducerPlan(
                name=f"p{number}",
                by_client=randomness.below(2) == 0,
                count=8 + randomness.below(18),
                at_once=1 + randomness.below(4),
                pause_seconds=pick(randomness, (0.1, 0.4, 0.8)),
            )
            for number in range(1 + randomness.below(2))
        ),
        subscriptions=tuple(
            _draw_subscription(randomness, f"{short}{number}", kind)
            for number, kind in enumerate(kinds)
        ),
    )


def _draw_subscription(
    randomness: Randomness, name: str, kind: SubscriptionType
) -> SubscriptionPlan:
    count = 1 if kind == "Exclusive" else 1 + randomness.below(2)
    return SubscriptionPlan(
        name=name,
        kind=kind,
        temper=Temper(name),
        policy=GENTLE,
        consumers=tuple(
            ConsumerPlan(f"c{number}", by_client=randomness.below(2) == 0)
            for number in range(count)
        ),
        think_seconds=pick(randomness, (0.0, 0.02, 0.2)),
    )


HARSH = FailurePolicy(
    max_redelivery_count=2,
    ack_timeout_ms=2_500,
    base_redelivery_delay_ms=50,
    max_redelivery_delay_ms=1_000,
    backoff_strategy="Fixed",
    dead_letter_topic=DEAD_LETTERS,
    poison_policy="DeadLetter",
)


def _draw_harsh_topic(randomness: Randomness) -> TopicPlan:
    """Return a topic whose consumers nack some messages once and others for ever."""
    topic = _draw_topic(randomness, "x")
    return replace(
        topic,
        subscriptions=tuple(
            replace(each, temper=Temper(each.name, flaky=15, slow=5, poison=15), policy=HARSH)
            for each in topic.subscriptions
        ),
    )


def with_best_effort_topic(plan: ClusterPlan, randomness: Randomness) -> ClusterPlan:
    """Return the plan with one topic more."""
    return replace(plan, topics=(*plan.topics, _draw_best_effort_topic(randomness)))


def _draw_best_effort_topic(randomness: Randomness) -> TopicPlan:
    topic = _draw_topic(randomness, "d")
    return replace(
        topic,
        reliable=False,
        subscriptions=tuple(replace(each, policy=None) for each in topic.subscriptions),
    )
