"""The actions of the batch API as typed calls to one broker; no Arrow is loaded for them."""

from collections.abc import AsyncGenerator
from typing import TypeVar

from msgspec import Struct

from pydanube.client.connection import Connection
from pydanube.errors import DanubeError
from pydanube.wire.calls import CallRefused
from pydanube.wire.flight import service
from pydanube.wire.flight.descriptors import decode, encode
from pydanube.wire.flight.framing import bytes_field, fields

Answer = TypeVar("Answer", bound=Struct)


async def act(connection: Connection, name: str, body: Struct, kind: type[Answer]) -> Answer:
    """Return what a broker answers to an action.

    NotSupported from brokers without Flight, InvalidRequest from those that do not know the action.
    """
    action = bytes_field(1, name.encode()) + bytes_field(2, encode(body))
    replies = connection.open_flight(service.DO_ACTION, action)
    try:
        async for reply in replies:
            for number, value in fields(reply):
                if number == 1 and isinstance(value, memoryview):
                    return decode(kind, bytes(value), "the broker's answer")
    except CallRefused as refusal:
        raise connection.error(refusal) from refusal
    finally:
        if isinstance(replies, AsyncGenerator):
            await replies.aclose()
    raise DanubeError(f"the broker answered nothing to the action {name}")
