"""A message as a consumer meets it."""

from collections.abc import Mapping
from typing import Any, Generic

from msgspec import Struct
from msgspec.structs import replace

from pydanube.client.codecs import BYTES, Codec, Value


class MessageId(Struct, frozen=True):
    """Names one delivered message; an ack or nack gives it back to the broker unchanged."""

    producer_id: int
    topic: str
    broker_url: str
    """Of the broker, with the mark of the subscription that delivered it."""
    offset: int


class Receipt(Struct, frozen=True):
    """What a broker wants to see when a message is acked or nacked."""

    message_id: MessageId
    request_id: int

    @property
    def offset(self) -> int:
        """The message's place in its topic."""
        return self.message_id.offset


class ReceivedMessage(Struct, Generic[Value], frozen=True, kw_only=True, repr_omit_defaults=True):
    """What a producer sent, and where it lies."""

    message_id: MessageId
    request_id: int
    """The producer's own number for it."""
    payload: bytes
    publish_time_ms: int
    """By the producer's clock, since 1970."""
    producer_name: str
    routing_key: str | None
    attributes: Mapping[str, str]
    schema_id: int | None
    schema_version: int | None
    codec: Codec[Any] = BYTES
    """That of the consumer's type."""

    @property
    def value(self) -> Value:
        """The payload as the consumer's type, decoded anew each time.

        UndecodablePayload if it is none; the message can be acked and nacked all the same.
        """
        value: Value = self.codec.decode(self.payload)
        return value

    def with_codec(self, codec: Codec[Any]) -> "ReceivedMessage[Any]":
        """Return the same message, to be decoded as another type."""
        return replace(self, codec=codec)

    @property
    def receipt(self) -> Receipt:
        """What settles it, without what it holds."""
        return Receipt(self.message_id, self.request_id)

    @property
    def topic(self) -> str:
        """The topic, or the partition, that holds the message."""
        return self.message_id.topic

    @property
    def offset(self) -> int:
        """Its place in that topic: 0, 1, 2 … without gaps; always 0 on a non-reliable topic."""
        return self.message_id.offset


class SentMessage(Struct, frozen=True, gc=False):
    """What the broker has acknowledged."""

    topic: str
    """The topic, or the partition, that took the message."""
    request_id: int
    """The producer's own number for it."""
    offset: int | None
    """Its place in that topic; None where the broker does not tell, as on non-reliable topics."""


class SentBatch(Struct, frozen=True):
    """Messages of a batch that the broker has acknowledged; they lie one after the other."""

    topic: str
    """The topic, or the partition, that took them."""
    offset: int | None
    """Of the first; None where the broker does not tell, as on non-reliable topics."""
    rows: int
