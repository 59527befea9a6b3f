"""One message, as the per-message API carries it."""

from collections.abc import Mapping

from msgspec import Struct

DELIVER_AT = "x-deliver-at"
"""Attribute: not before this instant, in milliseconds since 1970."""
DELIVER_AFTER = "x-deliver-after"
"""Attribute: not before so many milliseconds after its publish time."""
TTL = "x-ttl-ms"
"""Attribute: no longer than so many milliseconds after its publish time."""


class Message(Struct, frozen=True, kw_only=True):
    """What a producer sent. Its offset belongs to the topic, not to the message."""

    payload: bytes
    publish_time_ms: int
    producer_name: str
    routing_key: str | None = None
    attributes: Mapping[str, str] | None = None
    schema_id: int | None = None
    schema_version: int | None = None
    wire: bytes | None = None
    """The request's own bytes, kept so that a live delivery needs no encoding."""
