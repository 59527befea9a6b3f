"""What rebalancing decides: moves with their reasons, or the reason for none."""

from typing import Literal, TypeAlias

from msgspec import Struct

from pydanube.balance.imbalance import Balance
from pydanube.model.ids import BrokerId

Outcome: TypeAlias = Literal[
    "move",
    "disabled",
    "too_few_brokers",
    "not_due",
    "cooling_down",
    "hourly_limit",
    "balanced",
    "nothing_helps",
]
"""`move`, or why nothing moves."""


class Move(Struct, frozen=True, kw_only=True):
    """One topic from one broker to another."""

    topic: str
    source: BrokerId
    target: BrokerId
    estimated_load: float
    """What the topic adds to the score of its broker."""
    reason: str


class Decision(Struct, frozen=True, kw_only=True):
    """The answer to one look at the cluster. It is a plan: nothing has happened yet."""

    outcome: Outcome
    reason: str
    """One sentence for people."""
    moves: tuple[Move, ...] = ()
    """To be carried out in this order, each after the cooldown of the one before."""
    before: Balance
    after: Balance
    """What the moves should lead to; without moves the same as `before`."""
    next_check_ms: int
    """When asking again can change the answer, as far as limits go."""


class RebalanceRequest(Struct, frozen=True, kw_only=True):
    """Somebody asked for moves now. The limits on time and number do not hold then."""

    moves_max: int | None = None
    """None goes on until the cluster is balanced."""
