"""What every channel owes its callers. A subclass says which channel; a grpcio server answers."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from pydanube.errors import InvalidRequest
from pydanube.wire.calls import CallRefused, HandlerTable, StatusCode
from pydanube.wire.grpcio.engine import GrpcioEngine
from tests.contract.engine_contract import ClosableGroups, within_patience


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


async def serve(*, unary=None, stream=None, exchange=None, port=0):
    table = HandlerTable()
    if unary is not None:
        table.add_unary("/test/unary", unary)
    if stream is not None:
        table.add_stream("/test/stream", stream)
    if exchange is not None:
        table.add_exchange("/test/exchange", exchange)
    return await GrpcioEngine().serve(table, "127.0.0.1", port)


async def refusal_of(awaitable):
    with pytest.raises(CallRefused) as refused:
        await within_patience(awaitable)
    return refused.value.code, refused.value.text


class ChannelContract:
    def channel(self, url):
        raise AssertionError("a subclass names the channel")

    @asynccontextmanager
    async def connected(self, *, unary=None, stream=None, exchange=None):
        server = await serve(unary=unary, stream=stream, exchange=exchange)
        channel = self.channel(f"http://127.0.0.1:{server.port}")
        try:
            yield channel
        finally:
            await channel.close()
            await server.stop(0)

    async def test_a_call_carries_request_headers_and_reply(self):
        async def handler(request, call):
            return request + call.metadata["authorization"].encode()

        async with self.connected(unary=handler) as channel:
            reply = await channel.unary("/test/unary", b"a ", metadata={"authorization": "b"})
            assert reply == b"a b"

    @pytest.mark.parametrize(
        "form", ["http://127.0.0.1:{}", "http://127.0.0.1:{}/", "localhost:{}"]
    )
    async def test_an_address_may_be_written_in_several_ways(self, form):
        async def handler(request, call):
            return request

        server = await serve(unary=handler)
        channel = self.channel(form.format(server.port))
        assert await channel.unary("/test/unary", b"x") == b"x"
        await channel.close()
        await server.stop(0)

    @pytest.mark.parametrize(
        "url",
        ["", "http://", "localhost", "http://host", "ftp://host:1", "host:port", "http://h:1/path"],
    )
    def test_what_is_no_address_is_refused_at_once(self, url):
        with pytest.raises(InvalidRequest, match="http://host:port"):
            self.channel(url)

    async def test_a_refusal_comes_with_its_code_and_text(self):
        async def handler(request, call):
            raise CallRefused(StatusCode.UNAVAILABLE, "topic moves; ümläut")

        async with self.connected(unary=handler) as channel:
            assert await refusal_of(channel.unary("/test/unary", b"")) == (
                StatusCode.UNAVAILABLE,
                "topic moves; ümläut",
            )

    async def test_a_broker_that_is_not_there_is_unavailable_by_its_address(self):
        port = free_port()
        channel = self.channel(f"http://127.0.0.1:{port}")
        code, text = await refusal_of(channel.unary("/test/unary", b""))
        assert (code, f"127.0.0.1:{port}" in text) == (StatusCode.UNAVAILABLE, True)
        code, text = await refusal_of(anext(channel.stream("/test/stream", b"")))
        assert (code, f"127.0.0.1:{port}" in text) == (StatusCode.UNAVAILABLE, True)
        await channel.close()

    async def test_a_broker_that_comes_back_is_found_again(self):
        async def handler(request, call):
            return b"back"

        server = await serve(unary=handler)
        channel = self.channel(f"http://127.0.0.1:{server.port}")
        assert await channel.unary("/test/unary", b"") == b"back"
        await server.stop(0)
        code, _ = await refusal_of(channel.unary("/test/unary", b""))
        assert code is StatusCode.UNAVAILABLE
        server = await serve(unary=handler, port=server.port)
        assert await within_patience(self.call_until_reached(channel)) == b"back"
        await channel.close()
        await server.stop(0)

    @staticmethod
    async def call_until_reached(channel):
        while True:
            try:
                return await channel.unary("/test/unary", b"")
            except CallRefused as refused:
                if refused.code is not StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.02)

    async def test_a_deadline_that_passes_ends_the_call(self):
        async def handler(request, call):
            await asyncio.Event().wait()

        async with self.connected(unary=handler) as channel:
            code, _ = await refusal_of(channel.unary("/test/unary", b"", timeout_seconds=0.05))
            assert code is StatusCode.DEADLINE_EXCEEDED

    async def test_cancelling_the_caller_cancels_the_handler_and_stays_a_cancellation(self):
        started, cancelled = asyncio.Event(), asyncio.Event()

        async def handler(request, call):
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        async with self.connected(unary=handler) as channel:
            task = asyncio.create_task(channel.unary("/test/unary", b""))
            await within_patience(started.wait())
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await within_patience(task)
            await within_patience(cancelled.wait())

    async def test_replies_of_a_stream_come_one_by_one_until_its_end(self):
        async def handler(request, call):
            async def groups():
                yield [request, call.metadata["who"].encode()]
                yield [b""]

            return groups()

        async with self.connected(stream=handler) as channel:
            replies = channel.stream("/test/stream", b"1", metadata={"who": "2"})
            assert [reply async for reply in replies] == [b"1", b"2", b""]

    async def test_a_refusal_inside_a_stream_comes_after_its_replies(self):
        async def handler(request, call):
            return ClosableGroups([b"1"], CallRefused(StatusCode.NOT_FOUND, "gone"))

        async with self.connected(stream=handler) as channel:
            replies = channel.stream("/test/stream", b"")
            assert await within_patience(anext(replies)) == b"1"
            assert await refusal_of(anext(replies)) == (StatusCode.NOT_FOUND, "gone")

    async def test_closing_a_stream_reaches_the_broker(self):
        groups = ClosableGroups([b"1"])

        async def handler(request, call):
            return groups

        async with self.connected(stream=handler) as channel:
            replies = channel.stream("/test/stream", b"")
            await within_patience(anext(replies))
            await replies.aclose()
            await within_patience(groups.closed.wait())

    async def test_closing_the_channel_cuts_running_calls_off(self):
        started = asyncio.Event()

        async def hang(request, call):
            started.set()
            await asyncio.Event().wait()

        async def never_end(request, call):
            return ClosableGroups([b"1"])

        async with self.connected(unary=hang, stream=never_end) as channel:
            call = asyncio.create_task(channel.unary("/test/unary", b""))
            replies = channel.stream("/test/stream", b"")
            await within_patience(anext(replies))
            next_reply = asyncio.create_task(anext(replies))
            await within_patience(started.wait())
            await channel.close()
            for running in (call, next_reply):
                code, _ = await refusal_of(running)
                assert code is StatusCode.CANCELLED
            for late in (channel.unary("/test/unary", b""), anext(channel.stream("/x/y", b""))):
                code, _ = await refusal_of(late)
                assert code is StatusCode.CANCELLED

    async def test_two_channels_are_two_connections(self):
        async def handler(request, call):
            return call.peer.encode()

        server = await serve(unary=handler)
        channels = [self.channel(f"http://127.0.0.1:{server.port}") for _ in range(2)]
        peers = {await channel.unary("/test/unary", b"") for channel in channels}
        assert len(peers) == 2
        for channel in channels:
            await channel.close()
        await server.stop(0)

    async def test_an_exchange_carries_requests_and_replies_in_turns(self):
        async def handler(requests, call):
            async def groups():
                yield [call.metadata["who"].encode()]
                async for request in requests:
                    yield [request[::-1]]

            return groups()

        questions = asyncio.Queue()

        async def requests():
            while (question := await questions.get()) is not None:
                yield question

        async with self.connected(exchange=handler) as channel:
            replies = channel.exchange("/test/exchange", requests(), metadata={"who": "me"})
            assert await within_patience(anext(replies)) == b"me"
            for word in (b"ab", b"", b"xy" * 3_000_000):
                questions.put_nowait(word)
                assert await within_patience(anext(replies)) == word[::-1]
            questions.put_nowait(None)
            with pytest.raises(StopAsyncIteration):
                await within_patience(anext(replies))

    async def test_replies_of_an_exchange_go_on_after_its_last_request(self):
        async def handler(requests, call):
            async def groups():
                count = len([request async for request in requests])
                yield [b"%d" % count]
                yield [b"more"]

            return groups()

        async with self.connected(exchange=handler) as channel:
            for count in (0, 1, 500):
                replies = channel.exchange("/test/exchange", repeated(b"x" * 1000, count))
                assert [reply async for reply in replies] == [b"%d" % count, b"more"]

    async def test_an_exchange_may_be_refused_before_its_last_request(self):
        async with self.connected(exchange=refuse_the_second) as channel:
            replies = channel.exchange("/test/exchange", endless(b"1"))
            assert await within_patience(anext(replies)) == b"1"
            refused = await refusal_of(anext(replies))
            assert refused == (StatusCode.FAILED_PRECONDITION, "enough")

    async def test_closing_an_exchange_reaches_the_broker(self):
        closed = asyncio.Event()

        async def handler(requests, call):
            async def groups():
                try:
                    async for request in requests:
                        yield [request]
                finally:
                    closed.set()

            return groups()

        async with self.connected(exchange=handler) as channel:
            replies = channel.exchange("/test/exchange", endless(b"1"))
            assert await within_patience(anext(replies)) == b"1"
            await replies.aclose()
            await within_patience(closed.wait())

    async def test_an_exchange_with_a_broker_that_is_not_there_is_unavailable(self):
        channel = self.channel(f"http://127.0.0.1:{free_port()}")
        replies = channel.exchange("/test/exchange", repeated(b"x", 3))
        code, _ = await refusal_of(anext(replies))
        assert code is StatusCode.UNAVAILABLE
        await channel.close()

    async def test_closing_the_channel_cuts_an_exchange_off(self):
        async def handler(requests, call):
            async def groups():
                async for request in requests:
                    yield [request]

            return groups()

        async with self.connected(exchange=handler) as channel:
            replies = channel.exchange("/test/exchange", endless(b"1"))
            assert await within_patience(anext(replies)) == b"1"
            waiting = asyncio.create_task(anext(replies))
            await asyncio.sleep(0)
            await channel.close()
            code, _ = await refusal_of(waiting)
            assert code is StatusCode.CANCELLED


async def repeated(request, count):
    for _ in range(count):
        yield request


async def endless(request):
    yield request
    await asyncio.Event().wait()


async def refuse_the_second(requests, call):
    async def groups():
        yield [await anext(requests)]
        raise CallRefused(StatusCode.FAILED_PRECONDITION, "enough")

    return groups()
