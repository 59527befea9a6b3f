"""What a read of a topic is made of: ranges checked against what is there, cut into pieces."""

from itertools import pairwise

from pydanube.errors import Conflict, InvalidRequest, NotFound
from pydanube.model.ids import Offset
from pydanube.model.ranges import Range
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


def position_of(log: TopicLog, position: Position) -> Offset:
    """Return the offset a position names; it need not exist."""
    match position:
        case "earliest":
            return log.first_offset
        case "latest":
            return log.durable_end
        case offset:
            return Offset(offset)


def check_range(topic: Topic, start: int, end: int) -> tuple[Offset, Offset]:
    """Return a range that can be read from its first to its last offset; refuse any other."""
    log = log_of(topic)
    if start > end:
        raise InvalidRequest(f"a read from offset {start} to {end} goes backwards")
    if start < log.first_offset or end > log.durable_end:
        raise InvalidRequest(
            f"topic {topic.name} has offsets {log.first_offset} to before {log.durable_end}; "
            f"{start} to before {end} was asked for. Keep messages for longer, begin elsewhere, or "
            "read from earliest to latest"
        )
    return Offset(start), Offset(end)


async def planned_range(
    topic: Topic, command: PlanCommand, *, partitioned: bool
) -> tuple[Offset, Offset] | None:
    """Return what a command wants of one topic; None if it leaves the topic out."""
    log = log_of(topic)
    if command.ranges is not None:
        wanted = command.ranges.get(topic.name)
        return None if wanted is None else check_range(topic, *wanted)
    if partitioned and (isinstance(command.from_, int) or isinstance(command.to, int)):
        raise InvalidRequest(
            f"topic {command.topic} has partitions, and each has offsets of its own; give them as "
            'ranges, such as {"' + topic.name + '": [0, 100]}'
        )
    start, end = position_of(log, command.from_), position_of(log, command.to)
    if command.from_time_ms is not None:
        start = await offset_at(log, command.from_time_ms)
    if command.to_time_ms is not None:
        end = max(start, await offset_at(log, command.to_time_ms))
    return check_range(topic, start, end)


def check_command(command: PlanCommand, names: list[str]) -> None:
    """Refuse a command that says two things at once, or names partitions there are not."""
    given = command.from_ != "earliest" or command.to != "latest"
    timed = command.from_time_ms is not None or command.to_time_ms is not None
    if command.ranges is not None and (given or timed):
        raise InvalidRequest("give either ranges, or from and to")
    for name in command.ranges or ():
        if name not in names:
            raise NotFound(f"topic {command.topic} has no partition {name}")


async def mean_row_bytes(log: TopicLog) -> int:
    """Return about how many bytes a message takes, judged by the last batch there is."""
    if log.durable_end <= log.first_offset:
        return _ROW_BYTES_GUESS
    last = Offset(log.durable_end - 1)
    pieces = log.read_cached(last, log.durable_end) or await log.read(last, log.durable_end)
    if not pieces:
        return _ROW_BYTES_GUESS
    batch = pieces[0].batch
    return max(1, len(batch.data) // batch.count)


def plan_pieces(start: int, end: int, row_bytes: int, piece_bytes: int) -> list[Range]:
    """Cut a range at multiples of a power of two, so that a piece has about `piece_bytes`.

    The same range is always cut alike while rows keep their size.
    """
    rows = max(1, piece_bytes // row_bytes, (end - start) // (PIECES_MAX // 2))
    grid = 1 << (rows.bit_length() - 1)
    cuts = range(start - start % grid + grid, end, grid)
    edges = [start, *cuts, end]
    return [(low, high) for low, high in pairwise(edges) if low < high]
