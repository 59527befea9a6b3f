"""Where a read begins and ends in each topic, and what to do when that is not there. Pure."""

from collections.abc import Mapping

from pydanube.errors import InvalidRequest
from pydanube.spark.errors import DataLoss
from pydanube.spark.source.offsets import StreamOffset
from pydanube.spark.source.planning import TopicState

States = Mapping[str, TopicState]


def check_vector(option: str, vector: Mapping[str, int], states: States) -> None:
    """Refuse offsets of topics that are not read, and offsets that no message can have."""
    for topic, offset in vector.items():
        state = states.get(topic)
        if state is None:
            raise InvalidRequest(
                f"option {option} names {topic}, which is not read; there are "
                f"{', '.join(sorted(states)) or 'no topics'}"
            )
        if offset > state.frontier:
            raise InvalidRequest(
                f"option {option}: topic {topic} has offsets {state.earliest} to before "
                f"{state.frontier}; {offset} lies beyond. Give at most {state.frontier}"
            )


def starts_of(vector: Mapping[str, int], states: States, *, strict: bool) -> dict[str, int]:
    """Return where to begin: as the vector says, at the earliest offset elsewhere.

    Offsets that are gone are DataLoss, or passed over unless `strict`.
    """
    found = {}
    for topic, state in states.items():
        start = vector.get(topic, state.earliest)
        if start < state.earliest:
            if strict:
                raise DataLoss(topic, f"offset {start}", f"the first one is {state.earliest}")
            start = state.earliest
        found[topic] = start
    return found


def lost_by(start: StreamOffset, states: States, topics: set[str]) -> dict[str, DataLoss]:
    """Return what is wrong with going on from an offset, by topic; empty if nothing is.

    `topics` are those the options select: others have been deselected, which loses nothing.
    """
    lost = {}
    for topic, position in start.next.items():
        state = states.get(topic)
        if state is None:
            if topic in topics:
                lost[topic] = DataLoss(topic, f"offset {position}", "the topic is gone")
        elif state.id != start.ids[topic]:
            lost[topic] = DataLoss(
                topic,
                f"offset {position} of the topic with id {start.ids[topic]}",
                f"it was created anew since and has id {state.id}",
            )
        elif position < state.earliest:
            lost[topic] = DataLoss(topic, f"offset {position}", f"the first is {state.earliest}")
        elif position > state.frontier:
            lost[topic] = DataLoss(topic, f"offset {position}", f"it ends at {state.frontier}")
    return lost
