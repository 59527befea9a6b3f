"""What a dead letter says of where it comes from, and what is left of that when it goes back. Pure.

The names of the origin are Danube's.
"""

from collections.abc import Mapping
from typing import Final

from pydanube.model.message import DELIVER_AFTER, DELIVER_AT, TTL

ORIGINAL_TOPIC: Final = "x-original-topic"
ORIGINAL_SUBSCRIPTION: Final = "x-original-subscription"
ORIGINAL_OFFSET: Final = "x-original-topic-offset"
ORIGINAL_PRODUCER: Final = "x-original-producer-id"
ORIGINAL_BROKER: Final = "x-original-broker-addr"
POISON_POLICY: Final = "x-poison-policy"
ATTEMPTS: Final = "x-delivery-attempt"
REASON: Final = "x-failure-reason"

REQUEUED_FROM: Final = "x-requeued-from"
"""The dead letter that was put back last: its topic and offset."""
REQUEUE_COUNT: Final = "x-requeue-count"
"""How often the message has been put back."""
FIRST_PUBLISHED: Final = "x-original-publish-time"
"""When the message was published for the first time."""

_TIMES = (DELIVER_AT, DELIVER_AFTER, TTL)
_OF_THE_FAILURE = frozenset(
    {
        ORIGINAL_TOPIC,
        ORIGINAL_SUBSCRIPTION,
        ORIGINAL_OFFSET,
        ORIGINAL_PRODUCER,
        ORIGINAL_BROKER,
        POISON_POLICY,
        ATTEMPTS,
        REASON,
    }
)


def kept_aside(name: str) -> str:
    """Return the name under which a dead letter keeps what the original said about its time."""
    return f"x-original-{name.removeprefix('x-')}"


def requeued_attributes(
    attributes: Mapping[str, str], dead_letter: str, published_ms: int
) -> dict[str, str]:
    """Return the attributes of a dead letter that is put back: its own, and how it got there.

    What its failure has added is taken away. It is wanted now, so it waits for nothing; the time
    it may live counts anew, from now.
    """
    aside = {kept_aside(name) for name in _TIMES}
    own = {
        name: value
        for name, value in attributes.items()
        if name not in _OF_THE_FAILURE and name not in aside
    }
    lives = attributes.get(kept_aside(TTL))
    if lives is not None:
        own[TTL] = lives
    own.setdefault(FIRST_PUBLISHED, str(published_ms))
    own[REQUEUED_FROM] = dead_letter
    own[REQUEUE_COUNT] = str(_count(own.get(REQUEUE_COUNT)) + 1)
    return own


def _count(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else 0
