"""Reads the common form of SendMessage by hand, for half the price of a protobuf object.

Every known encoder writes fields in the order of their numbers, and nearly every message has a
payload, a time and a name, perhaps a key and our own numbers, and nothing else. What looks any
different is left to protobuf, which also judges what is malformed.
"""

from google.protobuf.message import DecodeError

from pydanube.model.message import Message
from pydanube.model.sequences import SEQUENCE_MAX, MessageSequence
from pydanube.wire.danube.generated import DanubeApi_pb2 as api

PUBLISH_TIME_MS_MAX = 2**63 - 1

_REQUEST_ID, _MSG_ID, _PAYLOAD, _PUBLISH_TIME = 0x08, 0x12, 0x1A, 0x20
_PRODUCER_NAME, _ROUTING_KEY = 0x2A, 0x52
_SEQUENCE, _PREVIOUS, _SESSION = b"\xa0\x06", b"\xa8\x06", b"\xb0\x06"
_KNOWN_MAX = 4096

Sender = tuple[int, str]
"""Producer id and topic name."""

# A producer sends the same msg_id and name with every message, so they are decoded once.
_senders: dict[bytes, Sender] = {}
_names: dict[bytes, str] = {}


Scanned = tuple[int, Sender, Message, MessageSequence | None]
"""Request id, sender, message, and the message's number."""


def scan_send_request(data: bytes) -> Scanned | None:
    """Return what a request says; None if it needs a full parse."""
    try:
        return _scan(data)
    except (IndexError, UnicodeDecodeError, DecodeError):
        return None


def _scan(data: bytes) -> Scanned | None:
    request_id, position = 0, 0
    if data[0] == _REQUEST_ID:
        request_id, position = _varint(data, 1)
    if data[position] != _MSG_ID:
        return None
    length, start = _varint(data, position + 1)
    position = start + length
    encoded = data[start:position]
    sender = _senders.get(encoded) or _sender(encoded)
    if data[position] != _PAYLOAD:
        return None
    length, start = _varint(data, position + 1)
    position = start + length
    payload = data[start:position]
    if data[position] != _PUBLISH_TIME:
        return None
    publish_time, position = _varint(data, position + 1)
    if data[position] != _PRODUCER_NAME or publish_time > PUBLISH_TIME_MS_MAX:
        return None
    length, start = _varint(data, position + 1)
    position = start + length
    encoded = data[start:position]
    name = _names.get(encoded) or _name(encoded)
    routing_key = number = None
    if position != len(data):
        if data[position] == _ROUTING_KEY:
            length, start = _varint(data, position + 1)
            position = start + length
            routing_key = data[start:position].decode()
        if position != len(data):
            number, position = _number(data, position)
            if position != len(data):
                return None
    return (
        request_id,
        sender,
        Message(
            payload=payload,
            publish_time_ms=publish_time,
            producer_name=name,
            routing_key=routing_key,
            wire=data,
        ),
        number,
    )


def _number(data: bytes, position: int) -> tuple[MessageSequence | None, int]:
    """Return the message's number and the position behind it; without one, the same position."""
    start = position
    if data[position : position + 2] != _SEQUENCE:
        return None, start
    sequence, position = _varint(data, position + 2)
    previous = session = None
    if data[position : position + 2] == _PREVIOUS:
        previous, position = _varint(data, position + 2)
    if data[position : position + 2] == _SESSION:
        session, position = _varint(data, position + 2)
    if max(sequence, previous or 0, session or 0) > SEQUENCE_MAX:
        return None, start
    return MessageSequence(sequence, previous, session), position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number and the position behind it."""
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    number = byte & 0x7F
    shift = 7
    while True:
        position += 1
        byte = data[position]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position + 1
        shift += 7
        if shift > 63:
            raise IndexError("too long for a varint")


def _sender(encoded: bytes) -> Sender:
    message_id = api.MsgID.FromString(encoded)
    if len(_senders) >= _KNOWN_MAX:
        _senders.clear()
    sender = _senders[encoded] = (message_id.producer_id, message_id.topic_name)
    return sender


def _name(encoded: bytes) -> str:
    if len(_names) >= _KNOWN_MAX:
        _names.clear()
    name = _names[encoded] = encoded.decode()
    return name
