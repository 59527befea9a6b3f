"""Whatever bytes arrive, the broker answers with a status that means something, and goes on."""

import asyncio
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pydanube.wire.calls import CallRefused, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.danube.generated import DanubeApi_pb2 as api
from tests.support.raw_client import (
    KEY_SHARED,
    SHARED,
    RawClient,
    consumer_request,
    message,
    policy_request,
    producer_request,
)
from tests.support.running_broker import RunningBroker

TOPIC, NEWS = "/default/orders", "/default/news"

UNARY = [method for method in services.METHODS.values() if not method.response_stream]
SERVED = [
    method
    for method in UNARY
    if method.service
    in (
        services.PRODUCER_SERVICE,
        services.CONSUMER_SERVICE,
        services.DISCOVERY,
        services.HEALTH_SERVICE,
        services.AUTH_SERVICE,
        services.BROKER_ADMIN,
        services.NAMESPACE_ADMIN,
        services.TOPIC_ADMIN,
    )
]
EXAMPLES = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def is_admin(method: services.Method) -> bool:
    return method.service.startswith("danube_admin.")


async def outcome(client: RawClient, method: services.Method, data: bytes) -> CallRefused | None:
    try:
        await client.raw(method.path, data, on_admin=is_admin(method))
    except CallRefused as refused:
        return refused
    return None


def check_means_something(method: services.Method, refused: CallRefused) -> None:
    meaningless = {StatusCode.UNKNOWN, StatusCode.DATA_LOSS, StatusCode.CANCELLED}
    assert refused.code not in meaningless, method.path
    if refused.code is StatusCode.INTERNAL:
        assert "not on this broker" in refused.text, f"{method.path}: {refused}"
    assert refused.text, method.path


async def check_still_serves(client: RawClient) -> None:
    producer = await client.create_producer("/default/alive")
    stream = await client.consume("/default/alive", start_position="latest")
    await client.send("/default/alive", producer, b"alive")
    received = await stream.next()
    assert received.payload == b"alive"
    await client.ack(received)
    await stream.close()


@pytest.fixture
async def populated(broker: RunningBroker, client: RawClient) -> RawClient:
    """Return a client of a broker that has something of everything."""
    producer = await client.create_producer(TOPIC)
    await client.create_producer(NEWS, reliable=False)
    await client.create_partitioned("/default/parts", 2)
    for number, kind in enumerate((SHARED, KEY_SHARED)):
        await client.subscribe(TOPIC, f"s{number}", "c", kind)
        await client.subscribe(NEWS, f"s{number}", "c", kind)
    await client.set_failure_policy(TOPIC, "s0")
    await client.send_many(TOPIC, producer, [b"x"] * 3)
    return client


@EXAMPLES
@given(data=st.binary(max_size=200), method=st.sampled_from(UNARY))
async def test_random_bytes_are_refused_or_understood_and_change_nothing_when_refused(
    broker: RunningBroker, populated: RawClient, data: bytes, method: services.Method
) -> None:
    before = broker.metadata()
    refused = await outcome(populated, method, data)
    if refused is not None:
        check_means_something(method, refused)
        assert broker.metadata() == before


async def test_random_bytes_are_survived(populated: RawClient) -> None:
    await check_still_serves(populated)


async def test_an_empty_request_is_no_surprise_to_any_method(populated: RawClient) -> None:
    for method in UNARY:
        refused = await outcome(populated, method, b"")
        if refused is not None:
            check_means_something(method, refused)


def texts_of(method: services.Method) -> list[FieldDescriptor]:
    fields = method.request.DESCRIPTOR.fields
    return [field for field in fields if field.type == FieldDescriptor.TYPE_STRING]


async def test_text_that_is_no_utf_8_is_an_invalid_argument(
    broker: RunningBroker, populated: RawClient
) -> None:
    before = broker.metadata()
    for method in SERVED:
        for field in texts_of(method):
            if field.number >= 16:
                continue  # Its tag would not be one byte; the parser is the same.
            data = bytes([field.number << 3 | 2]) + b"\x03\xff\xfe\x80"
            refused = await outcome(populated, method, data)
            assert refused is not None, f"{method.path} {field.name}"
            assert refused.code is StatusCode.INVALID_ARGUMENT, f"{method.path} {field.name}"
    assert broker.metadata() == before


# Requests that can be read, with whatever in their fields.

NAMES = st.sampled_from(
    [TOPIC, NEWS, "/default/parts", "/default/parts-part-1", "s0", "s1", "c", "p", "default", ""]
)
TEXTS = (
    NAMES
    | st.text(max_size=20)
    | st.sampled_from(
        ["/", "//", "..", "%2F", "\x00", "\u202e", "x" * 5_000, "/default/" + "y" * 90]
    )
)
NUMBERS = {
    FieldDescriptor.TYPE_UINT64: st.sampled_from([0, 1, 2, 10, 2**31, 2**63, 2**64 - 1]),
    FieldDescriptor.TYPE_UINT32: st.sampled_from([0, 1, 2, 10, 10_001, 2**31, 2**32 - 1]),
    FieldDescriptor.TYPE_INT32: st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 1]),
    FieldDescriptor.TYPE_ENUM: st.sampled_from([-1, 0, 1, 2, 3, 4, 2**31 - 1]),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=30),
}


def field_values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            return st.dictionaries(TEXTS, TEXTS, max_size=3)
        single: st.SearchStrategy[Any] = fields_of(field.message_type)
    elif field.type == FieldDescriptor.TYPE_STRING:
        single = TEXTS
    else:
        single = NUMBERS[field.type]
    return st.lists(single, max_size=3) if field.is_repeated else single


