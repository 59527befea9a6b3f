"""Messages of the per-message API, to and from the model.

A delivery is the publish request's own bytes with a suffix: protobuf reads concatenated messages
as one, the later fields winning and sub-messages merging, so nothing is encoded anew.
"""

from functools import lru_cache

from msgspec import Struct

from pydanube.model.message import Message
from pydanube.model.sequences import MessageSequence
from pydanube.wire.calls import CallRefused, StatusCode
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.danube.send_scan import PUBLISH_TIME_MS_MAX, scan_send_request
from pydanube.wire.danube.services import decode

DELIVERY_ATTEMPT_ATTRIBUTE = "x-delivery-attempt"

ATTRIBUTES_MAX = 64
ROUTING_KEY_CHARACTERS_MAX = 1024
# Clients read 4 MiB at most; the default payload limit leaves 64 KiB for the rest of a delivery.
BYTES_BESIDE_PAYLOAD_MAX = 32 * 1024

_VARINT_BYTES_MAX = 10

# Tags: field number and wire type (0 varint, 2 length-delimited).
_REQUEST_ID = b"\x08"
_REPLY_TOPIC_OFFSET = b"\xa0\x06"
_MSG_ID = b"\x12"
_MSG_ID_TOPIC_NAME = b"\x12"
_MSG_ID_BROKER_ADDR = b"\x1a"
_MSG_ID_TOPIC_OFFSET = b"\x28"
_SUBSCRIPTION_NAME = b"\x32"
_ATTRIBUTE = b"\x3a"
_ATTRIBUTE_KEY = b"\x0a"
_ATTRIBUTE_VALUE = b"\x12"


class SendRequest(Struct, frozen=True):
    """A publish: the message, and whom it says it comes from."""

    request_id: int
    producer_id: int
    topic_name: str
    message: Message
    number: MessageSequence | None = None
    """What makes a message that is sent twice known as such."""


def read_send_request(data: bytes) -> SendRequest:
    """Return what SendMessage carried; `message.wire` is `data` itself.

    Refuses what no consumer could be sent. The payload's size is the topic's policy, not ours.
    """
    scanned = scan_send_request(data)
    if scanned is None:
        return _parse_send_request(data)
    request_id, (producer_id, topic_name), message, number = scanned
    _check_limits(len(data) - len(message.payload), 0, message.routing_key)
    return SendRequest(request_id, producer_id, topic_name, message, number)


def _parse_send_request(data: bytes) -> SendRequest:
    proto = decode(api.StreamMessage, data)
    if not proto.HasField("msg_id"):
        raise _invalid("the message has no msg_id; send the producer_id CreateProducer returned")
    payload = proto.payload
    routing_key = proto.routing_key if proto.HasField("routing_key") else None
    _check_limits(len(data) - len(payload), len(proto.attributes), routing_key)
    if proto.publish_time > PUBLISH_TIME_MS_MAX:
        raise _invalid(f"publish_time {proto.publish_time} is not in milliseconds since 1970")
    return SendRequest(
        proto.request_id,
        proto.msg_id.producer_id,
        proto.msg_id.topic_name,
        Message(
            payload=payload,
            publish_time_ms=proto.publish_time,
            producer_name=proto.producer_name,
            routing_key=routing_key,
            attributes=dict(proto.attributes) or None,
            schema_id=proto.schema_id if proto.HasField("schema_id") else None,
            schema_version=proto.schema_version if proto.HasField("schema_version") else None,
            wire=data,
        ),
        _number(proto),
    )


def _number(proto: api.StreamMessage) -> MessageSequence | None:
    if not proto.HasField("producer_sequence"):
        return None
    return MessageSequence(
        proto.producer_sequence,
        proto.previous_sequence if proto.HasField("previous_sequence") else None,
        proto.producer_session if proto.HasField("producer_session") else None,
    )


