"""Sizes, lengths of time and instants as people write them in options. Pure."""

import re
from datetime import UTC, datetime

from pydanube.errors import InvalidRequest

_BYTES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.ASCII | re.IGNORECASE)

_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.ASCII | re.IGNORECASE)
_NUMBER = re.compile(r"\d+", re.ASCII)


def read_size(text: str) -> int:
    """Return a number of bytes: `64m`, `1g`, `1048576`; at least 1."""
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) * _BYTES[match[2].lower()] if match else 0
    if size < 1:
        raise InvalidRequest(f"{text!r} is no size; write it as 64m, 1g or a number of bytes")
    return size


def read_duration_ms(text: str) -> int:
    """Return milliseconds: `15m`, `7d`, `500ms`."""
    match = _LENGTH.fullmatch(text.strip())
    if match is None:
        raise InvalidRequest(f"{text!r} is no length of time; write it as 500ms, 30s, 15m or 7d")
    return int(float(match[1]) * _MS[match[2].lower()])


def read_instant_ms(text: str, now_ms: int) -> int:
    """Return milliseconds since 1970: ISO-8601 (UTC unless it says), epoch ms, or `-10m`."""
    text = text.strip()
    if text.startswith("-"):
        return max(0, now_ms - read_duration_ms(text[1:]))
    if _NUMBER.fullmatch(text):
        return int(text)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"{text!r} is no time; write it as 2026-11-15T08:00:00Z, as milliseconds since 1970, "
            "or relative to now as -10m"
        ) from None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return max(0, int(instant.timestamp() * 1000))
