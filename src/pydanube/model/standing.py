"""How a subscription gets on, as every listing, answer and event tells it."""

from typing import Literal

from msgspec import Struct

from pydanube.model.names import split_partition
from pydanube.model.policies import FailurePolicy, SubscriptionType

SubscriptionState = Literal["active", "idle", "blocked", "stalled"]
"""What a subscription is doing now.

active: it has consumers. idle: it has none. blocked: a message whose deliveries are used up stops
it, until an operator decides. stalled: it has consumers and messages, and gets nowhere.
"""


class SubscriptionStanding(Struct, frozen=True, kw_only=True):
    """One subscription of one topic or partition."""

    topic: str
    subscription: str
    type: SubscriptionType
    state: SubscriptionState
    active_consumers: int
    lag: int
    """Durable messages that are not settled."""
    waiting_retry: int
    blocked: int
    """Messages whose deliveries are used up, under poison policy block."""
    delayed: int
    offset: int | None = None
    """Of the first blocked message."""
    attempts: int | None = None
    """How often that one was delivered."""
    reason: str | None = None
    """Why it failed, or why the subscription is stalled."""
    next_step: str | None = None
    """What to type, or where to look."""
    failure_policy: FailurePolicy
    """What is in force, set or not."""

    @property
    def is_stopped(self) -> bool:
        """Tell whether somebody has to do something before it goes on."""
        return self.state in ("blocked", "stalled")


def dead_letter_topic_of(topic: str) -> str:
    """Return where dead letters of a topic go unless told otherwise; partitions share one."""
    base, _ = split_partition(topic) or (topic, 0)
    return f"{base}-dlq"
