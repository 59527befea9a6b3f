"""How far the next batch of a stream goes. Pure."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from pydanube.spark.errors import DataLoss
from pydanube.spark.source.offsets import StreamOffset
from pydanube.spark.source.planning import Limits, TopicState, admit, choose_grid
from pydanube.spark.source.ranges import lost_by


class Sizing(Struct, frozen=True, kw_only=True):
    """How batches are cut into tasks; fixed in an offset when it is made."""

    task_bytes: int
    tasks_min: int | None = None
    split: bool = True


def next_offset(
    start: StreamOffset,
    states: Mapping[str, TopicState],
    *,
    selected: Callable[[str], bool],
    target: Mapping[str, int] | None,
    limits: Limits,
    sizing: Sizing,
    strict: bool,
) -> StreamOffset:
    """Return where a batch from `start` ends; `start` itself if there is nothing to read.

    New topics enter at their earliest offset once they have rows. With a `target`, nothing beyond
    it is read. Raises DataLoss when `strict` and the stream cannot go on where it was; otherwise
    topics go on where messages are left.
    """
    known = {topic for topic in start.next if selected(topic)}
    lost = lost_by(start, states, known)
    if strict and lost:
        raise next(iter(lost.values()))
    begins = _begins(start, states, lost)
    ends = _ends(begins, states, target)
    sizes = {topic: states[topic].row_bytes for topic in ends}
    reached = admit(begins, ends, sizes, limits)
    moved = {topic: end for topic, end in reached.items() if end > begins[topic]}
    if not moved:
        return start
    entering = {
        topic: begins[topic]
        for topic in moved
        if start.next.get(topic) != begins[topic] or start.ids.get(topic) != states[topic].id
    }
    kept = {topic: at for topic, at in start.next.items() if not (topic in lost or topic in moved)}
    return StreamOffset(
        grid=choose_grid(
            ((end - begins[topic], sizes[topic]) for topic, end in moved.items()),
            task_bytes=sizing.task_bytes,
            tasks_min=sizing.tasks_min,
            split=sizing.split,
        ),
        from_=({**start.from_, **entering} if start.is_initial else entering),
        ids={
            **{topic: start.ids[topic] for topic in kept},
            **{topic: states[topic].id for topic in moved},
        },
        next={**kept, **moved},
    )


def waiting_rows(start: StreamOffset, states: Mapping[str, TopicState]) -> int:
    """Return how many rows there are behind an offset."""
    return sum(
        max(0, state.frontier - start.next.get(topic, state.earliest))
        for topic, state in states.items()
    )


def _begins(
    start: StreamOffset, states: Mapping[str, TopicState], lost: Mapping[str, DataLoss]
) -> dict[str, int]:
    begins = {}
    for topic, state in states.items():
        position = start.next.get(topic, state.earliest)
        if topic in lost:
            same_life = start.ids[topic] == state.id
            position = min(max(position, state.earliest), state.frontier) if same_life else 0
            position = max(position, state.earliest)
        begins[topic] = position
    return begins


def _ends(
    begins: Mapping[str, int],
    states: Mapping[str, TopicState],
    target: Mapping[str, int] | None,
) -> dict[str, int]:
    ends = {}
    for topic, state in states.items():
        end = state.frontier if target is None else min(state.frontier, target.get(topic, 0))
        ends[topic] = max(end, begins[topic])
    return ends
