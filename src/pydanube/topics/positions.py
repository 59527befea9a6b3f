"""Where in a topic to begin: its ends, an offset, or a time."""

import pyarrow as pa
import pyarrow.compute as pc

from pydanube.errors import InvalidRequest
from pydanube.model.ids import Offset
from pydanube.storage.topic_log import TopicLog

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

    Times come from producers' clocks. Where they do not grow with the offsets, the answer is one
    of the offsets where they pass `time_ms`. It costs a few reads, however long the topic is.
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
            row: int = pc.index(pc.greater_equal(times, time_ms), pa.scalar(True)).as_py()
            return Offset(min(max(base + row, low), high))
    return low


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
