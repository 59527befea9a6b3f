"""What a namespace or topic allows, and how a subscription treats failures."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

DispatchStrategy = Literal["NonReliable", "Reliable"]
SubscriptionType = Literal["Exclusive", "Shared", "Failover", "KeyShared"]
BackoffStrategy = Literal["Fixed", "Exponential"]
PoisonPolicy = Literal["DeadLetter", "Block", "Drop"]
Durability = Literal["fsync", "os", "memory"]

MESSAGE_BYTES_MAX = 4 * 1024 * 1024 - 64 * 1024
REPLICAS_MAX = 7
WINDOW_MIN, WINDOW_DEFAULT, WINDOW_MAX = 1, 10, 10_000

Limit = Annotated[int, Meta(ge=1)] | None


class Policies(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a topic. `None` is unlimited; on the wire and in YAML that is written 0."""

    max_producers_per_topic: Annotated[Limit, Meta(description="Producers of a topic.")] = None
    max_subscriptions_per_topic: Annotated[
        Limit, Meta(description="Subscriptions of a topic; new consumers of one are not counted.")
    ] = None
    max_consumers_per_topic: Annotated[Limit, Meta(description="Consumers of a topic.")] = None
    max_consumers_per_subscription: Annotated[
        Limit, Meta(description="Consumers of a subscription.")
    ] = None
    max_publish_rate: Annotated[
        Limit,
        Meta(description="Messages a second a topic takes; faster producers wait."),
    ] = None
    max_subscription_dispatch_rate: Annotated[
        Limit,
        Meta(description="Messages a second a reliable subscription gets; the rest wait."),
    ] = None
    max_message_size: Annotated[
        Limit, Meta(description="Bytes of a payload. Stock clients take less than 4 MiB.")
    ] = MESSAGE_BYTES_MAX
    forget_sequences_after_ms: Annotated[
        Limit,
        Meta(
            description="Milliseconds after which the sequences of a producer that sends nothing "
            "are forgotten; what it repeats after that is stored again. PyDanube's own key."
        ),
    ] = None
    message_ttl_ms: Annotated[
        Limit,
        Meta(
            description="Milliseconds after its publish time in which a message of a reliable "
            "topic may be delivered; after that it is settled instead. PyDanube's own key."
        ),
    ] = None
    replicas: Annotated[
        Annotated[int, Meta(ge=1, le=REPLICAS_MAX)] | None,
        Meta(
            description="In how many journals of a cluster the messages of a reliable topic are; "
            "none means what mirrors.replicas says. PyDanube's own key.",
        ),
    ] = None
    retention_ms: Annotated[
        Limit,
        Meta(
            description="Milliseconds the messages of a reliable topic stay, counted from when "
            "they became a segment. PyDanube's own key."
        ),
    ] = None
    retention_bytes: Annotated[
        Limit,
        Meta(
            description="Bytes of segments a reliable topic keeps; the oldest go first. "
            "PyDanube's own key."
        ),
    ] = None
    retention_waits_for_subscriptions: Annotated[
        bool | None,
        Meta(
            description="Whether messages stay until every subscription is done with them, "
            "whatever retention says; none means true. PyDanube's own key."
        ),
    ] = None


OWN_POLICIES = frozenset(
    {
        "forget_sequences_after_ms",
        "message_ttl_ms",
        "replicas",
        "retention_ms",
        "retention_bytes",
        "retention_waits_for_subscriptions",
    }
)
"""Those that Danube does not have."""


class OwnRetention(Struct, frozen=True, kw_only=True):
    """How long a topic's history stays by its own rule.

    None is as the namespace says, 0 is unlimited.
    """

    time_ms: int | None = None
    bytes: int | None = None
    waits_for_subscriptions: bool | None = None


class Retention(Struct, frozen=True, kw_only=True):
    """How long history stays. `None` is unlimited."""

    time_ms: int | None
    bytes: int | None
    waits_for_subscriptions: bool


def retention_in_force(policies: Policies, own: OwnRetention | None = None) -> Retention:
    """Return what holds for a topic: its own rule, for the rest that of its policies."""
    own = own or OwnRetention()
    waits = own.waits_for_subscriptions
    if waits is None:
        waits = policies.retention_waits_for_subscriptions is not False
    return Retention(
        time_ms=policies.retention_ms if own.time_ms is None else own.time_ms or None,
        bytes=policies.retention_bytes if own.bytes is None else own.bytes or None,
        waits_for_subscriptions=waits,
    )


class FailurePolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to a message that is nacked or not acked in time."""

    max_redelivery_count: Annotated[int, Meta(ge=0)] = 5
    ack_timeout_ms: Annotated[int, Meta(ge=1)] = 30_000
    base_redelivery_delay_ms: Annotated[int, Meta(ge=0)] = 1_000
    max_redelivery_delay_ms: Annotated[int, Meta(ge=0)] = 60_000
    backoff_strategy: BackoffStrategy = "Exponential"
    dead_letter_topic: str | None = None
    poison_policy: PoisonPolicy = "Block"


class DispatchConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many messages a subscription may have in flight."""

    max_unacked_messages: Annotated[
        int,
        Meta(
            ge=WINDOW_MIN,
            le=WINDOW_MAX,
            description="Messages a reliable subscription may have delivered and not acked.",
        ),
    ] = WINDOW_DEFAULT
