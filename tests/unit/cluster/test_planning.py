"""What the leader decides, case by case."""

import pytest

from pydanube.cluster.planning import (
    DRAINS_MAX,
    Plan,
    TopicFacts,
    ask_for,
    is_recoverable,
    plan,
)
from pydanube.cluster.records import (
    SHUTDOWN,
    Assignment,
    BrokerRecord,
    BrokerState,
    Handover,
    Marker,
    ReplicaSet,
    encode,
)
from pydanube.cluster.view import ClusterView
from pydanube.metadata import keys
from pydanube.metadata.store import Delete, Entry, Expect, Put
from pydanube.model.ids import BrokerId
from pydanube.storage.mirrors.replication import majority as majority_of

TOPIC = "/default/orders"
A, B, C = BrokerId(1), BrokerId(2), BrokerId(3)
RECORD = BrokerRecord(broker_url="http://x:1", connect_url="http://x:1", admin_url="http://x:2")


class Cluster:
    """Entries as the store would hold them."""

    def __init__(self, *living: BrokerId) -> None:
        self.entries: list[Entry] = []
        for broker in living:
            self.put(keys.registration(broker), encode(RECORD))

    def put(self, key: str, value: bytes, revision: int = 5) -> "Cluster":
        self.entries.append(Entry(key, value, revision))
        return self

    def owned(self, broker: BrokerId, epoch: int, topic: str = TOPIC) -> "Cluster":
        return self.put(keys.assignment(broker, topic), encode(Assignment(reason="create")), epoch)

    def marked(self, revision: int = 9, **fields: object) -> "Cluster":
        marker = Marker(**{"reason": "unload", "from_broker": A, **fields})  # type: ignore[arg-type]
        return self.put(keys.unassigned_topic(TOPIC), encode(marker), revision)

    def in_state(
        self, broker: BrokerId, mode: str, reason: str = "", revision: int = 5
    ) -> "Cluster":
        state = BrokerState(mode=mode, reason=reason)  # type: ignore[arg-type]
        return self.put(keys.broker_state(broker), encode(state), revision)

    def copied(self, epoch: int, *members: BrokerId) -> "Cluster":
        replicas = ReplicaSet(epoch=epoch, members=members)
        return self.put(keys.replicas(TOPIC), encode(replicas))

    def handed_over(self, epoch: int) -> "Cluster":
        return self.put(keys.handover(TOPIC), encode(Handover(epoch=epoch)))

    @property
    def view(self) -> ClusterView:
        return ClusterView(self.entries)


def decide(cluster: Cluster, *, reliable: bool = True, shared: bool = True) -> Plan:
    strategy = "Reliable" if reliable else "NonReliable"
    facts = [TopicFacts(TOPIC, strategy, 7)]  # type: ignore[arg-type]
    return plan(cluster.view, facts, lambda _, brokers: brokers[0], 1_000, moves_reliable=shared)


def given_to(found: Plan) -> BrokerId:
    """Return who gets the topic by the only step there is."""
    (step,) = found.steps
    puts = [each.key for each in step.operations if isinstance(each, Put)]
    assert puts == [keys.assignment(step.broker, TOPIC)]
    return step.broker


def test_a_topic_whose_owner_lives_is_left_alone() -> None:
    assert decide(Cluster(A, B).owned(A, 4)) == Plan(steps=[], waiting={})


def test_a_topic_that_nobody_has_is_given_away_if_nothing_changed() -> None:
    found = decide(Cluster(A, B))
    assert given_to(found) == A
    assert found.steps[0].conditions == (
        Expect(keys.topic_record(TOPIC), 7),
        Expect(keys.unassigned_topic(TOPIC), 0),
    )


def test_a_topic_that_was_handed_over_goes_to_another_broker() -> None:
    found = decide(Cluster(A, B).marked(ready=True))
    assert given_to(found) == B
    assert Expect(keys.unassigned_topic(TOPIC), 9) in found.steps[0].conditions
    assert Delete(keys.unassigned_topic(TOPIC)) in found.steps[0].operations


def test_a_topic_goes_where_it_was_wished_to_if_that_broker_takes_topics() -> None:
    assert given_to(decide(Cluster(A, B, C).marked(ready=True, to_broker=C))) == C
    drained = Cluster(A, B, C).in_state(C, "drained")
    assert given_to(decide(drained.marked(ready=True, to_broker=C))) == B


def test_a_topic_rather_goes_back_than_nowhere() -> None:
    assert given_to(decide(Cluster(A).in_state(A, "drained").marked(ready=True))) == A
    assert decide(Cluster().marked(ready=True)).steps == []


