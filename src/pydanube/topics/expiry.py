"""Finds how far the messages of a topic have outlived their time."""

from pydanube.model.ids import Offset
from pydanube.storage.topic_log import Piece, TopicLog

READ_BYTES_MAX = 64 * 1024 * 1024
"""How much is read at once for this; what is left is looked at next time."""


async def first_unexpired(log: TopicLog, start: Offset, limit_ms: int) -> Offset:
    """Return the first offset from `start` on that was published after `limit_ms`.

    Everything before it may be taken for expired. It may be too low, never too high.
    """
    at, left = start, READ_BYTES_MAX
    while at < log.durable_end and left > 0:
        entry = log.segments.find(at) if log.segments is not None else None
        if entry is not None and (entry.is_lost or entry.max_time_ms <= limit_ms):
            at = entry.end  # What the catalogue says of a segment spares reading it.
            continue
        pieces = await log.read(at, log.durable_end)
        if not pieces:
            break
        for piece in pieces:
            left -= piece.size_bytes
            young = _first_younger(piece, limit_ms)
            if young is not None:
                return young
            at = piece.end
    return at


def _first_younger(piece: Piece, limit_ms: int) -> Offset | None:
    row = piece.batch.first_published_after(piece.first_row, piece.end_row, limit_ms)
    return None if row is None else Offset(piece.base + row)
