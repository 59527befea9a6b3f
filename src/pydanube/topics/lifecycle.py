"""The states of a topic, as a table."""

from enum import Enum, auto

from pydanube.errors import Conflict


class TopicState(Enum):
    """Where a topic is in its life on this broker."""

    ACTIVE = auto()
    """It takes and gives messages."""
    DRAINING = auto()
    """It takes no more messages; what it has accepted is being made durable."""
    CLOSED = auto()
    """It is no longer served here."""


class Step(Enum):
    """What may be asked of a topic."""

    DRAIN = auto()
    CLOSE = auto()


_TRANSITIONS: dict[tuple[TopicState, Step], TopicState] = {
    (TopicState.ACTIVE, Step.DRAIN): TopicState.DRAINING,
    (TopicState.DRAINING, Step.CLOSE): TopicState.CLOSED,
    # A broker that stops drains and closes what is just being deleted once more.
    (TopicState.CLOSED, Step.DRAIN): TopicState.CLOSED,
    (TopicState.CLOSED, Step.CLOSE): TopicState.CLOSED,
}


def next_state(state: TopicState, step: Step) -> TopicState:
    """Return the state after a step, or refuse it."""
    following = _TRANSITIONS.get((state, step))
    if following is None:
        raise Conflict(f"a topic that is {state.name.lower()} cannot {step.name.lower()}")
    return following
