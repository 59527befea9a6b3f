"""What is asked of the broker that serves a topic, on behalf of a caller of Flight.

Every question names physical topics and is answered by topic. Whoever is asked answers for those
it serves, and leaves the others out. Brokers ask each other in these words; their own callers know
nothing of them.
"""

from typing import Literal

from msgspec import Struct

from pydanube.broker.servicers.flight_plan import PlannedPiece
from pydanube.wire.flight.descriptors import (
    CursorAction,
    JoinSegmentsAction,
    PlanCommand,
    ProducerAction,
)

CursorVerb = Literal["create", "lease", "advance", "get", "seek"]


class AskExtent(Struct, frozen=True, kw_only=True, tag="extent"):
    """What there is."""

    names: list[str]


class AskPlan(Struct, frozen=True, kw_only=True, tag="plan"):
    """What a planned read is made of."""

    names: list[str]
    command: PlanCommand
    several: bool
    """Whether the command is about more than one physical topic."""


class AskFrontier(Struct, frozen=True, kw_only=True, tag="frontier"):
    """Where topics begin and end; answered when one has more than `after`, or time is up."""

    names: list[str]
    after: dict[str, int] = {}
    wait_ms: int = 0


class AskOffsets(Struct, frozen=True, kw_only=True, tag="offsets"):
    """Where messages of a time begin."""

    names: list[str]
    time_ms: int


class AskCursor(Struct, frozen=True, kw_only=True, tag="cursor"):
    """To do something with a cursor. Refused as a whole, before anything is changed."""

    names: list[str]
    verb: CursorVerb
    action: CursorAction
    rehearse: bool = False
    """Whether to refuse what would be refused, and change nothing."""


class AskSubscriptions(Struct, frozen=True, kw_only=True, tag="subscriptions"):
    """How subscriptions get on."""

    names: list[str]
    subscription: str | None = None


class AskProperty(Struct, frozen=True, kw_only=True, tag="property"):
    """To keep a text with topics."""

    names: list[str]
    name: str
    value: str | None


class AskProducer(Struct, frozen=True, kw_only=True, tag="producer"):
    """What a producer has stored last."""

    names: list[str]
    action: ProducerAction


class AskSegments(Struct, frozen=True, kw_only=True, tag="segments"):
    """Which segments topics have; the oldest of them."""

    names: list[str]
    most: int


class AskJoin(Struct, frozen=True, kw_only=True, tag="join"):
    """To put a joined segment in the place of its parts."""

    names: list[str]
    action: JoinSegmentsAction


Question = (
    AskExtent
    | AskPlan
    | AskFrontier
    | AskOffsets
    | AskCursor
    | AskSubscriptions
    | AskProperty
    | AskProducer
    | AskSegments
    | AskJoin
)


class Extent(Struct, frozen=True, kw_only=True):
    """What there is of a topic."""

    id: str
    first: int | None = None
    """None: it keeps no messages."""
    end: int | None = None


class PlannedTopic(Struct, frozen=True, kw_only=True):
    """What is read of a topic."""

    id: str
    start: int
    end: int
    pieces: list[PlannedPiece]


class Kept(Struct, frozen=True):
    """It is done, durably."""
