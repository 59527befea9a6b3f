"""What a read of a topic is made of: ranges checked against what is there, cut into pieces."""

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from pydanube.errors import Conflict, InvalidRequest, NotFound
from pydanube.model.ids import Offset
from pydanube.storage.segments.catalog import SegmentEntry
from pydanube.storage.topic_log import TopicLog
from pydanube.topics.positions import offset_at
from pydanube.topics.topic import Topic
from pydanube.wire.flight.descriptors import PlanCommand, Position

PIECES_MAX = 10_000
_ROW_BYTES_GUESS = 1024


def log_of(topic: Topic) -> TopicLog:
    """Return where a topic's messages are; Conflict for one that keeps none."""
    if topic.log is None:
        raise Conflict(
            f"topic {topic.name} is not reliable: it keeps no messages, so there are no offsets "
            "to read; consume it through a subscription (DoExchange)"
        )
    return topic.log


def topic_id(topic: Topic) -> str:
    """Return the id of this life of a topic, as callers see it."""
    return str(topic.record.id)


def check_id(topic: Topic, expected: str | None) -> None:
    """Refuse a caller who means an earlier topic of the same name."""
    if expected is not None and expected != topic_id(topic):
        raise NotFound(
            f"topic {topic.name} with id {expected} is gone; the topic of that name now has id "
            f"{topic_id(topic)}"
        )


class Bounds(Struct, frozen=True):
    """What a topic had at the moment a plan was made."""

    first: Offset
    end: Offset

    def of(self, position: Position) -> Offset:
        """Return the offset a position names; it need not exist."""
        match position:
            case "earliest":
                return self.first
            case "latest":
                return self.end
            case offset:
                return Offset(offset)


def bounds_of(log: TopicLog) -> Bounds:
    """Return what a topic has now."""
    return Bounds(log.first_offset, log.durable_end)


def position_of(log: TopicLog, position: Position) -> Offset:
    """Return the offset a position names; it need not exist."""
    return bounds_of(log).of(position)


def check_range(topic: Topic, start: int, end: int) -> tuple[Offset, Offset]:
    """Return a range that can be read from its first to its last offset; refuse any other."""
    log = log_of(topic)
    if start > end:
        raise InvalidRequest(f"a read from offset {start} to {end} goes backwards")
    if start < log.first_offset or end > log.durable_end:
        raise InvalidRequest(
            f"topic {topic.name} has offsets {log.first_offset} to before "
            f"{log.durable_end}, not {start} to before {end}. Keep messages for longer, "
            "begin elsewhere, or read from earliest to latest"
        )
    return Offset(start), Offset(end)


async def planned_range(
    topic: Topic, bounds: Bounds, command: PlanCommand, *, several: bool
) -> tuple[Offset, Offset]:
    """Return what a command wants of one topic that it does not leave out."""
    log = log_of(topic)
    if command.ranges is not None:
        return check_range(topic, *command.ranges[topic.name])
    if several and (isinstance(command.from_, int) or isinstance(command.to, int)):
        raise InvalidRequest(
            f"{command.topic or command.pattern} has partitions or stands for several topics, and "
            "each has offsets of its own; give them as ranges, such as "
            '{"' + topic.name + '": [0, 100]}'
        )
    start, end = bounds.of(command.from_), bounds.of(command.to)
    if command.from_time_ms is not None:
        start = min(await offset_at(log, command.from_time_ms), bounds.end)
    if command.to_time_ms is not None:
        end = min(max(start, await offset_at(log, command.to_time_ms)), bounds.end)
    return check_range(topic, start, end)


def check_command(command: PlanCommand, names: list[str]) -> None:
    """Refuse a command that says two things at once, or names partitions there are not."""
    given = command.from_ != "earliest" or command.to != "latest"
    timed = command.from_time_ms is not None or command.to_time_ms is not None
    if command.ranges is not None and (given or timed):
        raise InvalidRequest("give either ranges, or from and to")
    for name in command.ranges or ():
        if name not in names:
            raise NotFound(f"topic {command.topic or command.pattern} has no partition {name}")


def segments_of(log: TopicLog) -> Sequence[SegmentEntry]:
    """Return the segments a topic has, in offset order."""
    return log.segments.entries() if log.segments is not None else ()


async def mean_row_bytes(log: TopicLog) -> int:
    """Return about how many bytes a message takes, judged by the last batch there is."""
    if log.durable_end <= log.first_offset:
        return _ROW_BYTES_GUESS
    segments = segments_of(log)
    if segments and segments[-1].end == log.durable_end and segments[-1].rows:
        # The catalogue knows, so that idle callers do not read the segment store for ever.
        return max(1, segments[-1].raw_bytes // segments[-1].rows)
    last = Offset(log.durable_end - 1)
    pieces = log.read_cached(last, log.durable_end) or await log.read(last, log.durable_end)
    if not pieces:
        return _ROW_BYTES_GUESS
    batch = pieces[0].batch
    return max(1, len(batch.data) // batch.count)


class PlannedPiece(Struct, frozen=True):
    """A part of a planned read."""

    start: int
    end: int
    bytes: int
    """About."""
    segment: str | None = None
    """The key of the segment that holds all of it, if one does."""

    @property
    def rows(self) -> int:
        """How many offsets it covers."""
        return self.end - self.start


def plan_pieces(
    start: int, end: int, row_bytes: int, piece_bytes: int, segments: Sequence[SegmentEntry] = ()
) -> list[PlannedPiece]:
    """Cut a range where segments end, and where pieces become larger than about `piece_bytes`.

    Between the ends of segments, cuts lie at multiples of a power of two: the same range is cut
    alike while rows keep their size.
    """
    pieces: list[PlannedPiece] = []
    spare = max(1, PIECES_MAX - len(segments))
    rows_min = -(-(end - start) // spare)
    at = start
    for segment in segments:
        if segment.end <= at or segment.base >= end:
            continue
        pieces += _cut(at, min(max(segment.base, at), end), row_bytes, piece_bytes, rows_min)
        low, at = max(segment.base, at), min(segment.end, end)
        weight = max(1, segment.raw_bytes // max(1, segment.rows))
        key = segment.key or None
        pieces += _cut(low, at, weight, piece_bytes, rows_min, key)
    return pieces + _cut(at, end, row_bytes, piece_bytes, rows_min)


def _cut(
    start: int,
    end: int,
    row_bytes: int,
    piece_bytes: int,
    rows_min: int,
    segment: str | None = None,
) -> list[PlannedPiece]:
    rows = max(1, piece_bytes // row_bytes)
    grid = 1 << (rows.bit_length() - 1)
    while grid < rows_min:
        grid *= 2
    edges = [start, *range(start - start % grid + grid, end, grid), end]
    return [
        PlannedPiece(low, high, (high - low) * row_bytes, segment)
        for low, high in pairwise(edges)
        if low < high
    ]
