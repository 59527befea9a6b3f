"""What a broker makes of the keys below /cluster/."""

from pydanube.cluster.records import Assignment, ReplicaSet, encode
from pydanube.cluster.view import ClusterView
from pydanube.metadata import keys
from pydanube.metadata.store import Change, Entry
from pydanube.model.ids import BrokerId

TOPIC = "/default/orders"
A, B = BrokerId(1), BrokerId(2)
GIVEN = encode(Assignment(reason="create"))


def test_the_epoch_is_the_revision_of_the_assignment() -> None:
    view = ClusterView([Entry(keys.assignment(A, TOPIC), GIVEN, 41)])
    assert (view.owners[TOPIC].broker, view.owners[TOPIC].epoch) == (A, 41)
    assert view.topics_of(A) == [TOPIC]


def test_a_topic_that_changes_hands_is_followed_in_whatever_order_it_is_told() -> None:
    taken = Change(keys.assignment(A, TOPIC), None, 50)
    given = Change(keys.assignment(B, TOPIC), GIVEN, 50)
    for changes in ((taken, given), (given, taken)):
        view = ClusterView([Entry(keys.assignment(A, TOPIC), GIVEN, 41)])
        for change in changes:
            view.apply(change)
        assert (view.owners[TOPIC].broker, view.owners[TOPIC].epoch) == (B, 50)


def test_a_broker_without_a_state_is_active_and_one_without_a_lease_is_nothing() -> None:
    view = ClusterView()
    assert view.state(A).mode == "active"
    assert view.active() == []


def test_copies_are_counted_as_sets_change() -> None:
    view = ClusterView()
    key = keys.replicas(TOPIC)
    view.apply(Change(key, encode(ReplicaSet(epoch=1, members=(A, B))), 2))
    view.apply(Change(key, encode(ReplicaSet(epoch=3, members=(B,))), 4))
    assert (view.copies[A], view.copies[B]) == (0, 1)
    view.apply(Change(key, None, 5))
    assert (view.copies[A], view.copies[B]) == (0, 0)
    assert view.replicas == {}
