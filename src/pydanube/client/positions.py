"""Positions in a topic as people write them."""

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from pydanube.errors import InvalidRequest

if TYPE_CHECKING:
    from pydanube.wire.flight.descriptors import Position

_OFFSET_MAX = 2**63 - 1


class AtTime(Struct, frozen=True):
    """The first message that was published at a time or later."""

    time_ms: int


def reader_position(position: int | str | datetime) -> "Position | AtTime":
    """Read where a reader shall begin or end: an offset, a time, or what `read_position` takes."""
    if isinstance(position, bool) or not isinstance(position, int | str | datetime):
        raise InvalidRequest(
            f"{position!r} is no position: give an offset, a datetime, earliest, latest or time:T"
        )
    if isinstance(position, int):
        return _offset(position)
    if isinstance(position, datetime):
        return _at_time(_milliseconds(position))
    match read_position(position).split(":"):
        case ["time", number]:
            return _at_time(int(number))
        case ["offset", number]:
            return _offset(int(number))
        case ["earliest"]:
            return "earliest"
        case _:
            return "latest"


def _offset(offset: int) -> int:
    if not 0 <= offset <= _OFFSET_MAX:
        raise InvalidRequest(f"an offset is 0 to {_OFFSET_MAX}, not {offset}")
    return offset


def _at_time(time_ms: int) -> AtTime:
    if not 0 <= time_ms <= _OFFSET_MAX:
        raise InvalidRequest(f"a time is 0 to {_OFFSET_MAX} ms since 1970, not {time_ms}")
    return AtTime(time_ms)


def read_position(text: str) -> str:
    """Return a position as brokers read it, with times in milliseconds since 1970.

    It is earliest, latest, offset:N or time:T, where T is such a number or ISO 8601.
    """
    kind, colon, value = text.partition(":")
    if kind in {"earliest", "latest"} and not colon:
        return text
    if kind in {"offset", "time"} and value.isascii() and value.isdecimal():
        return text
    if kind != "time":
        raise InvalidRequest(f"{text!r} is no position: write earliest, latest, offset:N or time:T")
    try:
        instant = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidRequest(
            f"{value!r} is no time: write milliseconds since 1970, or 2026-01-31T12:00:00Z"
        ) from None
    return f"time:{_milliseconds(instant)}"


def _milliseconds(instant: datetime) -> int:
    if instant.tzinfo is None:
        raise InvalidRequest(f"{instant} says no time zone: add Z, or an offset such as +02:00")
    return round(instant.timestamp() * 1000)
