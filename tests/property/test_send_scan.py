"""Reading a publish by hand gives what protobuf gives, or leaves it to protobuf."""

from hypothesis import example, given
from hypothesis import strategies as st

from pydanube.model.sequences import MessageSequence
from pydanube.wire.calls import CallRefused
from pydanube.wire.danube.convert import SendRequest, _parse_send_request, read_send_request
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from pydanube.wire.danube.send_scan import scan_send_request

TEXT = st.text(max_size=150)
NUMBER = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))

MESSAGES = st.builds(
    api.StreamMessage,
    request_id=NUMBER,
    msg_id=st.builds(api.MsgID, producer_id=NUMBER, topic_name=TEXT, broker_addr=TEXT),
    payload=st.binary(max_size=300),
    publish_time=st.one_of(st.integers(0, 2**42), NUMBER),
    producer_name=TEXT,
    subscription_name=st.sampled_from(["", "", "s"]),
    attributes=st.one_of(st.just({}), st.dictionaries(TEXT, TEXT, max_size=2)),
    schema_id=st.one_of(st.none(), NUMBER),
    routing_key=st.one_of(st.none(), TEXT),
    producer_sequence=st.one_of(st.none(), NUMBER),
    previous_sequence=st.one_of(st.none(), NUMBER),
    producer_session=st.one_of(st.none(), NUMBER),
)


def outcome(read: object, data: bytes) -> SendRequest | str:
    try:
        return read(data)  # type: ignore[operator,no-any-return]
    except CallRefused as refused:
        return f"{refused.code}: {refused.text}"


@given(MESSAGES)
def test_both_ways_agree(message: api.StreamMessage) -> None:
    data = message.SerializeToString()
    assert outcome(read_send_request, data) == outcome(_parse_send_request, data)


@given(MESSAGES, st.data())
def test_both_ways_agree_on_damaged_requests(
    message: api.StreamMessage, data: st.DataObject
) -> None:
    encoded = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        if encoded:
            encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(encoded[: data.draw(st.integers(0, len(encoded)))])
    assert outcome(read_send_request, cut) == outcome(_parse_send_request, cut)


@given(st.binary(max_size=60))
@example(b"\x08" + b"\x80" * 20)
def test_both_ways_agree_on_garbage(data: bytes) -> None:
    assert outcome(read_send_request, data) == outcome(_parse_send_request, data)


def test_what_stock_clients_send_is_read_by_hand() -> None:
    message = api.StreamMessage(
        request_id=1234,
        msg_id=api.MsgID(producer_id=2**50, topic_name="/default/t", broker_addr="http://h:1"),
        payload=b"x" * 1000,
        publish_time=1_700_000_000_000,
        producer_name="p",
    )
    assert scan_send_request(message.SerializeToString()) is not None


def test_what_our_own_client_sends_is_read_by_hand() -> None:
    message = api.StreamMessage(
        request_id=1234,
        msg_id=api.MsgID(producer_id=2**50, topic_name="/default/t", broker_addr="http://h:1"),
        payload=b"x" * 1000,
        publish_time=1_700_000_000_000,
        producer_name="p",
        routing_key="key",
        producer_sequence=2**64 - 1,
        previous_sequence=2**64 - 2,
        producer_session=2**63,
    )
    scanned = scan_send_request(message.SerializeToString())
    assert scanned is not None
    assert scanned[3] == MessageSequence(2**64 - 1, 2**64 - 2, 2**63)
