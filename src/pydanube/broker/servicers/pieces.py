"""Reading a range of a topic for whoever sends it: a consumer's stream, or a reader without one."""

from collections.abc import AsyncIterator, Callable

from pydanube.model.ids import Offset
from pydanube.storage.topic_log import Piece, TopicLog

Missing = Callable[[Offset, Offset], None]
"""Is told of offsets that hold nothing any more; it may raise to end the reading."""


async def read_pieces(
    log: TopicLog, start: Offset, end: Offset, missing: Missing
) -> AsyncIterator[Piece]:
    """Yield the pieces of [start, end) in order, wherever they are; `end` must be durable.

    No more is read ahead than the log gives at once.
    """
    while start < end:
        pieces = log.read_cached(start, end) or await log.read(start, end)
        if not pieces or pieces[0].start > start:
            found = pieces[0].start if pieces else end
            missing(start, found)
            start = found
        for piece in pieces:
            if piece.start != start:
                break  # The rest lies behind a hole; it is read again from there.
            yield piece
            start = piece.end