def fields_of(descriptor: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Draw some of a message's fields; the others are absent."""
    return st.fixed_dictionaries(
        {}, optional={field.name: field_values(field) for field in descriptor.fields}
    )


@st.composite
def requests(draw: st.DrawFn) -> tuple[services.Method, Message]:
    method = draw(st.sampled_from(SERVED))
    return method, method.request(**draw(fields_of(method.request.DESCRIPTOR)))


@settings(EXAMPLES, max_examples=250)
@given(drawn=requests())
async def test_whatever_is_in_the_fields_the_answer_means_something_and_refusals_change_nothing(
    broker: RunningBroker, populated: RawClient, drawn: tuple[services.Method, Message]
) -> None:
    method, request = drawn
    before = broker.metadata()
    refused = await outcome(populated, method, request.SerializeToString())
    if refused is not None:
        check_means_something(method, refused)
        assert broker.metadata() == before
    await populated.partitions(TOPIC)


async def test_after_all_kinds_of_requests_the_broker_restarts_and_serves(
    broker: RunningBroker, client: RawClient
) -> None:
    await client.create_producer(TOPIC)
    odd = ["..", "%2F", "a/b/c", "policy", "subscriptions", "ελ ✓", "x" * 256, "'; drop"]
    for name in odd:
        await client.create_producer(TOPIC, name)
        consumer = await client.subscribe(TOPIC, name, name, SHARED)
        await client.set_failure_policy(TOPIC, name)
        await client.set_window(TOPIC, 5, name)
        assert consumer
    for name in ("policy", "subscriptions", "producers", "delivery"):
        await client.create_producer(f"/default/{name}")
    known = broker.metadata()
    await broker.restart()
    assert broker.metadata() == known
    client = broker.client()
    assert await client.subscriptions(TOPIC) == sorted(odd)
    await check_still_serves(client)


# Every field of every request, beyond every measure.


KNOWN: dict[str, Any] = {
    "topic": TOPIC,
    "topic_name": TOPIC,
    "subscription": "s0",
    "consumer_name": "c",
    "producer_name": "p",
    "name": "/default/fresh",
    "base_name": "/default/fresh",
    "partitions": 2,
    "dispatch_strategy": 1,
}


async def test_texts_without_end_are_refused_or_ignored(
    broker: RunningBroker, populated: RawClient
) -> None:
    huge = "x" * 500_000
    for method in SERVED:
        names = [field.name for field in method.request.DESCRIPTOR.fields]
        for field in texts_of(method):
            fields = {name: KNOWN[name] for name in names if name in KNOWN}
            fields[field.name] = [huge] if field.is_repeated else huge
            before = broker.metadata()
            request = method.request(**fields).SerializeToString()
            refused = await outcome(populated, method, request)
            if refused is not None:
                check_means_something(method, refused)
                assert len(refused.text) < 4096
                assert broker.metadata() == before
    for key, value in broker.metadata().items():
        assert len(key) + len(value) < 8192, key[:100]


async def test_a_receive_request_of_garbage_is_refused(
    broker: RunningBroker, client: RawClient
) -> None:
    for data in (b"\xff", b"\x10\xff\xff", b"\x12\x03abc", b"\x10" + b"\xff" * 9 + b"\x01"):
        replies = client.channel.stream(services.RECEIVE_MESSAGES.path, data)
        asking = asyncio.create_task(anext(replies))
        while not asking.done():
            broker.clock.advance(1)
            await asyncio.sleep(0.01)
        with pytest.raises(CallRefused) as refused:
            await asking
        assert refused.value.code in (StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND)


async def test_an_unknown_method_is_unimplemented(client: RawClient) -> None:
    for path in ("/danube.ProducerService/Nothing", "/nothing.Nobody/Nothing"):
        for on_admin in (False, True):
            with pytest.raises(CallRefused) as refused:
                await client.raw(path, b"", on_admin=on_admin)
            assert refused.value.code is StatusCode.UNIMPLEMENTED


async def test_admin_methods_are_not_on_the_client_port_nor_the_reverse(client: RawClient) -> None:
    request = admin.TopicRequest(name=TOPIC).SerializeToString()
    with pytest.raises(CallRefused, match="UNIMPLEMENTED"):
        await client.raw(services.DELETE_TOPIC.path, request, on_admin=False)
    with pytest.raises(CallRefused, match="UNIMPLEMENTED"):
        await client.raw(services.CREATE_PRODUCER.path, b"", on_admin=True)


async def test_a_refused_request_costs_no_offset_no_id_and_no_name(
    broker: RunningBroker, populated: RawClient
) -> None:
    client = populated
    for method, request in [
        (services.CREATE_PRODUCER, producer_request(TOPIC, "new", reliable=False)),
        (services.CREATE_PRODUCER, producer_request("/nowhere/x")),
        (services.CREATE_PRODUCER, producer_request(TOPIC, "x" * 999)),
        (services.CREATE_PRODUCER, producer_request("/default/parts")),
        (services.SEND_MESSAGE, message(TOPIC, 5)),
        (services.SEND_MESSAGE, api.StreamMessage()),
        (services.SUBSCRIBE, consumer_request("/default/nowhere")),
        (services.SUBSCRIBE, consumer_request(TOPIC, "")),
        (services.SUBSCRIBE, consumer_request(TOPIC, "new", kind=9)),
        (services.ACK, api.AckRequest()),
        (services.NACK, api.NackRequest(subscription_name="s0")),
        (services.SET_SUBSCRIPTION_FAILURE_POLICY, policy_request(NEWS)),
        (services.SET_SUBSCRIPTION_FAILURE_POLICY, policy_request("/default/parts")),
        (services.DELETE_TOPIC, admin.TopicRequest(name="/default/parts-part-0")),
    ]:
        await broker.refusal(client, method, request)
    producer = await client.create_producer(TOPIC)
    assert await client.send(TOPIC, producer) == 3
