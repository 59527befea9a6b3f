"""What one broker knows of the cluster: the keys below /cluster/, folded. Pure."""

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

import msgspec
from msgspec import Struct

from pydanube.cluster.records import (
    Assignment,
    BrokerRecord,
    BrokerState,
    Handover,
    Marker,
    ReplicaSet,
)
from pydanube.metadata import keys
from pydanube.metadata.store import Change, Entry
from pydanube.model.ids import BrokerId

ACTIVE = BrokerState(mode="active")

_Key = TypeVar("_Key")
_Record = TypeVar("_Record", bound=Struct)


class Owner(Struct, frozen=True):
    """Who has a topic, and since which revision of the metadata: the epoch."""

    broker: BrokerId
    epoch: int
    assignment: Assignment


class Marked(Struct, frozen=True):
    """A marker, and the revision that a change of it must expect."""

    marker: Marker
    revision: int


class Stated(Struct, frozen=True):
    """A broker's state, and the revision that a change of it must expect."""

    state: BrokerState
    revision: int


class ClusterView:
    """Answers from memory; follows every change it is told of, in order."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.brokers: dict[BrokerId, BrokerRecord] = {}
        self.states: dict[BrokerId, Stated] = {}
        self.owners: dict[str, Owner] = {}
        self.markers: dict[str, Marked] = {}
        self.handovers: dict[str, int] = {}
        """The epoch of the last owner that let go in order, by topic."""
        self.replicas: dict[str, ReplicaSet] = {}
        self.copies: Counter[BrokerId] = Counter()
        """How many topics each broker has in its journal, served or mirrored."""
        self.leader: BrokerId | None = None
        for entry in entries:
            self._fold(entry.key, entry.value, entry.revision)

    def apply(self, change: Change) -> None:
        """Take in what a watch told."""
        self._fold(change.key, change.value, change.revision)

    def state(self, broker: BrokerId) -> BrokerState:
        """Return whether a broker takes topics."""
        stated = self.states.get(broker)
        return stated.state if stated is not None else ACTIVE

    def lost(self) -> dict[BrokerId, BrokerState]:
        """Return the brokers that gave their topics up and are not back, and what they said."""
        return {
            broker: stated.state
            for broker, stated in sorted(self.states.items())
            if stated.state.place is not None and broker not in self.brokers
        }

    def active(self) -> list[BrokerId]:
        """Return the living brokers that take topics, in the order of their numbers."""
        return sorted(each for each in self.brokers if self.state(each).mode == "active")

    def topics_of(self, broker: BrokerId) -> list[str]:
        """Return a broker's topics, sorted."""
        return sorted(topic for topic, owner in self.owners.items() if owner.broker == broker)

    def _fold(self, key: str, value: bytes | None, revision: int) -> None:
        if key.startswith(keys.REGISTRATIONS):
            broker = BrokerId(int(key.removeprefix(keys.REGISTRATIONS)))
            _keep(self.brokers, broker, value, BrokerRecord)
        elif key.startswith(keys.UNASSIGNED_TOPICS):
            topic = "/" + key.removeprefix(keys.UNASSIGNED_TOPICS)
            self.markers.pop(topic, None)
            if value is not None:
                self.markers[topic] = Marked(msgspec.json.decode(value, type=Marker), revision)
        elif key.startswith(keys.BROKERS):
            self._fold_broker(key, value, revision)
        elif key.startswith(keys.HANDOVERS):
            topic = "/" + key.removeprefix(keys.HANDOVERS)
            self.handovers.pop(topic, None)
            if value is not None:
                self.handovers[topic] = msgspec.json.decode(value, type=Handover).epoch
        elif key.startswith(keys.REPLICAS):
            self._fold_replicas("/" + key.removeprefix(keys.REPLICAS), value)
        elif key == keys.CLUSTER_LEADER:
            self.leader = BrokerId(int(value)) if value is not None else None

    def _fold_replicas(self, topic: str, value: bytes | None) -> None:
        before = self.replicas.get(topic)
        if before is not None:
            self.copies.subtract(before.members)
        _keep(self.replicas, topic, value, ReplicaSet)
        if value is not None:
            self.copies.update(self.replicas[topic].members)

    def _fold_broker(self, key: str, value: bytes | None, revision: int) -> None:
        number, _, rest = key.removeprefix(keys.BROKERS).partition("/")
        broker = BrokerId(int(number))
        if rest == "state":
            self.states.pop(broker, None)
            if value is not None:
                state = msgspec.json.decode(value, type=BrokerState)
                self.states[broker] = Stated(state, revision)
            return
        topic = f"/{rest}"
        if value is not None:
            assignment = msgspec.json.decode(value, type=Assignment)
            self.owners[topic] = Owner(broker, revision, assignment)
        elif topic in self.owners and self.owners[topic].broker == broker:
            # One transaction deletes the old owner's key and writes the new one's, in any order.
            del self.owners[topic]


def _keep(kept: dict[_Key, _Record], key: _Key, value: bytes | None, kind: type[_Record]) -> None:
    kept.pop(key, None)
    if value is not None:
        kept[key] = msgspec.json.decode(value, type=kind)
