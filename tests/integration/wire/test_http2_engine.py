"""Our engine serves stock grpcio clients: the contract of every engine, and what only it has."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import uvloop
from typing_extensions import override

from pydanube.wire.calls import HandlerTable, StatusCode
from pydanube.wire.http2.channel import Http2Channel
from pydanube.wire.http2.engine import Http2Engine
from pydanube.wire.http2.frames import END_HEADERS, END_STREAM, HEADERS, frame
from pydanube.wire.http2.limits import Http2Limits
from tests.contract.engine_contract import EngineContract, within_patience
from tests.support.http2_peers import HELLO, data, decoded, headers, request_fields, split_frames

MIB = 1024 * 1024
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def echo(message, call, reply):
    reply.send(message)


async def repeat(message, call):
    async def groups():
        for number in range(int(message)):
            yield [b"%d" % number, bytes(1_000)]

    return groups()


@asynccontextmanager
async def serving(**limits):
    table = HandlerTable()
    table.add_direct("/test/direct", echo)
    table.add_stream("/test/stream", repeat)
    server = await Http2Engine(limits=Http2Limits(**limits)).serve(table, "127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.stop(0)


class TestHttp2Engine(EngineContract):
    @override
    def engine(self):
        return Http2Engine()


async def test_a_stock_client_with_threads_is_served():
    def calls(port):
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=UNLIMITED) as channel:
            unary = channel.unary_unary("/test/direct")
            assert unary(b"hello") == b"hello"
            assert unary(bytes(4 * MIB)) == bytes(4 * MIB)
            assert unary(b"compressible " * 1_000, compression=grpc.Compression.Gzip) == (
                b"compressible " * 1_000
            )
            replies = list(channel.unary_stream("/test/stream")(b"500"))
            assert replies[::2] == [b"%d" % number for number in range(500)]
            return True

    async with serving() as server:
        assert await within_patience(asyncio.to_thread(calls, server.port))


async def test_a_thousand_calls_at_once_are_answered():
    waiting = []

    def collect(message, call, reply):
        waiting.append((message, reply))
        if len(waiting) == 1_000:
            for asked, answer in waiting:
                answer.send(asked)

    table = HandlerTable()
    table.add_direct("/test/direct", collect)
    server = await Http2Engine().serve(table, "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        method = channel.unary_unary("/test/direct")
        requests = [b"%d" % number for number in range(1_000)]
        replies = asyncio.gather(*(method(request) for request in requests))
        assert await within_patience(replies) == requests
    await server.stop(0)


async def test_many_large_calls_at_once_are_answered():
    async with serving() as server:
        address = f"127.0.0.1:{server.port}"
        async with grpc.aio.insecure_channel(address, options=UNLIMITED) as channel:
            method = channel.unary_unary("/test/direct")
            replies = await within_patience(
                asyncio.gather(*(method(bytes([number]) * MIB) for number in range(40)))
            )
        assert [reply[:2] for reply in replies] == [bytes([number] * 2) for number in range(40)]


async def test_a_message_beyond_the_limit_is_an_invalid_argument_for_a_stock_client():
    async with serving(message_bytes_max=100_000) as server:
        address = f"127.0.0.1:{server.port}"
        async with grpc.aio.insecure_channel(address, options=UNLIMITED) as channel:
            method = channel.unary_unary("/test/direct")
            for size in (100_001, 20 * MIB):
                code, text = await EngineContract.refusal_of(method(bytes(size)))
                assert code == "INVALID_ARGUMENT"
                assert str(size) in text
            bomb = method(bytes(50 * MIB), compression=grpc.Compression.Gzip)
            code, text = await EngineContract.refusal_of(bomb)
            assert code == "INVALID_ARGUMENT"
            assert await method(bytes(100_000)) == bytes(100_000)


async def test_a_deadline_is_kept_even_if_the_client_forgets_it():
    cancelled = asyncio.Event()

    async def hang(request, call):
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    table = HandlerTable()
    table.add_unary("/test/unary", hang)
    server = await Http2Engine().serve(table, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    fields = request_fields("/test/unary", grpc_timeout=b"50m")
    writer.write(HELLO + headers(1, fields) + data(1, bytes(5), END_STREAM))
    await within_patience(cancelled.wait())
    received = b""
    while not any(f.kind == HEADERS for f in split_frames(received)):
        received += await within_patience(reader.read(1000))
    (refusal,) = decoded(split_frames(received))
    assert refusal[b"grpc-status"] == b"4"
    writer.close()
    await server.stop(0)


async def test_a_stream_that_never_waits_lets_others_have_their_turn():
    async def pour(message, call):
        async def groups():
            while True:
                yield [bytes(10_000)]

        return groups()

    table = HandlerTable()
    table.add_stream("/test/stream", pour)
    table.add_direct("/test/direct", echo)
    server = await Http2Engine().serve(table, "127.0.0.1", 0)
    pouring = Http2Channel(f"127.0.0.1:{server.port}")
    stream = pouring.stream("/test/stream", b"")
    other = Http2Channel(f"127.0.0.1:{server.port}")
    for _ in range(50):
        assert len(await within_patience(anext(stream))) == 10_000
        assert await within_patience(other.unary("/test/direct", b"me too")) == b"me too"
    await pouring.close()
    await other.close()
    await server.stop(0)


async def test_a_handler_that_ignores_its_cancellation_harms_nobody():
    started = asyncio.Event()

    async def stubborn(message, call):
        async def groups():
            yield [b"1"]
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                yield [b"2"]

        return groups()

    table = HandlerTable()
    table.add_stream("/test/stream", stubborn)
    server = await Http2Engine().serve(table, "127.0.0.1", 0)
    channel = Http2Channel(f"127.0.0.1:{server.port}")
    stream = channel.stream("/test/stream", b"")
    assert await within_patience(anext(stream)) == b"1"
    await within_patience(started.wait())
    await stream.aclose()
    assert [r async for r in _first(channel.stream("/test/stream", b""))] == [b"1"]
    await channel.close()
    await server.stop(0)


async def _first(stream):
    yield await within_patience(anext(stream))
    await stream.aclose()


async def test_a_direct_handler_that_raises_is_internal_and_logged(caplog):
    def buggy(message, call, reply):
        raise ZeroDivisionError("a secret detail")

    table = HandlerTable()
    table.add_direct("/test/direct", buggy)
    server = await Http2Engine().serve(table, "127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        code, text = await EngineContract.refusal_of(channel.unary_unary("/test/direct")(b""))
    assert (code, "secret" in text) == ("INTERNAL", False)
    assert any(record.exc_info for record in caplog.records)
    await server.stop(0)


async def test_both_of_our_ends_speak_to_each_other():
    async with serving() as server:
        channel = Http2Channel(f"http://127.0.0.1:{server.port}")
        assert await channel.unary("/test/direct", bytes(5 * MIB)) == bytes(5 * MIB)
        replies = [reply async for reply in channel.stream("/test/stream", b"2000")]
        assert replies[::2] == [b"%d" % number for number in range(2_000)]
        calls = (channel.unary("/test/direct", b"%d" % n) for n in range(6_000))
        assert await within_patience(asyncio.gather(*calls)) == [b"%d" % n for n in range(6_000)]
        await channel.close()


def test_both_of_our_ends_work_on_uvloop():
    uvloop.run(test_both_of_our_ends_speak_to_each_other())
    uvloop.run(test_a_message_beyond_the_limit_is_an_invalid_argument_for_a_stock_client())


async def test_a_refused_call_whose_request_goes_on_costs_no_connection():
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(HELLO + headers(1, request_fields("/no/thing")))
        for _ in range(30):
            writer.write(data(1, bytes(1_000)))
        fields = request_fields("/test/direct")
        writer.write(headers(3, fields) + data(3, b"\0\0\0\0\x02hi", END_STREAM))
        received = b""
        while b"hi" not in received:
            received += await within_patience(reader.read(10_000))
        statuses = [found.get(b"grpc-status") for found in decoded(split_frames(received))]
        assert statuses == [b"12", None, b"0"]
        writer.close()


async def test_a_tracing_client_may_end_its_request_with_trailers():
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        fields = request_fields("/test/direct")
        trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x00\x01x\x01y")
        writer.write(HELLO + headers(1, fields) + data(1, b"\0\0\0\0\x02hi") + trailers)
        received = b""
        while b"hi" not in received:
            received += await within_patience(reader.read(10_000))
        writer.close()


async def test_a_call_says_unavailable_when_the_server_gives_it_up():
    started = asyncio.Event()

    async def hang(request, call):
        started.set()
        await asyncio.Event().wait()

    table = HandlerTable()
    table.add_unary("/test/unary", hang)
    server = await Http2Engine().serve(table, "127.0.0.1", 0)
    channel = Http2Channel(f"127.0.0.1:{server.port}")
    call = asyncio.create_task(channel.unary("/test/unary", b""))
    await within_patience(started.wait())
    await within_patience(server.stop(0.05))
    refused = (await asyncio.gather(call, return_exceptions=True))[0]
    assert refused.code is StatusCode.UNAVAILABLE
    await channel.close()
