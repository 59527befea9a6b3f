import pytest

from pydanube.model.message import Message
from pydanube.wire.calls import CallRefused, StatusCode
from pydanube.wire.danube.convert import (
    ATTRIBUTES_MAX,
    BYTES_BESIDE_PAYLOAD_MAX,
    ROUTING_KEY_CHARACTERS_MAX,
    SendRequest,
    delivery_suffix,
    encode_message,
    encode_send_response,
    read_send_request,
)
from pydanube.wire.danube.generated import DanubeApi_pb2 as api


def publish(**fields):
    fields.setdefault("msg_id", api.MsgID(producer_id=9, topic_name="/default/t"))
    return api.StreamMessage(**fields).SerializeToString()


def refusal_of(data):
    with pytest.raises(CallRefused) as refused:
        read_send_request(data)
    assert refused.value.code is StatusCode.INVALID_ARGUMENT
    return refused.value.text


def test_a_publish_becomes_a_message_that_keeps_its_bytes():
    data = publish(
        request_id=3,
        payload=b"hello",
        publish_time=1_700_000_000_000,
        producer_name="p",
        attributes={"a": "1", "ü": ""},
        schema_id=0,
        schema_version=2,
        routing_key="",
    )
    assert read_send_request(data) == SendRequest(
        request_id=3,
        producer_id=9,
        topic_name="/default/t",
        message=Message(
            payload=b"hello",
            publish_time_ms=1_700_000_000_000,
            producer_name="p",
            routing_key="",
            attributes={"a": "1", "ü": ""},
            schema_id=0,
            schema_version=2,
            wire=data,
        ),
    )


def test_what_a_publish_leaves_out_is_none():
    message = read_send_request(publish()).message
    assert message.routing_key is None
    assert message.attributes is None
    assert message.schema_id is None
    assert message.schema_version is None


def test_a_publish_without_msg_id_is_refused():
    assert "msg_id" in refusal_of(api.StreamMessage(payload=b"x").SerializeToString())


@pytest.mark.parametrize("garbage", [b"\xff", b"\x12\x05ab", b"\x2a\x02\xff\xfe"])
def test_garbage_is_refused_by_name(garbage):
    assert "danube.StreamMessage" in refusal_of(garbage)


def test_the_number_of_attributes_is_bounded():
    attributes = {f"k{i}": "v" for i in range(ATTRIBUTES_MAX)}
    read_send_request(publish(attributes=attributes))
    assert "65 attributes" in refusal_of(publish(attributes=attributes | {"one more": ""}))


def test_everything_beside_the_payload_is_bounded():
    payload = b"p" * 100_000
    room = BYTES_BESIDE_PAYLOAD_MAX - (len(publish(payload=payload)) - len(payload))
    entry = len(publish(attributes={"k": "v" * 20_000})) - len(publish()) - 20_000
    fits = publish(payload=payload, attributes={"k": "v" * (room - entry)})
    assert len(fits) - len(payload) == BYTES_BESIDE_PAYLOAD_MAX
    read_send_request(fits)
    assert "32769 bytes" in refusal_of(
        publish(payload=payload, attributes={"k": "v" * (room - entry + 1)})
    )


def test_unknown_fields_and_repeated_payloads_count_as_beside_the_payload():
    twice = publish(payload=b"p" * 40_000) + api.StreamMessage(payload=b"x").SerializeToString()
    refusal_of(twice)


def test_the_routing_key_is_bounded():
    read_send_request(publish(routing_key="ü" * ROUTING_KEY_CHARACTERS_MAX))
    assert "routing key" in refusal_of(publish(routing_key="k" * (ROUTING_KEY_CHARACTERS_MAX + 1)))


def test_a_publish_time_beyond_signed_numbers_is_refused():
    read_send_request(publish(publish_time=2**63 - 1))
    assert "publish_time" in refusal_of(publish(publish_time=2**63))


def test_a_five_mib_payload_is_left_to_the_topics_policy():
    assert len(read_send_request(publish(payload=bytes(5 << 20))).message.payload) == 5 << 20


def test_the_reply_to_a_send_carries_the_offset_only_when_there_is_one():
    for request_id in (1, 127, 128, 2**64 - 1):
        for offset in (0, 127, 128, 2**63 - 1):
            reply = api.MessageResponse.FromString(encode_send_response(request_id, offset))
            assert reply == api.MessageResponse(request_id=request_id, topic_offset=offset)
        reply = api.MessageResponse.FromString(encode_send_response(request_id, None))
        assert reply == api.MessageResponse(request_id=request_id)


def test_a_first_delivery_says_nothing_of_attempts_and_a_second_one_does():
    data = publish(attributes={"x-delivery-attempt": "forged"})
    second = api.StreamMessage.FromString(data + delivery_suffix("/default/t", 0, "s", 2))
    assert dict(second.attributes) == {"x-delivery-attempt": "2"}
    first = api.StreamMessage.FromString(publish() + delivery_suffix("/default/t", 0, "s", 1))
    assert not first.attributes


def test_a_message_without_wire_bytes_is_encoded_as_its_producer_could_have_sent_it():
    message = Message(
        payload=b"old", publish_time_ms=5, producer_name="p", attributes={"a": "b"}, schema_id=1
    )
    read = read_send_request(encode_message(message, 9, "/default/t", "http://h:6650"))
    assert (read.producer_id, read.topic_name) == (9, "/default/t")
    assert read.message == Message(
        payload=b"old",
        publish_time_ms=5,
        producer_name="p",
        attributes={"a": "b"},
        schema_id=1,
        wire=read.message.wire,
    )
