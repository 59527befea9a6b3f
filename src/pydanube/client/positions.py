"""Positions in a topic as people write them."""

from datetime import datetime

from pydanube.errors import InvalidRequest


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
    if instant.tzinfo is None:
        raise InvalidRequest(f"{value} says no time zone: add Z, or an offset such as +02:00")
    return f"time:{round(instant.timestamp() * 1000)}"