def encode_message(message: Message, producer_id: int, topic: str, broker_url: str) -> bytes:
    """Return a message as its producer could have sent it; append a suffix to deliver it."""
    return api.StreamMessage(
        msg_id=api.MsgID(producer_id=producer_id, topic_name=topic, broker_addr=broker_url),
        payload=message.payload,
        publish_time=message.publish_time_ms,
        producer_name=message.producer_name,
        attributes=message.attributes,
        schema_id=message.schema_id,
        schema_version=message.schema_version,
        routing_key=message.routing_key,
    ).SerializeToString()


def delivered_place(message: bytes) -> tuple[str, int]:
    """Return the subscription and offset of a message as it was delivered."""
    found = api.StreamMessage.FromString(message)
    return found.subscription_name, found.msg_id.topic_offset


def settled_place(request: bytes) -> tuple[str, int]:
    """Return the subscription and offset of an ack or a nack; both have them in the same places."""
    found = api.AckRequest.FromString(request)
    return found.subscription_name, found.msg_id.topic_offset


def encode_send_response(request_id: int, offset: int | None) -> bytes:
    """Return the reply to SendMessage; non-reliable topics give no offset."""
    reply = _REQUEST_ID + _varint(request_id)
    return reply if offset is None else reply + _REPLY_TOPIC_OFFSET + _varint(offset)


def delivery_suffix(
    topic: str, offset: int | None, subscription: str, attempt: int, address: str | None = None
) -> bytes:
    """Return the bytes that turn a publish request into a delivery.

    They name the topic subscribed to, the subscription, the offset (None on non-reliable topics),
    the address to be given back with an ack, if any, and, from the second attempt on, the attempt;
    all else stays as the producer sent it.
    """
    openings, subscription_field = _fixed_parts(topic, subscription, address)
    number = b"" if offset is None else _varint(offset)
    suffix = openings[len(number)] + number + subscription_field
    return suffix if attempt <= 1 else suffix + _attempt_field(attempt)


@lru_cache(maxsize=4096)
def _fixed_parts(
    topic: str, subscription: str, address: str | None
) -> tuple[tuple[bytes, ...], bytes]:
    """Return msg_id up to the offset's digits, by their number, and the subscription's field."""
    place = _delimited(_MSG_ID_TOPIC_NAME, topic.encode())
    if address is not None:
        place += _delimited(_MSG_ID_BROKER_ADDR, address.encode())
    openings = [_delimited(_MSG_ID, place)]
    for digits in range(1, _VARINT_BYTES_MAX + 1):
        length = len(place) + len(_MSG_ID_TOPIC_OFFSET) + digits
        openings.append(_MSG_ID + _varint(length) + place + _MSG_ID_TOPIC_OFFSET)
    return tuple(openings), _delimited(_SUBSCRIPTION_NAME, subscription.encode())


@lru_cache(maxsize=1024)
def _attempt_field(attempt: int) -> bytes:
    key = _delimited(_ATTRIBUTE_KEY, DELIVERY_ATTEMPT_ATTRIBUTE.encode())
    return _delimited(_ATTRIBUTE, key + _delimited(_ATTRIBUTE_VALUE, b"%d" % attempt))


def _delimited(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _ONE_BYTE[number]
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_ONE_BYTE = tuple(bytes([number]) for number in range(0x80))


def _check_limits(bytes_beside_payload: int, attributes: int, routing_key: str | None) -> None:
    if bytes_beside_payload > BYTES_BESIDE_PAYLOAD_MAX:
        raise _invalid(
            f"attributes, names and routing key take {bytes_beside_payload} bytes together; "
            f"{BYTES_BESIDE_PAYLOAD_MAX} are allowed beside the payload"
        )
    if attributes > ATTRIBUTES_MAX:
        raise _invalid(f"the message has {attributes} attributes; {ATTRIBUTES_MAX} are allowed")
    if routing_key is not None and len(routing_key) > ROUTING_KEY_CHARACTERS_MAX:
        raise _invalid(
            f"the routing key has {len(routing_key)} characters; "
            f"{ROUTING_KEY_CHARACTERS_MAX} are allowed"
        )


def _invalid(text: str) -> CallRefused:
    return CallRefused(StatusCode.INVALID_ARGUMENT, text)
