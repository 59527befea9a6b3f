"""What brokers tell each other through the metadata store. Pure."""

from typing import Literal

import msgspec
from msgspec import Struct

from pydanube.balance.cluster import BrokerMode
from pydanube.model.ids import BrokerId, Offset
from pydanube.model.progress import Progress
from pydanube.storage.journal.producers import LastBatch

MoveReason = Literal[
    "create", "unload", "rebalance", "drain", "shutdown", "failover", "orphan", "delete"
]

MOVES = frozenset[MoveReason]({"unload", "rebalance", "drain", "shutdown"})
"""Why a topic is given away in order, by the owner who has it."""
SHUTDOWN: MoveReason = "shutdown"
"""Why a broker drains that is being stopped: it takes topics again when it is started."""


class BrokerRecord(Struct, frozen=True, kw_only=True):
    """A living broker: where it is reached. Bound to its lease, so it goes when the broker does."""

    broker_url: str
    connect_url: str
    admin_url: str
    metrics_url: str = ""
    raft_address: str = ""
    started_ms: int = 0


class BrokerState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether a broker takes topics. One without a record is active."""

    mode: BrokerMode
    reason: str = ""
    why: str = ""
    """For people: what the broker itself says of its trouble."""
    time_ms: int = 0
    """When it gave its topics up, or came back after that."""
    place: BrokerRecord | None = None
    """Where it was reached, once it has given its topics up."""


class Assignment(Struct, frozen=True, kw_only=True):
    """A topic is this broker's. The revision of its key is the epoch of the ownership."""

    reason: MoveReason
    from_broker: BrokerId | None = None
    time_ms: int = 0


class Marker(Struct, frozen=True, kw_only=True):
    """A topic is to change hands: its owner is asked to let go, or has done so."""

    reason: MoveReason
    from_broker: BrokerId
    to_broker: BrokerId | None = None
    ready: bool = False
    """The owner has handed it over; without this it still serves the topic."""
    time_ms: int = 0
    why: str = ""
    """For people: what the decision rests on."""


class Handover(Struct, frozen=True, kw_only=True):
    """What an owner left behind when it let go in order: everything below `end` is in segments."""

    epoch: int
    end: Offset = Offset(0)
    producers: tuple[LastBatch, ...] = ()
    cursors: dict[str, Progress] = {}
    away_ms: dict[str, dict[str, int]] = {}
    """By exclusive subscription and consumer, how long one that holds it no more had been gone."""


class ReplicaSet(Struct, frozen=True, kw_only=True):
    """In whose journals the messages of an ownership are; the owner comes first.

    It is in the metadata before the first message of the ownership is acknowledged.
    """

    epoch: int
    members: tuple[BrokerId, ...]


def encode(record: Struct) -> bytes:
    """Return a record as the store keeps it."""
    return msgspec.json.encode(record)
