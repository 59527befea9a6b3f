"""What an operator and a broker tell each other, as our own types."""

from msgspec import Struct

from pydanube.model.policies import (
    DispatchStrategy,
    Durability,
    FailurePolicy,
    SubscriptionType,
)
from pydanube.model.standing import SubscriptionStanding


class Broker(Struct, frozen=True, kw_only=True):
    """One broker of the cluster."""

    broker_id: str
    broker_addr: str
    broker_role: str
    admin_addr: str
    metrics_addr: str
    broker_status: str


class DrainReport(Struct, frozen=True, kw_only=True):
    """How far the draining of a broker has come."""

    started: bool
    total: int
    succeeded: int
    failed: int
    pending: int
    failed_topics: list[str]


class ClusterStatus(Struct, frozen=True, kw_only=True):
    """What a node knows of those that agree on the metadata."""

    leader_id: int
    current_term: int
    last_applied: int
    voters: list[int]
    learners: list[int]
    self_node_id: int
    raft_addr: str


class NodeChange(Struct, frozen=True, kw_only=True):
    """What became of a change of the nodes."""

    success: bool
    message: str


class BrokerLoad(Struct, frozen=True, kw_only=True):
    """One broker's share of the work."""

    broker_id: str
    load: float
    topic_count: int
    is_overloaded: bool
    is_underloaded: bool


class Balance(Struct, frozen=True, kw_only=True):
    """How evenly the brokers share the work."""

    coefficient_of_variation: float
    mean_load: float
    max_load: float
    min_load: float
    std_deviation: float
    broker_count: int
    assignment_strategy: str
    brokers: list[BrokerLoad]


class Move(Struct, frozen=True, kw_only=True):
    """A topic's way from one broker to another."""

    topic: str
    from_broker: str
    to_broker: str
    estimated_load: float
    reason: str


class Rebalancing(Struct, frozen=True, kw_only=True):
    """What a rebalance did, or would do."""

    success: bool
    moves_executed: int
    error_message: str
    proposed_moves: list[Move]
    note: str = ""
    """Why a dry run proposes nothing."""


class ListedTopic(Struct, frozen=True, kw_only=True):
    """One line of a list of topics."""

    name: str
    broker_id: str
    delivery: str


class TopicDescription(Struct, frozen=True, kw_only=True):
    """All that is known about one topic."""

    name: str
    broker_id: str
    delivery: str
    durability: str | None
    partitions: int | None
    subscriptions: list[str]
    standings: list[SubscriptionStanding]
    """How they get on, if the broker tells."""
    schema_subject: str | None
    schema_id: int | None
    schema_version: int | None
    schema_type: str | None
    compatibility_mode: str | None


class PolicyInForce(Struct, frozen=True, kw_only=True):
    """What becomes of messages that fail."""

    policy: FailurePolicy
    is_default: bool
    """Nobody has set it."""
    type: SubscriptionType | None
    """Of the subscription; None while there is none."""


class RetentionInForce(Struct, frozen=True, kw_only=True):
    """How long history stays; 0 is unlimited, as everywhere on the wire."""

    time_ms: int
    bytes: int
    waits_for_subscriptions: bool
    own: list[str]
    """What a topic has of its own; the rest is its namespace's."""


class NewTopic(Struct, frozen=True, kw_only=True):
    """A topic to be created."""

    name: str
    dispatch: DispatchStrategy
    partitions: int | None = None
    durability: Durability | None = None
    schema_subject: str | None = None


class MovedSubscription(Struct, frozen=True, kw_only=True):
    """Where a subscription goes on."""

    topic: str
    """The topic itself, or a partition."""
    subscription: str
    offset: int
