"""What a world consists of, drawn by seed: topics, clients, policies, limits. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from pydanube.model.names import partition_name
from pydanube.model.policies import FailurePolicy, PoisonPolicy, Policies, SubscriptionType
from pydanube.runtime.randomness import Randomness
from pydanube.storage.config import Segments
from tests.support.checkers import WatchedSubscription
from tests.support.workloads import MESSAGE_BYTES_MAX, Temper

DEAD_LETTERS = "/default/dead"
CLIENT_HOSTS = ("north", "south", "east")
KINDS: tuple[SubscriptionType, ...] = ("Exclusive", "Shared", "Failover", "KeyShared")
KEYS = ("apple", "ant", "bee", "bread", "cat")

# What is drawn from; a test that looks for something rare may narrow it.
BY_CLIENT_ONE_IN = 3
"""One of so many clients is ours; the others make single calls."""
CHURNS_ONE_IN = 5
"""One of so many worlds has a topic that is deleted and made again."""
POISON_SHARES = (0, 8)
POISON_POLICIES: tuple[PoisonPolicy, ...] = ("DeadLetter", "DeadLetter", "Block", "Drop")

_Thing = TypeVar("_Thing")


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    name: str
    by_client: bool
    count: int
    at_once: int
    pause_seconds: float


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    name: str
    by_client: bool
    filters: tuple[str, ...] = ()
    is_rival: bool = False
    """It may never be let in."""


@dataclass(frozen=True, slots=True)
class SubscriptionPlan:
    name: str
    kind: SubscriptionType
    temper: Temper
    policy: FailurePolicy | None
    """None on best-effort topics."""
    consumers: tuple[ConsumerPlan, ...]
    think_seconds: float

    @property
    def is_gentle(self) -> bool:
        """Whether every message is acked at its first attempt, and in time."""
        return not (self.temper.flaky or self.temper.slow or self.temper.poison)

    def final_policy(self) -> FailurePolicy | None:
        """Return the policy that lets blocked messages go, None if the first one does."""
        policy = self.policy
        if policy is None or self.is_gentle or policy.poison_policy != "Block":
            return None
        return _with_poison_policy(policy, "DeadLetter")

    def reconfigured(self, randomness: Randomness) -> FailurePolicy | None:
        """Return another policy that leads to the same end, None if there is none."""
        policy = self.policy
        if policy is None or self.is_gentle or policy.poison_policy == "Drop":
            return None
        return _with_poison_policy(policy, pick(randomness, ("DeadLetter", "Block")))

    def watched(self, topic: str) -> WatchedSubscription:
        """Say what may be expected of it on a topic."""
        policy = self.policy
        assert policy is not None
        exhausts = not self.is_gentle
        drops = exhausts and policy.poison_policy == "Drop"
        return WatchedSubscription(
            topic=topic,
            name=self.name,
            kind=self.kind,
            in_order=self.is_gentle,
            redeliveries_max=policy.max_redelivery_count if exhausts else None,
            dead_letters=DEAD_LETTERS if exhausts and not drops else None,
            drops=drops,
            poison=self.temper.is_poison,
        )


@dataclass(frozen=True, slots=True)
class TopicPlan:
    name: str
    reliable: bool
    partitions: int | None
    keys: tuple[str, ...]
    producers: tuple[ProducerPlan, ...]
    subscriptions: tuple[SubscriptionPlan, ...]

    @property
    def topics(self) -> list[str]:
        """Return the topic itself, or its partitions."""
        if self.partitions is None:
            return [self.name]
        return [partition_name(self.name, index) for index in range(self.partitions)]

    def each_subscription(self) -> Iterator[tuple[str, SubscriptionPlan]]:
        """Return every subscription of every partition, with the partition's name."""
        for name in self.topics:
            for subscription in self.subscriptions:
                yield name, subscription


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds inside the broker, some of them so small that every one is reached."""

    file_bytes_max: int
    tail_cache_bytes_max: int
    segments: Segments
    window: int
    policies: Policies
    outbox_messages_max: int
    group_messages_max: int
    gathered_messages_max: int
    read_ahead_max: int
    read_count_min: int
    id_block: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class WorldPlan:
    topics: tuple[TopicPlan, ...]
    limits: Limits
    churns: bool
    """A topic is deleted and created again and again."""
    reconfigures: bool
    creates_dead_letters: bool
    seconds: float
    """How long things are broken."""


def pick(randomness: Randomness, things: Sequence[_Thing]) -> _Thing:
    return things[randomness.below(len(things))]


def draw_plan(randomness: Randomness) -> WorldPlan:
    topics = [_draw_topic(randomness, "a", reliable=True)]
    if randomness.below(2):
        topics.append(_draw_topic(randomness, "b", reliable=True))
    if randomness.below(3) == 0:
        topics.append(_draw_topic(randomness, "c", reliable=True, partitions=2))
    if randomness.below(3) == 0:
        topics.append(_draw_topic(randomness, "d", reliable=False))
    return WorldPlan(
        topics=tuple(topics),
        limits=_draw_limits(randomness, best_effort=not all(each.reliable for each in topics)),
        churns=randomness.below(CHURNS_ONE_IN) == 0,
        reconfigures=randomness.below(2) == 0,
        creates_dead_letters=randomness.below(2) == 0,
        seconds=randomness.uniform(6.0, 18.0),
    )


def _draw_limits(randomness: Randomness, *, best_effort: bool) -> Limits:
    def small_or(small: int, usual: int) -> int:
        return 1 + randomness.below(small) if randomness.below(2) else usual

    return Limits(
        file_bytes_max=pick(randomness, (1_500, 6_000, 30_000)),
        tail_cache_bytes_max=pick(randomness, (0, 2_000, 1_000_000)),
        segments=_draw_segments(randomness),
        window=small_or(12, 10),
        policies=Policies(
            max_message_size=MESSAGE_BYTES_MAX,
            max_publish_rate=pick(randomness, (None, None, 40)),
            max_subscription_dispatch_rate=pick(randomness, (None, None, 15)),
        ),
        # A best-effort message for which there is no room is lost, by promise.
        outbox_messages_max=1_000 if best_effort else small_or(6, 1_000),
        group_messages_max=small_or(4, 256),
        gathered_messages_max=small_or(3, 4_096),
        read_ahead_max=small_or(12, 10_000),
        read_count_min=small_or(4, 64),
        id_block=small_or(3, 1_024),
        chunk_bytes=pick(randomness, (600, 8 * 1024 * 1024)),
    )


def _draw_segments(randomness: Randomness) -> Segments:
    if randomness.below(2):
        return Segments()  # Which come so late that nobody lives to see them.
    return Segments(
        seal_bytes=pick(randomness, (1_500, 10_000)),
        seal_seconds=pick(randomness, (1, 5)),
        read_cache_bytes_max=pick(randomness, (0, 5_000, 1_000_000)),
    )


def _draw_topic(
    randomness: Randomness, short: str, *, reliable: bool, partitions: int | None = None
) -> TopicPlan:
    subscriptions = tuple(
        _draw_subscription(randomness, f"{short}{number}", reliable, partitions is not None)
        for number in range(1 + randomness.below(2))
    )
    keyed = any(each.kind == "KeyShared" for each in subscriptions) or randomness.below(3) == 0
    return TopicPlan(
        name=f"/default/{short}",
        reliable=reliable,
        partitions=partitions,
        keys=KEYS if keyed else (),
        producers=tuple(
            _draw_producer(randomness, f"p{number}", partitions is not None)
            for number in range(1 + randomness.below(2))
        ),
        subscriptions=subscriptions,
    )


def _draw_producer(randomness: Randomness, name: str, partitioned: bool) -> ProducerPlan:
    return ProducerPlan(
        name=name,
        by_client=partitioned or randomness.below(BY_CLIENT_ONE_IN) == 0,
        count=8 + randomness.below(18),
        at_once=1 + randomness.below(4),
        pause_seconds=pick(randomness, (0.05, 0.3, 1.0)),
    )


def _draw_subscription(
    randomness: Randomness, name: str, reliable: bool, partitioned: bool
) -> SubscriptionPlan:
    kind = pick(randomness, KINDS)
    temper = Temper(name)
    policy = None
    if reliable and randomness.below(2):
        temper = Temper(
            name,
            flaky=pick(randomness, (0, 15)),
            slow=pick(randomness, (0, 10)),
            poison=pick(randomness, POISON_SHARES),
        )
    if reliable:
        gentle = not (temper.flaky or temper.slow or temper.poison)
        policy = GENTLE if gentle else _draw_policy(randomness)
    return SubscriptionPlan(
        name=name,
        kind=kind,
        temper=temper,
        policy=policy,
        consumers=_draw_consumers(randomness, kind, partitioned),
        think_seconds=pick(randomness, (0.0, 0.02, 0.2)),
    )


GENTLE = FailurePolicy(ack_timeout_ms=36_000_000)
"""No ack is ever too late."""


def _draw_policy(randomness: Randomness) -> FailurePolicy:
    poison_policy = pick(randomness, POISON_POLICIES)
    return FailurePolicy(
        max_redelivery_count=1 + randomness.below(3),
        ack_timeout_ms=pick(randomness, (700, 2_500)),
        base_redelivery_delay_ms=pick(randomness, (0, 50, 300)),
        max_redelivery_delay_ms=1_000,
        backoff_strategy=pick(randomness, ("Fixed", "Exponential")),
        dead_letter_topic=DEAD_LETTERS,
        poison_policy=poison_policy,
    )


def _draw_consumers(
    randomness: Randomness, kind: SubscriptionType, partitioned: bool
) -> tuple[ConsumerPlan, ...]:
    def one(name: str, filters: tuple[str, ...] = (), rival: bool = False) -> ConsumerPlan:
        by_client = partitioned or randomness.below(BY_CLIENT_ONE_IN) == 0
        return ConsumerPlan(name, by_client, filters, rival)

    match kind:
        case "Exclusive":
            rival = [one("rival", rival=True)] if randomness.below(4) == 0 else []
            return (one("one"), *rival)
        case "Failover":
            return (one("one"), one("two"))
        case "Shared":
            return tuple(one(f"c{number}") for number in range(1 + randomness.below(3)))
        case "KeyShared":
            if randomness.below(3) == 0:
                # Every key has somebody who wants it.
                return (one("a", ("a*",)), one("b", ("b*", "?at")))
            return tuple(one(f"c{number}") for number in range(1 + randomness.below(3)))


def _with_poison_policy(policy: FailurePolicy, poison_policy: PoisonPolicy) -> FailurePolicy:
    return replace(policy, poison_policy=poison_policy)
