"""A publish with its delivery suffix reads as the delivery that was meant."""

from hypothesis import given
from hypothesis import strategies as st

from pydanube.wire.danube.convert import delivery_suffix
from pydanube.wire.danube.generated import DanubeApi_pb2 as api

NUMBERS = st.integers(0, 300) | st.integers(0, 2**64 - 1)
TEXTS = st.text(max_size=3) | st.text(min_size=120, max_size=140) | st.text(max_size=300)
OPTIONAL_TEXTS = st.none() | TEXTS

PUBLISHED = st.builds(
    api.StreamMessage,
    request_id=NUMBERS,
    msg_id=st.none()
    | st.builds(
        api.MsgID,
        producer_id=NUMBERS,
        topic_name=TEXTS,
        broker_addr=TEXTS,
        topic_offset=NUMBERS,
    ),
    payload=st.binary(max_size=50),
    publish_time=NUMBERS,
    producer_name=TEXTS,
    subscription_name=TEXTS,
    attributes=st.dictionaries(TEXTS | st.just("x-delivery-attempt"), TEXTS, max_size=3),
    schema_id=st.none() | NUMBERS,
    schema_version=st.none() | st.integers(0, 2**32 - 1),
    routing_key=OPTIONAL_TEXTS,
)


@given(
    published=PUBLISHED,
    topic=TEXTS,
    offset=st.none() | NUMBERS,
    subscription=TEXTS,
    attempt=st.integers(1, 3) | st.integers(1, 10**6),
    address=OPTIONAL_TEXTS,
)
def test_a_publish_and_its_suffix_merge_into_the_delivery(
    published, topic, offset, subscription, attempt, address
):
    suffix = delivery_suffix(topic, offset, subscription, attempt, address)
    delivered = api.StreamMessage.FromString(published.SerializeToString() + suffix)

    published.msg_id.topic_name = topic
    if offset is not None:
        published.msg_id.topic_offset = offset
    if address is not None:
        published.msg_id.broker_addr = address
    published.subscription_name = subscription
    if attempt > 1:
        published.attributes["x-delivery-attempt"] = str(attempt)
    assert delivered == published
