"""Our channel calls a grpcio server: the contract of every channel, and what only it has."""

import asyncio
import socket

import pytest
from typing_extensions import override

from pydanube.wire.calls import CallRefused, HandlerTable, StatusCode
from pydanube.wire.grpcio.engine import GrpcioEngine
from pydanube.wire.http2.channel import CLIENT_LIMITS, Http2Channel
from pydanube.wire.http2.engine import Http2Engine
from pydanube.wire.http2.limits import Http2Limits
from tests.contract.channel_contract import ChannelContract
from tests.contract.engine_contract import within_patience

MIB = 1024 * 1024


class TestHttp2Channel(ChannelContract):
    @override
    def channel(self, url):
        return Http2Channel(url)


async def echo(request, call):
    return request


async def refusal_of(awaitable):
    with pytest.raises(CallRefused) as refused:
        await within_patience(awaitable)
    return refused.value.code


async def test_large_messages_and_many_calls_go_through_a_grpcio_server():
    table = HandlerTable()
    table.add_unary("/test/unary", echo)
    server = await GrpcioEngine().serve(table, "127.0.0.1", 0)
    channel = Http2Channel(f"127.0.0.1:{server.port}")
    assert await channel.unary("/test/unary", bytes(4 * MIB)) == bytes(4 * MIB)
    calls = (channel.unary("/test/unary", b"%d" % number) for number in range(1_000))
    replies = await within_patience(asyncio.gather(*calls))
    assert replies == [b"%d" % number for number in range(1_000)]
    await channel.close()
    await server.stop(0)


async def test_a_slow_consumer_loses_nothing_and_holds_the_grpcio_server_back():
    async def pour(request, call):
        async def groups():
            for number in range(300):
                yield [b"%06d" % number + bytes(100_000)]

        return groups()

    table = HandlerTable()
    table.add_stream("/test/stream", pour)
    server = await GrpcioEngine().serve(table, "127.0.0.1", 0)
    channel = Http2Channel(f"127.0.0.1:{server.port}")
    seen = []
    async for reply in channel.stream("/test/stream", b""):
        seen.append(int(reply[:6]))
        held = channel._connection.codec.streams
        assert sum(stream.held_bytes for stream in held.values()) < 5 * MIB
        if len(seen) % 50 == 0:
            await asyncio.sleep(0.01)
    assert seen == list(range(300))
    await channel.close()
    await server.stop(0)


async def test_calls_beyond_what_the_server_takes_wait_for_their_turn():
    running, most = 0, 0

    async def handler(request, call):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return request

    table = HandlerTable()
    table.add_unary("/test/unary", handler)
    engine = Http2Engine(limits=Http2Limits(streams_max=5))
    server = await engine.serve(table, "127.0.0.1", 0)
    channel = Http2Channel(f"127.0.0.1:{server.port}")
    calls = (channel.unary("/test/unary", b"%d" % number) for number in range(60))
    assert await within_patience(asyncio.gather(*calls)) == [b"%d" % n for n in range(60)]
    assert most == 5
    await channel.close()
    await server.stop(0)


async def test_a_call_given_up_makes_room_for_one_that_waits():
    hanging = asyncio.Event()

    async def handler(request, call):
        if request == b"hang":
            hanging.set()
            await asyncio.Event().wait()
        return request

    table = HandlerTable()
    table.add_unary("/test/unary", handler)
    engine = Http2Engine(limits=Http2Limits(streams_max=1))
    server = await engine.serve(table, "127.0.0.1", 0)
    channel = Http2Channel(f"127.0.0.1:{server.port}")
    first = asyncio.create_task(channel.unary("/test/unary", b"hang"))
    await within_patience(hanging.wait())
    second = asyncio.create_task(channel.unary("/test/unary", b"next"))
    await asyncio.sleep(0.01)
    assert not second.done()
    first.cancel()
    assert await within_patience(second) == b"next"
    await channel.close()
    await server.stop(0)


async def test_calls_go_on_with_a_server_that_is_replaced_while_they_run():
    table = HandlerTable()
    table.add_unary("/test/unary", echo)
    server = await Http2Engine().serve(table, "127.0.0.1", 0)
    channel = Http2Channel(f"127.0.0.1:{server.port}")
    assert await channel.unary("/test/unary", b"1") == b"1"
    stopping = asyncio.create_task(server.stop(5))
    await asyncio.sleep(0)
    again = None
    while again is None:
        try:
            again = await Http2Engine().serve(table, "127.0.0.1", server.port)
        except OSError:
            await asyncio.sleep(0.01)
    assert await within_patience(channel.unary("/test/unary", b"2")) == b"2"
    await within_patience(stopping)
    await channel.close()
    await again.stop(0)


async def test_a_connection_that_breaks_between_calls_is_made_anew():
    table = HandlerTable()
    table.add_unary("/test/unary", echo)
    server = await Http2Engine().serve(table, "127.0.0.1", 0)
    channel = Http2Channel(f"127.0.0.1:{server.port}")
    for _ in range(3):
        assert await within_patience(channel.unary("/test/unary", b"x")) == b"x"
        channel._connection._transport.abort()
        await asyncio.sleep(0)
    await channel.close()
    await server.stop(0)


async def test_a_listener_that_says_nothing_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        limits = Http2Limits(handshake_seconds_max=0.2)
        channel = Http2Channel(f"127.0.0.1:{listener.getsockname()[1]}", limits=limits)
        assert await refusal_of(channel.unary("/test/unary", b"")) is StatusCode.UNAVAILABLE
        timed = channel.unary("/test/unary", b"", timeout_seconds=0.05)
        assert await refusal_of(timed) is StatusCode.DEADLINE_EXCEEDED
        await channel.close()


async def test_a_listener_that_speaks_something_else_is_given_up():
    async def speak(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    channel = Http2Channel(f"127.0.0.1:{port}")
    assert await refusal_of(channel.unary("/test/unary", b"")) is StatusCode.UNAVAILABLE
    await channel.close()
    server.close()


async def test_a_deadline_reaches_the_server():
    seen = asyncio.Queue()

    async def handler(request, call):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.put_nowait("cancelled")
            raise

    table = HandlerTable()
    table.add_unary("/test/unary", handler)
    server = await Http2Engine().serve(table, "127.0.0.1", 0)
    channel = Http2Channel(f"127.0.0.1:{server.port}")
    timed = channel.unary("/test/unary", b"", timeout_seconds=0.05)
    assert await refusal_of(timed) is StatusCode.DEADLINE_EXCEEDED
    assert await within_patience(seen.get()) == "cancelled"
    await channel.close()
    await server.stop(0)


async def test_metadata_that_cannot_be_sent_is_refused_before_anything_is():
    channel = Http2Channel("127.0.0.1:1")
    with pytest.raises(ValueError, match="cannot be sent"):
        await channel.unary("/test/unary", b"", metadata={"x": "a\nb"})
    await channel.close()


def test_a_channel_trusts_its_server_with_larger_messages_than_a_server_its_clients():
    assert CLIENT_LIMITS.message_bytes_max > Http2Limits().message_bytes_max