def test_a_topic_that_is_asked_for_waits_for_its_owner() -> None:
    assert decide(Cluster(A, B).owned(A, 4).marked()).steps == []


def test_a_dead_owners_best_effort_topic_goes_on_at_once() -> None:
    found = decide(Cluster(B).owned(A, 4), reliable=False, shared=False)
    assert given_to(found) == B
    assert found.steps[0].conditions == (
        Expect(keys.assignment(A, TOPIC), 4),
        Expect(keys.registration(A), 0),
    )


@pytest.mark.parametrize(
    ("members", "living", "heir"),
    [
        ((A,), (B,), None),
        ((A, B), (B, C), B),
        ((A, B), (C,), None),
        ((A, B, C), (B, C), B),
        ((A, B, C), (B,), None),
    ],
)
def test_a_dead_owners_topic_goes_on_where_everything_acknowledged_is(
    members: tuple[BrokerId, ...], living: tuple[BrokerId, ...], heir: BrokerId | None
) -> None:
    found = decide(Cluster(*living).owned(A, 4).copied(4, *members))
    if heir is None:
        assert found == Plan(steps=[], waiting={TOPIC: A})
    else:
        assert given_to(found) == heir


def test_a_topic_in_which_nothing_was_acknowledged_since_goes_anywhere() -> None:
    assert given_to(decide(Cluster(B).owned(A, 6).copied(4, A).handed_over(4))) == B
    assert given_to(decide(Cluster(B).owned(A, 6))) == B


def test_history_on_a_dead_brokers_own_disk_is_waited_for() -> None:
    found = decide(Cluster(B).owned(A, 4).copied(4, A, B), shared=False)
    assert found.waiting == {TOPIC: A}


def test_a_mirror_comes_before_strangers() -> None:
    cluster = Cluster(BrokerId(0), B).owned(A, 4).copied(4, A, B)
    assert given_to(decide(cluster)) == B


def test_a_draining_broker_is_asked_for_some_topics_at_a_time() -> None:
    cluster = Cluster(A, B).in_state(A, "draining")
    topics = [f"{TOPIC}-{number}" for number in range(DRAINS_MAX + 3)]
    for number, topic in enumerate(topics):
        cluster.owned(A, 10 + number, topic)
    facts = [TopicFacts(topic, "Reliable", 7) for topic in topics]
    found = plan(cluster.view, facts, lambda _, them: them[0], 0, moves_reliable=True)
    assert len(found.steps) == DRAINS_MAX
    assert {step.reason for step in found.steps} == {"drain"}


def test_a_broker_that_is_empty_is_drained_unless_its_state_has_changed() -> None:
    cluster = Cluster(A, B).in_state(A, "draining", revision=8)
    (step,) = plan(cluster.view, [], lambda _, them: them[0], 0, moves_reliable=True).steps
    assert step.reason == "drain_complete"
    assert step.conditions == (Expect(keys.broker_state(A), 8),)


def test_a_broker_that_is_empty_because_it_leaves_is_not_called_drained() -> None:
    cluster = Cluster(A, B).in_state(A, "draining", SHUTDOWN)
    assert decide(cluster.owned(B, 4)).steps == []


def test_a_draining_broker_keeps_its_topics_while_there_is_no_other() -> None:
    cluster = Cluster(A, B).in_state(A, "draining").in_state(B, "drained").owned(A, 4)
    assert decide(cluster).steps == []


def test_asking_expects_the_owner_as_it_is_and_nobody_to_have_asked() -> None:
    step = ask_for(Cluster(A, B).owned(A, 4).view, TOPIC, "unload", 0)
    assert step.conditions == (
        Expect(keys.assignment(A, TOPIC), 4),
        Expect(keys.unassigned_topic(TOPIC), 0),
    )


@pytest.mark.parametrize(("members", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_and_those_asked_always_meet(members: int, majority: int) -> None:
    replicas = ReplicaSet(epoch=1, members=tuple(BrokerId(n) for n in range(members)))
    assert majority_of(members) == majority
    living = [BrokerId(n) for n in range(members - majority + 1)]
    cluster = Cluster(*living).put(keys.replicas(TOPIC), encode(replicas))
    assert is_recoverable(cluster.view, TOPIC)
    fewer = Cluster(*living[1:]).put(keys.replicas(TOPIC), encode(replicas))
    assert not is_recoverable(fewer.view, TOPIC)
