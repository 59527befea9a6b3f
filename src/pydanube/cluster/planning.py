"""What the leader does about topics without an owner, or with a dead or draining one. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from pydanube.cluster.giving_up import CANNOT_WRITE_AGAIN
from pydanube.cluster.records import (
    SHUTDOWN,
    Assignment,
    Marker,
    MoveReason,
    encode,
)
from pydanube.cluster.view import ClusterView, Owner, Stated
from pydanube.metadata import keys
from pydanube.metadata.store import Delete, Expect, Operation, Put
from pydanube.model.ids import BrokerId
from pydanube.model.policies import DispatchStrategy
from pydanube.storage.mirrors.replication import answers_needed

STEPS_MAX = 256
"""Per look; what is left is seen at the next."""
DRAINS_MAX = 4
"""Topics of a draining broker that change hands at a time."""

Chooser = Callable[[str, Sequence[BrokerId]], BrokerId]
"""Returns which of several brokers, at least one, takes a topic."""


class TopicFacts(Struct, frozen=True):
    """What the leader must know of a topic besides its place."""

    name: str
    strategy: DispatchStrategy
    revision: int
    """Of its record, which a first assignment expects."""


class Step(Struct, frozen=True, kw_only=True):
    """One change of the metadata, carried out as a whole or not at all."""

    topic: str | None
    conditions: tuple[Expect, ...]
    operations: tuple[Operation, ...]
    broker: BrokerId
    reason: str


class Plan(Struct, frozen=True, kw_only=True):
    """What to do now, and which topics can only wait for a broker to come back."""

    steps: list[Step]
    waiting: dict[str, BrokerId]


def plan(
    view: ClusterView,
    topics: Iterable[TopicFacts],
    choose: Chooser,
    now_ms: int,
    *,
    moves_reliable: bool,
) -> Plan:
    """Decide about every topic that needs a decision.

    Without `moves_reliable`, history lies on the brokers' own disks, and reliable topics stay.
    """
    steps: list[Step] = []
    waiting: dict[str, BrokerId] = {}
    draining = _Draining(view)
    for topic in topics:
        if len(steps) >= STEPS_MAX:
            break
        owner, marked = view.owners.get(topic.name), view.markers.get(topic.name)
        if owner is None:
            target = _next_owner(view, topic.name, choose)
            if target is not None:
                steps.append(_assign_free(view, topic, target, now_ms))
        elif owner.broker not in view.brokers:
            target = _heir(view, topic, owner, choose, moves_reliable=moves_reliable)
            if target is None:
                waiting[topic.name] = owner.broker
            else:
                steps.append(_fail_over(view, topic.name, owner, target, now_ms))
        elif marked is None and view.state(owner.broker).mode == "draining":
            movable = moves_reliable or topic.strategy == "NonReliable"
            if movable and draining.may_begin(owner.broker):
                steps.append(ask_for(view, topic.name, "drain", now_ms))
    steps += [_drained(broker, view.states[broker]) for broker in draining.done()]
    return Plan(steps=steps, waiting=waiting)


def ask_for(
    view: ClusterView,
    topic: str,
    reason: MoveReason,
    now_ms: int,
    *,
    to: BrokerId | None = None,
    why: str = "",
) -> Step:
    """Return the step that asks a topic's owner to hand it over."""
    owner = view.owners[topic]
    marker = Marker(reason=reason, from_broker=owner.broker, to_broker=to, time_ms=now_ms, why=why)
    return Step(
        topic=topic,
        conditions=(_held(topic, owner), Expect(keys.unassigned_topic(topic), 0)),
        operations=(Put(keys.unassigned_topic(topic), encode(marker)),),
        broker=owner.broker,
        reason=reason,
    )


def is_recoverable(view: ClusterView, topic: str) -> bool:
    """Tell whether living brokers hold everything that a topic's owners ever acknowledged."""
    replicas = view.replicas.get(topic)
    if replicas is None or replicas.epoch <= view.handovers.get(topic, 0):
        return True  # Nothing was acknowledged since it was last handed over, or ever.
    alive = sum(member in view.brokers for member in replicas.members)
    return alive >= answers_needed(len(replicas.members))


