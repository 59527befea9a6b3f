"""How a range of offsets becomes tasks, and how much of a backlog one batch takes. Pure.

Which rows are in task i follows from the offsets alone: a sink counts the rows of a task, and a
batch that is planned again must be cut alike, whatever has happened to options, clocks and
segments meanwhile. Where a task reads its rows may change; which rows they are may not.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise

from msgspec import Struct

from pydanube.errors import InvalidRequest
from pydanube.spark.source.offsets import StreamOffset

WHOLE = 2**62
"""A grid that cuts nothing."""


class TopicState(Struct, frozen=True, kw_only=True):
    """What a broker says about a physical topic."""

    id: str
    earliest: int
    frontier: int
    row_bytes: int


class Piece(Struct, frozen=True, kw_only=True):
    """What one task reads: offsets [start, end) of one physical topic in one life of it."""

    topic: str
    id: str
    start: int
    end: int

    @property
    def rows(self) -> int:
        """How many offsets it covers."""
        return self.end - self.start


class Limits(Struct, frozen=True, kw_only=True):
    """What one batch may take; None: no limit."""

    rows: int | None = None
    bytes: int | None = None


def plan_pieces(start: StreamOffset | None, end: StreamOffset) -> list[Piece]:
    """Cut what lies between two offsets at multiples of the grid in the second one.

    Topics that enter with `end` begin where it says; `start` says it for the others.
    """
    begins = dict(start.next) if start is not None else {}
    begins |= end.from_
    pieces: list[Piece] = []
    for topic in sorted(end.next):
        if topic not in begins:
            raise InvalidRequest(
                f"the checkpoint does not say where topic {topic} begins; begin with a new one"
            )
        pieces += cut(topic, end.ids[topic], begins[topic], end.next[topic], end.grid)
    return pieces


def cut(topic: str, topic_id: str, start: int, end: int, grid: int) -> list[Piece]:
    """Cut one range; nothing if it is empty, or goes backwards since its start was asked anew."""
    if start >= end:
        return []
    assert grid > 0, "an offset with rows has a grid"
    edges = [start, *range(start - start % grid + grid, end, grid), end]
    return [Piece(topic=topic, id=topic_id, start=low, end=high) for low, high in pairwise(edges)]


def choose_grid(
    ranges: Iterable[tuple[int, int]], *, task_bytes: int, tasks_min: int | None, split: bool
) -> int:
    """Return rows per task for (rows, bytes of a row) per topic: a power of two."""
    if not split:
        return WHOLE
    found = list(ranges)
    rows = sum(count for count, _ in found)
    size = sum(count * each for count, each in found)
    if rows == 0:
        return WHOLE
    wanted = max(1, task_bytes * rows // max(1, size))
    if tasks_min is not None:
        wanted = min(wanted, max(1, rows // tasks_min))
    return min(WHOLE, 1 << (wanted.bit_length() - 1))


def admit(
    starts: Mapping[str, int],
    ends: Mapping[str, int],
    row_bytes: Mapping[str, int],
    limits: Limits,
) -> dict[str, int]:
    """Return how far each topic may be read: everything, or its share of what the limits allow.

    Shares go by backlog, and every topic with a backlog gets at least a row, so that none
    starves behind a busy one. Never goes back.
    """
    backlog = {topic: max(0, end - starts.get(topic, end)) for topic, end in ends.items()}
    rows = sum(backlog.values())
    size = sum(count * row_bytes[topic] for topic, count in backlog.items())
    part, whole = 1, 1
    for allowed, there in ((limits.rows, rows), (limits.bytes, size)):
        if allowed is not None and there > allowed and allowed * whole < part * there:
            part, whole = allowed, there
    reached = {}
    for topic, end in ends.items():
        start = starts.get(topic, end)
        share = backlog[topic] * part // whole
        reached[topic] = start + max(share, min(1, backlog[topic]))
    return reached
