"""Where exhausted messages go: the sink is filled in by the broker, which can publish anywhere."""

from typing import Protocol

from msgspec import Struct, structs

from pydanube.model.dead_letters import (
    ATTEMPTS,
    ORIGINAL_BROKER,
    ORIGINAL_OFFSET,
    ORIGINAL_PRODUCER,
    ORIGINAL_SUBSCRIPTION,
    ORIGINAL_TOPIC,
    POISON_POLICY,
    REASON,
    kept_aside,
)
from pydanube.model.ids import Offset
from pydanube.model.message import Message
from pydanube.model.timing import TIMING_ATTRIBUTES


class DeadLetterOrigin(Struct, frozen=True, kw_only=True):
    """Where a dead letter comes from, and why."""

    topic: str
    subscription: str
    offset: Offset
    producer_id: int
    broker_url: str
    attempts: int
    reason: str | None


class DeadLetterSink(Protocol):
    """Publishes dead letters."""

    async def store(self, target: str, message: Message) -> None:
        """Return once the message is durable in the topic `target`; DanubeError otherwise."""


def dead_letter(message: Message, origin: DeadLetterOrigin) -> Message:
    """Return the message to publish: the original with its origin in the attributes.

    What the original said about its time is kept under other names: a dead letter waits for
    nothing, and must not expire before somebody has seen it.
    """
    attributes = {
        kept_aside(name) if name in TIMING_ATTRIBUTES else name: value
        for name, value in (message.attributes or {}).items()
    } | _origin_attributes(origin)
    return structs.replace(message, attributes=attributes, wire=None)


def _origin_attributes(origin: DeadLetterOrigin) -> dict[str, str]:
    attributes = {
        ORIGINAL_TOPIC: origin.topic,
        ORIGINAL_SUBSCRIPTION: origin.subscription,
        ORIGINAL_OFFSET: str(origin.offset),
        ORIGINAL_PRODUCER: str(origin.producer_id),
        ORIGINAL_BROKER: origin.broker_url,
        POISON_POLICY: "dead_letter",
        ATTEMPTS: str(origin.attempts),
    }
    if origin.reason is not None:
        attributes[REASON] = origin.reason
    return attributes
