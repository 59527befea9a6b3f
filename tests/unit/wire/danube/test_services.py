import pytest

from pydanube.errors import Conflict, NotFound
from pydanube.wire.calls import Call, CallRefused, HandlerTable, StatusCode
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import (
    DanubeAdmin_pb2,
    DanubeApi_pb2,
    EdgeReplicator_pb2,
    PyDanube_pb2,
    SchemaRegistry_pb2,
)
from pydanube.wire.danube.services import METHODS

GARBAGE = b"\xff\xff\xff"
CALL = Call(path="/x/Y", peer="ipv4:127.0.0.1:1", metadata={})


def described_methods():
    for module in (
        DanubeApi_pb2,
        SchemaRegistry_pb2,
        DanubeAdmin_pb2,
        EdgeReplicator_pb2,
        PyDanube_pb2,
    ):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield f"/{service.full_name}/{method.name}", method


def test_the_table_holds_exactly_the_methods_of_the_protos():
    described = {
        path: (
            method.input_type.full_name,
            method.output_type.full_name,
            method.client_streaming,
            method.server_streaming,
        )
        for path, method in described_methods()
    }
    assert described == {
        path: (
            method.request.DESCRIPTOR.full_name,
            method.response.DESCRIPTOR.full_name,
            method.request_stream,
            method.response_stream,
        )
        for path, method in METHODS.items()
    }


def test_only_two_methods_stream():
    streaming = {path for path, m in METHODS.items() if m.request_stream or m.response_stream}
    assert streaming == {
        "/danube.ConsumerService/ReceiveMessages",
        "/danube.edge.EdgeReplicatorService/ReplicateData",
    }


async def test_a_unary_handler_meets_messages_and_answers_with_one():
    async def look_up(request, call):
        assert call is CALL
        return DanubeApi_pb2.TopicLookupResponse(request_id=request.request_id)

    handler = services.unary(services.TOPIC_LOOKUP, look_up)
    reply = await handler(DanubeApi_pb2.TopicLookupRequest(request_id=3).SerializeToString(), CALL)
    assert DanubeApi_pb2.TopicLookupResponse.FromString(reply).request_id == 3


async def test_bytes_that_are_no_message_are_an_invalid_argument():
    async def never(request, call):
        raise AssertionError("called with garbage")

    for handler in (
        services.unary(services.ACK, never),
        services.stream(services.RECEIVE_MESSAGES, never),
    ):
        with pytest.raises(CallRefused, match=r"not a valid danube\.") as refused:
            await handler(GARBAGE, CALL)
        assert refused.value.code is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFound("no such topic"), StatusCode.NOT_FOUND),
        (Conflict("dispatch differs"), StatusCode.FAILED_PRECONDITION),
    ],
)
async def test_errors_of_handlers_become_their_status(error, code):
    async def fail(request, call):
        raise error

    for handler in (
        services.unary(services.ACK, fail),
        services.stream(services.RECEIVE_MESSAGES, fail),
    ):
        with pytest.raises(CallRefused) as refused:
            await handler(b"", CALL)
        assert (refused.value.code, refused.value.text) == (code, str(error))


async def test_a_stream_handler_meets_a_message_and_gives_its_iterator():
    async def groups():
        yield [b"a", b"b"]

    async def receive(request, call):
        assert request.consumer_id == 4
        return groups()

    handler = services.stream(services.RECEIVE_MESSAGES, receive)
    request = DanubeApi_pb2.ReceiveRequest(consumer_id=4).SerializeToString()
    assert [group async for group in await handler(request, CALL)] == [[b"a", b"b"]]


async def test_an_unimplemented_service_refuses_each_of_its_methods_with_the_reason():
    table = HandlerTable()
    services.unimplemented(table, services.EDGE_REPLICATOR_SERVICE, "this broker has no edge")
    served = {**table.unary, **table.streams}
    assert set(served) == {p for p in METHODS if p.startswith("/danube.edge.")}
    assert set(table.streams) == {"/danube.edge.EdgeReplicatorService/ReplicateData"}
    for handler in served.values():
        with pytest.raises(CallRefused, match="this broker has no edge") as refused:
            await handler(GARBAGE, CALL)
        assert refused.value.code is StatusCode.UNIMPLEMENTED


class EchoChannel:
    """Answers every call with fixed bytes."""

    def __init__(self, reply):
        self.reply = reply
        self.calls = []

    async def unary(self, path, request, *, metadata=None, timeout_seconds=None):
        self.calls.append((path, request, metadata, timeout_seconds))
        return self.reply


async def test_invoking_a_method_sends_and_reads_messages():
    channel = EchoChannel(DanubeApi_pb2.AckResponse(request_id=2).SerializeToString())
    request = DanubeApi_pb2.AckRequest(request_id=2)
    reply = await services.invoke(
        channel, services.ACK, request, metadata={"a": "b"}, timeout_seconds=1.5
    )
    assert reply.request_id == 2
    assert channel.calls == [
        ("/danube.ConsumerService/Ack", request.SerializeToString(), {"a": "b"}, 1.5)
    ]


async def test_a_reply_that_is_no_message_is_the_servers_fault():
    with pytest.raises(CallRefused) as refused:
        await services.invoke(EchoChannel(GARBAGE), services.ACK, DanubeApi_pb2.AckRequest())
    assert refused.value.code is StatusCode.INTERNAL
