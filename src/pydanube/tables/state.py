"""How far a table is: the next offset of each physical topic, kept in the table itself. Pure.

There is no other checkpoint. Positions are next offsets, never last ones, so offset 0 is like any
other and an empty topic is at 0.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from pydanube.errors import Corruption
from pydanube.spark.source.planning import Limits, TopicState, admit
from pydanube.tables.errors import TableDataLoss, TableOfAnotherTopic


class Position(Struct, frozen=True):
    """The next offset a table lacks, in one life of a physical topic."""

    id: str
    next: int


Positions = Mapping[str, Position]
"""By physical topic."""


class Span(Struct, frozen=True):
    """Offsets [start, end) of one life of a physical topic."""

    id: str
    start: int
    end: int

    @property
    def rows(self) -> int:
        """How many offsets it covers."""
        return self.end - self.start


def encode_positions(positions: Positions) -> str:
    """Return positions as text, equal for equal positions."""
    return msgspec.json.encode({name: positions[name] for name in sorted(positions)}).decode()


def decode_positions(text: str) -> dict[str, Position]:
    """Read what `encode_positions` wrote."""
    try:
        return msgspec.json.decode(text, type=dict[str, Position])
    except msgspec.MsgspecError as error:
        raise Corruption(
            f"cannot read the table's offsets ({error}): {text[:200]!r}. Restore the "
            "table to an earlier snapshot, or make a new one from the topic"
        ) from error


def plan_spans(
    positions: Positions,
    topics: Mapping[str, TopicState],
    starts: Mapping[str, int],
    limits: Limits,
) -> dict[str, Span]:
    """Return what the next commit adds: for each topic with news, its share of the limits.

    A topic the table does not know enters where `starts` says, else at its beginning. A table is
    never continued with another topic of the same name, nor over a gap.
    """
    begins = {
        name: _begin(name, topic, positions.get(name), starts.get(name, 0))
        for name, topic in topics.items()
    }
    ends = {name: topic.frontier for name, topic in topics.items()}
    sizes = {name: max(1, topic.row_bytes) for name, topic in topics.items()}
    reached = admit(begins, ends, sizes, limits)
    return {
        name: Span(topics[name].id, begins[name], reached[name])
        for name in sorted(topics)
        if begins[name] < reached[name]
    }


def backlog(
    positions: Positions, topics: Mapping[str, TopicState], starts: Mapping[str, int]
) -> tuple[int, int]:
    """Return rows and, about, bytes that a table lacks."""
    rows = size = 0
    for name, topic in topics.items():
        position = positions.get(name)
        begin = max(topic.earliest, starts.get(name, 0)) if position is None else position.next
        count = max(0, topic.frontier - begin)
        rows += count
        size += count * topic.row_bytes
    return rows, size


def advanced(positions: Positions, spans: Mapping[str, Span]) -> dict[str, Position]:
    """Return the positions after a commit of spans; they never go back."""
    moved = dict(positions)
    for name, span in spans.items():
        before = moved.get(name)
        reached = span.end if before is None else max(before.next, span.end)
        moved[name] = Position(span.id, reached)
    return moved


def _begin(name: str, topic: TopicState, position: Position | None, start: int) -> int:
    if position is None:
        return min(max(topic.earliest, start), topic.frontier)
    if position.id != topic.id:
        raise TableOfAnotherTopic(
            f"topic {name} was deleted and created anew: the table holds offsets up to before "
            f"{position.next} of id {position.id}, and the topic has id {topic.id} now. Enable it "
            "with another table (danube table enable --table), and keep or drop this one"
        )
    if position.next < topic.earliest:
        raise TableDataLoss(
            f"topic {name}: the table lacks offsets {position.next} to before {topic.earliest}, "
            "which retention has removed. Keep messages for longer, and make a new table of what "
            "is left (danube table enable --table)"
        )
    if position.next > topic.frontier:
        raise TableDataLoss(
            f"topic {name} ends at {topic.frontier}, and the table holds offsets up to before "
            f"{position.next}: the topic has lost messages. Restore the broker's data, or make a "
            "new table"
        )
    return position.next
