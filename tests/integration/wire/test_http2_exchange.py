"""Exchanges over our own channel, where grpcio's own client would lose the answer."""

import asyncio

from pydanube.wire.calls import StatusCode
from pydanube.wire.http2.channel import Http2Channel
from tests.contract.channel_contract import refusal_of, refuse_the_second, repeated, serve
from tests.contract.engine_contract import within_patience


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
