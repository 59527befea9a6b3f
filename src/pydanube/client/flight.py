"""The batch API as typed calls to one broker: our own types in and out, errors by their kind."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Literal

import pyarrow as pa
from msgspec import Struct

from pydanube.client.connection import Connection, Subscription
from pydanube.client.frames import Rows
from pydanube.errors import DanubeError
from pydanube.model.batch import SCHEMA
from pydanube.model.policies import SubscriptionType
from pydanube.wire.calls import Body, CallRefused, whole
from pydanube.wire.flight import service
from pydanube.wire.flight.convert import SCHEMA_MESSAGE
from pydanube.wire.flight.descriptors import (
    AcksDurable,
    BatchNumbers,
    BatchPlace,
    ConsumerSays,
    Delivered,
    OffsetsAction,
    Position,
    PublishCommand,
    PutAnswer,
    SubscribeCommand,
    Ticket,
    TopicOffset,
    decode,
    encode,
)
from pydanube.wire.flight.framing import (
    COMMAND,
    Descriptor,
    bytes_field,
    encapsulate,
    fields,
    flight_data,
    metadata_only,
    read_flight_data,
    write_descriptor,
)

_Type = Literal["exclusive", "shared", "failover", "key_shared"]
_TYPES: dict[SubscriptionType, _Type] = {
    "Exclusive": "exclusive",
    "Shared": "shared",
    "Failover": "failover",
    "KeyShared": "key_shared",
}


class MessageBatch(Rows, frozen=True):
    """Messages that lie one after the other in a topic."""


class _Offsets(Struct, frozen=True):
    """What the action `offsets` answers."""

    topics: dict[str, TopicOffset]


def batch_message(packed: memoryview, first_sequence: int | None) -> Body:
    """Return rows, packed as one Arrow message, as `put` sends them.

    Rows with the same numbers of the same producer are stored once. None: not numbered.
    """
    numbers = b""
    if first_sequence is not None:
        numbers = encode(BatchNumbers(first_sequence=first_sequence))
    return flight_data(packed, numbers)


async def put(
    connection: Connection, command: PublishCommand, batches: AsyncIterator[Body]
) -> AsyncGenerator[int | None, None]:
    """Publish batches, and iterate over the offsets of their first rows, in their order.

    Each comes once its batch is as durable as the topic promises. The first refusal ends it.
    """
    descriptor = write_descriptor(Descriptor(COMMAND, command=encode(command)))

    async def requests() -> AsyncIterator[Body]:
        yield bytes_field(1, descriptor) + whole(flight_data(SCHEMA_MESSAGE))
        async for batch in batches:
            yield batch

    async with aclosing(_replies(connection, service.DO_PUT, requests())) as replies:
        async for reply in replies:
            for number, value in fields(reply):
                if number == 1 and isinstance(value, memoryview):
                    answer = decode(PutAnswer, bytes(value), "the broker's answer")
                    if answer.result != "overlap":  # The refusal that follows says it.
                        yield answer.offset


async def get(
    connection: Connection, topic: str, start: Position, end: Position
) -> AsyncGenerator[MessageBatch, None]:
    """Read the messages of one topic or partition from `start` up to before `end`."""
    ticket = bytes_field(1, encode(Ticket(topic=topic, from_=start, to=end)))
    async for reply in _replies(connection, service.DO_GET, ticket):
        data = read_flight_data(reply)
        if not data.app_metadata:
            continue  # The schema, which is known.
        place = decode(BatchPlace, data.app_metadata, "the place of a batch")
        message = pa.py_buffer(encapsulate(data.header, data.body))
        yield MessageBatch(topic, place.offset, pa.ipc.read_record_batch(message, SCHEMA))


async def offset_at(connection: Connection, topic: str, time_ms: int) -> int:
    """Return the offset of the first message published at a time or later, or the next one."""
    body = encode(OffsetsAction(topics=[topic], time_ms=time_ms))
    action = bytes_field(1, b"offsets") + bytes_field(2, body)
    async for reply in _replies(connection, service.DO_ACTION, action):
        for number, value in fields(reply):
            if number == 1 and isinstance(value, memoryview):
                answer = decode(_Offsets, bytes(value), "the broker's answer")
                if topic in answer.topics:
                    return answer.topics[topic].offset
    raise DanubeError(f"the broker did not tell the offset of {topic} at {time_ms}")


async def exchange(
    connection: Connection,
    topic: str,
    subscription: Subscription,
    credit: int,
    says: AsyncIterator[ConsumerSays],
) -> AsyncGenerator[tuple[Delivered, pa.RecordBatch] | tuple[AcksDurable, None], None]:
    """Join a subscription: what the consumer says goes out, batches and notices come in."""
    command = SubscribeCommand(
        topic=topic,
        subscription=subscription.name,
        consumer=subscription.consumer_name,
        type=_TYPES[subscription.type],
        start_position=subscription.start_position,
        key_filters=tuple(subscription.key_filters),
        credit=credit,
    )
    descriptor = write_descriptor(Descriptor(COMMAND, command=encode(command)))

    async def requests() -> AsyncIterator[Body]:
        yield bytes_field(1, descriptor)
        async for said in says:
            yield metadata_only(encode(said))

    async for reply in _replies(connection, service.DO_EXCHANGE, requests()):
        data = read_flight_data(reply)
        if data.body:
            message = pa.py_buffer(encapsulate(data.header, data.body))
            rows = pa.ipc.read_record_batch(message, SCHEMA)
            yield decode(Delivered, data.app_metadata, "what was delivered"), rows
        elif data.app_metadata:
            yield decode(AcksDurable, data.app_metadata, "a notice of acks"), None


async def _replies(
    connection: Connection, path: str, request: bytes | AsyncIterator[Body]
) -> AsyncGenerator[bytes, None]:
    replies = connection.open_flight(path, request)
    try:
        async for reply in replies:
            yield reply
    except CallRefused as refusal:
        raise connection.error(refusal) from refusal
    finally:
        if isinstance(replies, AsyncGenerator):
            await replies.aclose()
