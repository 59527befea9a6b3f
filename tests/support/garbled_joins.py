"""Joined segments that are right in every way, but for what some messages hold."""

from collections.abc import Callable, Mapping

from msgspec import structs

from pydanube.model.batch import Batch
from pydanube.model.ids import Offset
from pydanube.model.message import Message
from pydanube.storage.pieces import Piece
from pydanube.storage.segments.decoding import read_layout
from pydanube.storage.segments.encoding import SegmentEncoder, SegmentOrigin

Change = Callable[[list[Message], int], None]
"""Alters the message of that number, and perhaps its neighbour."""


def _swap_payloads(messages: list[Message], at: int) -> None:
    other = at - 1 if at else 1
    one, two = messages[at].payload, messages[other].payload
    messages[at] = structs.replace(messages[at], payload=two)
    messages[other] = structs.replace(messages[other], payload=one)


def _flip_a_bit(messages: list[Message], at: int) -> None:
    payload = bytearray(messages[at].payload)
    payload[-1] ^= 1
    messages[at] = structs.replace(messages[at], payload=bytes(payload))


def _set(**values: object) -> Change:
    def change(messages: list[Message], at: int) -> None:
        messages[at] = structs.replace(messages[at], **values)

    return change


CHANGES: Mapping[str, tuple[str, Change]] = {
    "swapped payloads": ("payload", _swap_payloads),
    "a flipped bit": ("payload", _flip_a_bit),
    "a lost payload": ("payload", _set(payload=b"")),
    "a lost key": ("routing_key", _set(routing_key=None)),
    "an empty key": ("routing_key", _set(routing_key="")),
    "lost attributes": ("attributes", _set(attributes=None)),
    "a lost attribute": ("attributes", _set(attributes={"b": ""})),
    "attributes in another order": ("attributes", _set(attributes={"b": "", "a": "1"})),
    "another producer": ("producer_name", _set(producer_name="q")),
    "a lost schema": ("schema_id and schema_version", _set(schema_id=None, schema_version=None)),
    "another version": ("schema_version", _set(schema_version=2)),
    "another time": ("publish_time", _set(publish_time_ms=1)),
}
"""By name: the columns that differ then, and how they come to. Messages as `rich` makes them."""


def rich(number: int) -> Message:
    """Return a message with everything a message can have."""
    return Message(
        payload=b"message %d" % number,
        publish_time_ms=number * 10,
        producer_name="p",
        routing_key=f"key-{number}",
        attributes={"a": "1", "b": ""},
        schema_id=7,
        schema_version=1,
    )


def garbled(data: bytes, origin: SegmentOrigin, base: int, end: int, at: int, by: Change) -> bytes:
    """Return a joined segment of [base, end) once more, altered at one offset."""
    layout = read_layout(
        data, len(data), topic_id=origin.topic_id, base=Offset(base), rows=end - base
    )
    messages = []
    for number, group in enumerate(layout.groups):
        bytes_of = data[group.position : group.position + group.size]
        for piece in layout.decode(number, bytes_of):
            messages += piece.batch.messages(piece.first_row, piece.end_row)
    by(messages, at - base)
    encoder = SegmentEncoder(origin, Offset(base))
    encoder.add([Piece(Offset(base), Batch.gather(messages), 0, len(messages))])
    return encoder.finish().data
