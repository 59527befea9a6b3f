"""Exchanges over our own channel, where grpcio's own client would lose the answer."""

import asyncio
import random

import pytest

from pydanube.runtime.process import new_event_loop
from pydanube.wire.calls import HandlerTable, StatusCode
from pydanube.wire.http2.channel import Http2Channel
from pydanube.wire.http2.engine import Http2Engine
from pydanube.wire.http2.long_messages import LongMessages
from pydanube.wire.http2.server_connection import ServerConnection
from tests.contract.channel_contract import refusal_of, refuse_the_second, repeated, serve
from tests.contract.engine_contract import PATIENCE_SECONDS, within_patience


async def echo(requests, call):
    async def groups():
        async for request in requests:
            yield [request]

    return groups()


async def test_a_refusal_reaches_a_caller_that_never_stops_sending():
    server = await serve(exchange=refuse_the_second)
    channel = Http2Channel(f"http://127.0.0.1:{server.port}")
    for size in (1, 100_000):
        replies = channel.exchange("/test/exchange", repeated(bytes(size), 10**9))
        assert await within_patience(anext(replies)) == bytes(size)
        refused = await refusal_of(anext(replies))
        assert refused == (StatusCode.FAILED_PRECONDITION, "enough")
    await channel.close()
    await server.stop(0)


async def test_requests_that_cannot_be_made_end_the_exchange():
    answered = asyncio.Event()

    async def failing():
        yield b"1"
        await answered.wait()
        raise ZeroDivisionError("no more")

    server = await serve(exchange=echo)
    channel = Http2Channel(f"http://127.0.0.1:{server.port}")
    replies = channel.exchange("/test/exchange", failing())
    assert await within_patience(anext(replies)) == b"1"
    answered.set()
    code, text = await refusal_of(anext(replies))
    assert (code, "no more" in text) == (StatusCode.CANCELLED, True)
    await channel.close()
    await server.stop(0)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_event_loop])
def test_long_requests_are_received_where_they_belong_and_short_ones_are_not(new_loop, monkeypatch):
    placed, asked = [], []
    data_received, buffer_updated = ServerConnection.data_received, LongMessages.buffer_updated

    def count_placed(self, data):
        if isinstance(data, memoryview):
            placed.append(len(data))
        data_received(self, data)

    def count_asked(self, nbytes):
        asked.append(nbytes)
        buffer_updated(self, nbytes)

    monkeypatch.setattr(ServerConnection, "data_received", count_placed)
    monkeypatch.setattr(LongMessages, "buffer_updated", count_asked)

    async def exchange() -> None:
        table = HandlerTable()
        table.add_exchange("/test/exchange", echo)
        server = await Http2Engine().serve(table, "127.0.0.1", 0)
        channel = Http2Channel(f"http://127.0.0.1:{server.port}")
        for size in (2_000_000, 1_000_000, 3_000_000):
            words = [random.Random(size).randbytes(size), b"short", b"", b"x" * 100_000]
            placed.clear()
            replies = channel.exchange("/test/exchange", sent_in_turn(words[:1]))
            assert [reply async for reply in replies] == words[:1]
            assert sum(placed) > size // 8
            asked.clear()
            replies = channel.exchange("/test/exchange", sent_in_turn(words[1:]))
            assert [reply async for reply in replies] == words[1:]
            assert not asked
        await channel.close()
        await server.stop(0)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(exchange(), PATIENCE_SECONDS))


async def sent_in_turn(words):
    for word in words:
        yield word