class _Draining:
    """Keeps the number of topics that leave a broker at a time in bounds."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        # Also those that are gone: whoever gave up while it was being emptied is empty, too.
        self._brokers = [each for each in view.states if view.state(each).mode == "draining"]
        self._leaving = Counter(
            each.marker.from_broker for each in view.markers.values() if not each.marker.ready
        )

    def may_begin(self, broker: BrokerId) -> bool:
        if not any(each != broker for each in self._view.active()):
            return False
        self._leaving[broker] += 1
        return self._leaving[broker] <= DRAINS_MAX

    def done(self) -> list[BrokerId]:
        """Return the brokers that stay, without topics; not those that are about to leave."""
        owners = {owner.broker for owner in self._view.owners.values()}
        return [
            broker
            for broker in self._brokers
            if broker not in owners and self._view.state(broker).reason != SHUTDOWN
        ]


def _next_owner(view: ClusterView, topic: str, choose: Chooser) -> BrokerId | None:
    """Return who takes a topic that nobody has: rather not the one that has just let it go."""
    marked = view.markers.get(topic)
    active = view.active()
    if marked is None:
        return choose(topic, active) if active else None
    marker = marked.marker
    if marker.to_broker in active and marker.to_broker is not None:
        return marker.to_broker
    others = [broker for broker in active if broker != marker.from_broker]
    if others:
        return choose(topic, others)
    # Better where it was than nowhere.
    return marker.from_broker if marker.from_broker in view.brokers else None


def _heir(
    view: ClusterView,
    topic: TopicFacts,
    owner: Owner,
    choose: Chooser,
    *,
    moves_reliable: bool,
) -> BrokerId | None:
    """Return who takes a dead broker's topic; None while that would lose messages."""
    active = view.active()
    if not active:
        return None
    if topic.strategy == "NonReliable":
        return choose(topic.name, active)
    if not moves_reliable or not is_recoverable(view, topic.name):
        return None
    replicas = view.replicas.get(topic.name)
    near = [each for each in active if replicas is not None and each in replicas.members]
    return choose(topic.name, near or active)


def _assign_free(view: ClusterView, topic: TopicFacts, target: BrokerId, now_ms: int) -> Step:
    marked = view.markers.get(topic.name)
    marker_key = keys.unassigned_topic(topic.name)
    reason: MoveReason = marked.marker.reason if marked is not None else "orphan"
    record = Assignment(
        reason=reason,
        from_broker=marked.marker.from_broker if marked is not None else None,
        time_ms=now_ms,
    )
    return Step(
        topic=topic.name,
        conditions=(
            Expect(keys.topic_record(topic.name), topic.revision),
            Expect(marker_key, marked.revision if marked is not None else 0),
        ),
        operations=(Delete(marker_key), Put(keys.assignment(target, topic.name), encode(record))),
        broker=target,
        reason=reason,
    )


def _fail_over(view: ClusterView, topic: str, owner: Owner, target: BrokerId, now_ms: int) -> Step:
    record = Assignment(reason="failover", from_broker=owner.broker, time_ms=now_ms)
    return Step(
        topic=topic,
        # The broker may have come back this very moment.
        conditions=(_held(topic, owner), Expect(keys.registration(owner.broker), 0)),
        operations=(
            Delete(keys.assignment(owner.broker, topic)),
            Delete(keys.unassigned_topic(topic)),
            Put(keys.assignment(target, topic), encode(record)),
        ),
        broker=target,
        reason="failover",
    )


def _held(topic: str, owner: Owner) -> Expect:
    return Expect(keys.assignment(owner.broker, topic), owner.epoch)


def _drained(broker: BrokerId, stated: Stated) -> Step:
    key = keys.broker_state(broker)
    before = stated.state
    reason = before.reason if before.reason == CANNOT_WRITE_AGAIN else "drain_complete"
    state = replace(before, mode="drained", reason=reason)
    return Step(
        topic=None,
        # It may have been activated, or stopped, this very moment.
        conditions=(Expect(key, stated.revision),),
        operations=(Put(key, encode(state)),),
        broker=broker,
        reason="drain_complete",
    )
