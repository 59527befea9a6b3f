"""The consumers of a subscription, as a dispatcher knows them."""

from msgspec import Struct

from pydanube.model.ids import ConsumerId


class Member(Struct, eq=False):
    """One consumer; it is known from its first join until it is removed."""

    id: ConsumerId
    credit: int = 0
    """How many messages it has room for; none while it is away."""
    connected: bool = False
    in_turn: bool = False
    """Whether it queues for messages of a shared subscription."""
