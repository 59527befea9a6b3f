"""Where in a topic to begin: its ends, an offset, or a time."""

from pydanube.errors import InvalidRequest
from pydanube.model.ids import Offset
from pydanube.storage.topic_log import TopicLog

DISORDER_MS = 1_000
"""By how much producers' clocks may differ and the first message of a time still be found."""
_SCAN_BYTES = 1024 * 1024
_DIGITS_MAX = 20


async def start_offset(log: TopicLog, start: str | None) -> Offset:
    """Return where a start position lies: latest unless it says otherwise.

    An offset the topic does not have is the nearest one it has.
    """
    match (start or "latest").split(":", 1):
        case ["latest"]:
            return log.durable_end
        case ["earliest"]:
            return log.first_offset
        case ["offset", number] if _is_number(number):
            return Offset(min(max(int(number), log.first_offset), log.durable_end))
        case ["time", number] if _is_number(number):
            return await offset_at(log, int(number))
        case _:
            raise InvalidRequest(
                f"start position {start!r} is none of earliest, latest, offset:<number>, "
                "time:<milliseconds since 1970>"
            )


async def offset_at(log: TopicLog, time_ms: int) -> Offset:
    """Return the first offset whose message has that publish time or a later one.

    Times come from producers' clocks. It is the first one as long as no message is older by more
    than DISORDER_MS than one before it; else it is a place where times pass `time_ms`. It costs
    a few reads, however long the topic is.
    """
    at = await _crossing(log, time_ms - DISORDER_MS)
    # What lies before is older, what lies behind may be: from here on every row is looked at.
    while pieces := await log.read(at, log.durable_end, bytes_max=_SCAN_BYTES):
        for piece in pieces:
            row = piece.batch.first_published_after(piece.first_row, piece.end_row, time_ms - 1)
            if row is not None:
                return Offset(piece.base + row)
        at = pieces[-1].end
    return at


async def _crossing(log: TopicLog, time_ms: int) -> Offset:
    """Return an offset whose message has that time or a later one, unlike the one before it.

    The first offset if it is as late, the durable end if the last one is not.
    """
    low, high = log.first_offset, log.durable_end
    while low < high:
        middle = Offset((low + high) // 2)
        pieces = await log.read(middle, high, bytes_max=1)
        if not pieces:
            high = middle
            continue
        base, batch = pieces[0].base, pieces[0].batch
        times = batch.record_batch().column("publish_time")
        if times[len(times) - 1].as_py() < time_ms:
            low = Offset(base + batch.count)
        elif times[0].as_py() >= time_ms:
            high = base
        else:
            row = batch.first_published_after(0, batch.count, time_ms - 1)
            assert row is not None, "its last one is"
            return Offset(min(max(base + row, low), high))
    return low


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
