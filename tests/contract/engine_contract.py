"""What every engine owes the handlers it serves and the clients that call it.

A subclass says which engine; the calling side is a stock grpcio client, or a bare socket where
the frames themselves matter.
"""

import asyncio
import random
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from pydanube.wire.calls import CallRefused, HandlerTable, StatusCode, body_bytes
from pydanube.wire.danube import services
from tests.support.raw_http2 import DATA, HEADERS, RawCall

PATIENCE_SECONDS = 20


def within_patience(awaitable):
    return asyncio.wait_for(awaitable, PATIENCE_SECONDS)


class ClosableGroups:
    """An iterator that gives what is put in, and remembers being closed."""

    def __init__(self, *groups):
        self.queue = asyncio.Queue()
        self.closed = asyncio.Event()
        for group in groups:
            self.queue.put_nowait(group)

    def __aiter__(self):
        return self

    async def __anext__(self):
        group = await self.queue.get()
        if isinstance(group, BaseException):
            raise group
        return group

    async def aclose(self):
        self.closed.set()


class EngineContract:
    def engine(self):
        raise AssertionError("a subclass names the engine")

    @asynccontextmanager
    async def serving(self, *, unary=None, direct=None, stream=None, exchange=None):
        """Serve the given handlers at /test/unary, /test/direct, /test/stream, /test/exchange."""
        table = HandlerTable()
        if unary is not None:
            table.add_unary("/test/unary", unary)
        if direct is not None:
            table.add_direct("/test/direct", direct)
        if stream is not None:
            table.add_stream("/test/stream", stream)
        if exchange is not None:
            table.add_exchange("/test/exchange", exchange)
        server = await self.engine().serve(table, "127.0.0.1", 0)
        channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{server.port}",
            options=[("grpc.max_receive_message_length", -1)],
        )
        try:
            yield server, channel
        finally:
            await channel.close()
            await server.stop(0)

    @staticmethod
    async def refusal_of(call):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await within_patience(call)
        return error.value.code().name, error.value.details()

    async def test_a_handler_meets_the_request_the_path_the_peer_and_the_headers(self):
        seen = []

        async def handler(request, call):
            seen.append(call)
            return request[::-1]

        async with self.serving(unary=handler) as (_, channel):
            method = channel.unary_unary("/test/unary")
            metadata = (("x-danube-broker-url", "http://b:6650"), ("trace-bin", b"\0\1"))
            assert await method(b"abc", metadata=metadata) == b"cba"
            await method(b"")
        assert seen[0].path == "/test/unary"
        assert seen[0].peer.startswith("ipv4:127.0.0.1:")
        assert seen[0].peer == seen[1].peer
        assert seen[0].metadata["x-danube-broker-url"] == "http://b:6650"
        assert "trace-bin" not in seen[0].metadata

    async def test_another_connection_is_another_peer(self):
        peers = set()

        async def handler(request, call):
            peers.add(call.peer)
            return b""

        async with self.serving(unary=handler) as (server, channel):
            await channel.unary_unary("/test/unary")(b"")
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options) as other:
                await other.unary_unary("/test/unary")(b"")
        assert len(peers) == 2

    async def test_an_unknown_method_is_unimplemented(self):
        async with self.serving() as (_, channel):
            code, _ = await self.refusal_of(channel.unary_unary("/test/nothing")(b""))
            assert code == "UNIMPLEMENTED"

    @pytest.mark.parametrize("code", [code for code in StatusCode if code is not StatusCode.OK])
    async def test_a_refusal_reaches_the_caller_with_its_code_and_text(self, code):
        async def handler(request, call):
            raise CallRefused(code, "topic /default/späti: 100 % full\n…")

        async with self.serving(unary=handler) as (_, channel):
            assert await self.refusal_of(channel.unary_unary("/test/unary")(b"")) == (
                code.name,
                "topic /default/späti: 100 % full\n…",
            )

    async def test_a_long_text_is_shortened_rather_than_lost(self):
        async def handler(request, call):
            raise CallRefused(StatusCode.INVALID_ARGUMENT, "🦊" * 100_000)

        async with self.serving(unary=handler) as (_, channel):
            code, text = await self.refusal_of(channel.unary_unary("/test/unary")(b""))
        assert code == "INVALID_ARGUMENT"
        assert text.startswith("🦊" * 100)

    async def test_an_unexpected_error_is_internal_and_logged_and_the_server_lives_on(self, caplog):
        async def handler(request, call):
            if request == b"bug":
                raise ZeroDivisionError("a secret detail")
            return b"alive"

        async with self.serving(unary=handler) as (_, channel):
            method = channel.unary_unary("/test/unary")
            code, text = await self.refusal_of(method(b"bug"))
            assert code == "INTERNAL"
            assert "secret" not in text
            assert await method(b"") == b"alive"
        assert any(
            record.exc_info and "test/unary" in record.getMessage() for record in caplog.records
        )

    async def test_a_handler_whose_own_work_was_cancelled_still_answers(self):
        async def handler(request, call):
            work = asyncio.get_running_loop().create_future()
            work.cancel()
            await work

        async with self.serving(unary=handler) as (_, channel):
            code, _ = await self.refusal_of(channel.unary_unary("/test/unary")(b""))
            assert code == "UNAVAILABLE"

    async def test_garbage_for_a_typed_handler_is_an_invalid_argument(self):
        async def ack(request, call):
            raise AssertionError("called with garbage")

        async with self.serving(unary=services.unary(services.ACK, ack)) as (_, channel):
            code, text = await self.refusal_of(channel.unary_unary("/test/unary")(b"\xff\xff"))
            assert (code, "danube.AckRequest" in text) == ("INVALID_ARGUMENT", True)

    async def test_a_message_above_every_policy_reaches_the_handler(self):
        async def handler(request, call):
            return request

        async with self.serving(unary=handler) as (_, channel):
            request = bytes(5 * 1024 * 1024)
            assert await channel.unary_unary("/test/unary")(request) == request

    async def test_two_hundred_calls_run_at_once(self):
        everybody = asyncio.Barrier(200)

        async def handler(request, call):
            await everybody.wait()
            return request

        async with self.serving(unary=handler) as (_, channel):
            method = channel.unary_unary("/test/unary")
            requests = [b"%d" % number for number in range(200)]
            replies = asyncio.gather(*(method(request) for request in requests))
            assert await within_patience(replies) == requests

    async def test_a_caller_that_gives_up_cancels_the_handler(self):
        started, cancelled = asyncio.Event(), asyncio.Event()

        async def handler(request, call):
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        async with self.serving(unary=handler) as (_, channel):
            call = channel.unary_unary("/test/unary")(b"")
            await within_patience(started.wait())
            call.cancel()
            assert await within_patience(cancelled.wait())

    async def test_a_deadline_that_passes_cancels_the_handler(self):
        cancelled = asyncio.Event()

        async def handler(request, call):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        async with self.serving(unary=handler) as (_, channel):
            code, _ = await self.refusal_of(channel.unary_unary("/test/unary")(b"", timeout=0.1))
            assert code == "DEADLINE_EXCEEDED"
            await within_patience(cancelled.wait())

    async def test_a_direct_handler_answers_now_or_later(self):
        waiting = asyncio.Queue()

        def handler(request, call, reply):
            assert call.path == "/test/direct"
            if request == b"now":
                reply.send(b"at once")
            else:
                waiting.put_nowait(reply)

        async with self.serving(direct=handler) as (_, channel):
            method = channel.unary_unary("/test/direct")
            assert await method(b"now") == b"at once"
            calls = [method(b"later"), method(b"later")]
            replies = [await within_patience(waiting.get()) for _ in calls]
            replies[1].send(b"in the end")
            replies[0].send(b"in the end")
            assert await within_patience(asyncio.gather(*calls)) == [b"in the end"] * 2

    async def test_a_direct_handler_refuses(self):
        def handler(request, call, reply):
            reply.refuse(StatusCode.OUT_OF_RANGE, "damaged")

        async with self.serving(direct=handler) as (_, channel):
            refused = await self.refusal_of(channel.unary_unary("/test/direct")(b""))
            assert refused == ("OUT_OF_RANGE", "damaged")

    async def test_a_direct_answer_to_a_caller_that_has_gone_is_dropped(self):
        waiting = asyncio.Queue()

        def handler(request, call, reply):
            if request == b"go":
                waiting.put_nowait(reply)
            else:
                reply.send(b"alive")

        async with self.serving(direct=handler) as (_, channel):
            method = channel.unary_unary("/test/direct")
            call = method(b"go")
            reply = await within_patience(waiting.get())
            call.cancel()
            assert await method(b"") == b"alive"
            reply.send(b"too late")
            reply.refuse(StatusCode.INTERNAL, "later still")
            assert await method(b"") == b"alive"

    async def test_groups_arrive_as_separate_messages_in_order(self):
        async def handler(request, call):
            async def groups():
                yield [b"1", b"", b"3"]
                yield []
                yield [b"4"]

            return groups()

        async with self.serving(stream=handler) as (_, channel):
            replies = [reply async for reply in channel.unary_stream("/test/stream")(b"")]
        assert replies == [b"1", b"", b"3", b"4"]

    async def test_headers_are_sent_before_the_first_message(self):
        groups = ClosableGroups()

        async def handler(request, call):
            return groups

        async with self.serving(stream=handler) as (server, channel):
            call = channel.unary_stream("/test/stream")(b"")
            await within_patience(call.initial_metadata())
            groups.queue.put_nowait([b"first"])
            assert await within_patience(call.read()) == b"first"
            call.cancel()
            await within_patience(groups.closed.wait())
            async with RawCall(server.port, "/test/stream") as raw:
                frame = await within_patience(raw.next_frame())
                assert (frame.type, frame.ends_stream) == (HEADERS, False)

    async def test_a_stream_refused_by_its_handler_sends_nothing_but_trailers(self):
        async def handler(request, call):
            raise CallRefused(StatusCode.NOT_FOUND, "no consumer 7")

        async with self.serving(stream=handler) as (server, channel):
            call = channel.unary_stream("/test/stream")(b"")
            assert await self.refusal_of(call.read()) == ("NOT_FOUND", "no consumer 7")
            async with RawCall(server.port, "/test/stream") as raw:
                frames = await within_patience(raw.frames_to_the_end())
                assert [frame.type for frame in frames] == [HEADERS]

    async def test_a_refusal_inside_a_stream_comes_after_its_messages(self):
        groups = ClosableGroups([b"last"], CallRefused(StatusCode.UNAVAILABLE, "moved"))

        async def handler(request, call):
            return groups

        async with self.serving(stream=handler) as (_, channel):
            call = channel.unary_stream("/test/stream")(b"")
            assert await within_patience(call.read()) == b"last"
            assert await self.refusal_of(call.read()) == ("UNAVAILABLE", "moved")
            await within_patience(groups.closed.wait())

    async def test_an_unexpected_error_inside_a_stream_is_internal_and_logged(self, caplog):
        groups = ClosableGroups(ZeroDivisionError("a secret detail"))

        async def handler(request, call):
            return groups

        async with self.serving(stream=handler) as (_, channel):
            code, text = await self.refusal_of(channel.unary_stream("/test/stream")(b"").read())
            assert (code, "secret" in text) == ("INTERNAL", False)
            await within_patience(groups.closed.wait())
        assert any(record.exc_info for record in caplog.records)

    async def test_a_clean_end_is_ok_on_the_wire(self):
        async def handler(request, call):
            async def groups():
                yield [b"only"]

            return groups()

        async with self.serving(stream=handler) as (server, channel):
            call = channel.unary_stream("/test/stream")(b"")
            assert [reply async for reply in call] == [b"only"]
            assert await call.code() is grpc.StatusCode.OK
            async with RawCall(server.port, "/test/stream") as raw:
                frames = await within_patience(raw.frames_to_the_end())
                assert [frame.type for frame in frames] == [HEADERS, DATA, HEADERS]

    async def test_a_cancelled_stream_closes_its_iterator(self):
        groups = ClosableGroups([b"first"])

        async def handler(request, call):
            return groups

        async with self.serving(stream=handler) as (_, channel):
            call = channel.unary_stream("/test/stream")(b"")
            assert await within_patience(call.read()) == b"first"
            call.cancel()
            assert await within_patience(groups.closed.wait())

    async def test_a_cancelled_stream_runs_a_generators_clean_up(self):
        cleaned = asyncio.Event()

        async def handler(request, call):
            async def groups():
                try:
                    yield [b"first"]
                    await asyncio.Event().wait()
                finally:
                    cleaned.set()

            return groups()

        async with self.serving(stream=handler) as (_, channel):
            call = channel.unary_stream("/test/stream")(b"")
            assert await within_patience(call.read()) == b"first"
            call.cancel()
            assert await within_patience(cleaned.wait())

    async def test_a_lost_connection_closes_the_iterator(self):
        groups = ClosableGroups()

        async def handler(request, call):
            return groups

        async with self.serving(stream=handler) as (server, _):
            async with RawCall(server.port, "/test/stream") as raw:
                await within_patience(raw.next_frame())
            assert await within_patience(groups.closed.wait())

    async def test_a_reader_that_does_not_keep_up_holds_the_iterator_back(self):
        taken = 0
        blocked = asyncio.Event()
        closed = asyncio.Event()

        async def groups():
            nonlocal taken
            try:
                while True:
                    taken += 1
                    asyncio.get_running_loop().call_later(0.5, report_if_still, taken)
                    yield [bytes(256 * 1024)]
            finally:
                closed.set()

        def report_if_still(then):
            if taken == then:
                blocked.set()

        async def handler(request, call):
            return groups()

        async with self.serving(stream=handler) as (_, channel):
            call = channel.unary_stream("/test/stream")(b"")
            await within_patience(blocked.wait())
            assert taken < 200
            call.cancel()
            await within_patience(closed.wait())

    async def test_a_taken_port_is_refused_by_its_address(self):
        async with self.serving() as (server, _):
            with pytest.raises(OSError, match=f"127.0.0.1:{server.port}"):
                await self.engine().serve(HandlerTable(), "127.0.0.1", server.port)

    async def test_a_port_is_free_again_after_stop(self):
        server = await self.engine().serve(HandlerTable(), "127.0.0.1", 0)
        await server.stop(0)
        again = await self.engine().serve(HandlerTable(), "127.0.0.1", server.port)
        assert again.port == server.port
        await again.stop(0)

    async def test_stopping_lets_running_calls_end(self):
        started, finish = asyncio.Event(), asyncio.Event()

        async def handler(request, call):
            started.set()
            await finish.wait()
            return b"done"

        async with self.serving(unary=handler) as (server, channel):
            call = channel.unary_unary("/test/unary")(b"")
            await within_patience(started.wait())
            stopping = asyncio.create_task(server.stop(PATIENCE_SECONDS))
            await asyncio.sleep(0.05)
            finish.set()
            assert await within_patience(call) == b"done"
            await within_patience(stopping)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as late:
                code, _ = await self.refusal_of(late.unary_unary("/test/unary")(b""))
                assert code == "UNAVAILABLE"

    async def test_stopping_cuts_off_what_outlasts_the_grace(self):
        groups = ClosableGroups()

        async def handler(request, call):
            return groups

        async with self.serving(stream=handler) as (server, channel):
            call = channel.unary_stream("/test/stream")(b"")
            await within_patience(call.initial_metadata())
            await within_patience(server.stop(0.1))
            await within_patience(groups.closed.wait())
            code, _ = await self.refusal_of(call.read())
            assert code in {"UNAVAILABLE", "CANCELLED"}

    async def test_requests_and_replies_of_an_exchange_take_turns_as_the_two_ends_like(self):
        seen = []

        async def handler(requests, call):
            seen.append(call)

            async def groups():
                async for request in requests:
                    yield [request, request[::-1]]

            return groups()

        async with self.serving(exchange=handler) as (_, channel):
            call = channel.stream_stream("/test/exchange")(metadata=(("who", "me"),))
            for word in (b"ab", b"", b"cd" * 100_000):
                await call.write(word)
                assert await within_patience(call.read()) == word
                assert await within_patience(call.read()) == word[::-1]
            await call.done_writing()
            assert await within_patience(call.read()) is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK
        assert (seen[0].path, seen[0].metadata["who"]) == ("/test/exchange", "me")

    async def test_replies_of_an_exchange_may_come_before_any_request(self):
        async def handler(requests, call):
            async def groups():
                yield [b"first"]
                yield [b"%d" % len([request async for request in requests])]

            return groups()

        async with self.serving(exchange=handler) as (_, channel):
            call = channel.stream_stream("/test/exchange")()
            assert await within_patience(call.read()) == b"first"
            for _ in range(3):
                await call.write(b"x")
            await call.done_writing()
            assert await within_patience(call.read()) == b"3"
            assert await within_patience(call.read()) is grpc.aio.EOF

    async def test_an_exchange_without_requests_ends(self):
        async def handler(requests, call):
            async def groups():
                async for _ in requests:
                    raise AssertionError("there is none")
                yield [b"none"]

            return groups()

        async with self.serving(exchange=handler) as (_, channel):
            call = channel.stream_stream("/test/exchange")(iter(()))
            assert [reply async for reply in call] == [b"none"]

    async def test_a_handler_may_read_requests_before_it_gives_replies(self):
        async def handler(requests, call):
            first = await anext(requests)
            if first == b"no":
                raise CallRefused(StatusCode.NOT_FOUND, "no such thing")

            async def groups():
                yield [first]

            return groups()

        async with self.serving(exchange=handler) as (_, channel):
            method = channel.stream_stream("/test/exchange")
            assert [reply async for reply in method(iter([b"yes"]))] == [b"yes"]
            call = method()
            await call.write(b"no")
            assert await self.refusal_of(call.read()) == ("NOT_FOUND", "no such thing")

    async def test_an_exchange_may_be_refused_while_its_caller_goes_on(self):
        async def handler(requests, call):
            async def groups():
                yield [await anext(requests)]
                raise CallRefused(StatusCode.FAILED_PRECONDITION, "enough")

            return groups()

        async with self.serving(exchange=handler) as (_, channel):
            method = channel.stream_stream("/test/exchange")
            for _ in range(3):
                call = method()
                await call.write(b"x" * 100_000)
                assert await within_patience(call.read()) == b"x" * 100_000
                assert await self.refusal_of(call.read()) == ("FAILED_PRECONDITION", "enough")

    async def test_a_handler_that_has_no_more_replies_ends_the_exchange(self):
        async def handler(requests, call):
            async def groups():
                yield [await anext(requests)]

            return groups()

        async with self.serving(exchange=handler) as (_, channel):
            call = channel.stream_stream("/test/exchange")()
            await call.write(b"x")
            assert await within_patience(call.read()) == b"x"
            assert await within_patience(call.read()) is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK

    async def test_an_unexpected_error_within_an_exchange_is_internal_and_logged(self, caplog):
        async def handler(requests, call):
            async def groups():
                yield [await anext(requests)]
                raise ZeroDivisionError("a secret detail")

            return groups()

        async with self.serving(exchange=handler) as (_, channel):
            call = channel.stream_stream("/test/exchange")()
            await call.write(b"x")
            await within_patience(call.read())
            code, text = await self.refusal_of(call.read())
            assert (code, "secret" in text) == ("INTERNAL", False)
        assert any(record.exc_info for record in caplog.records)

    async def test_a_caller_that_gives_an_exchange_up_ends_both_its_ways(self):
        reading_ended, closed = asyncio.Event(), asyncio.Event()

        async def handler(requests, call):
            async def read():
                try:
                    async for _ in requests:
                        pass
                finally:
                    reading_ended.set()

            async def groups():
                reading = asyncio.create_task(read())
                try:
                    yield [b"hello"]
                    await asyncio.Event().wait()
                finally:
                    reading.cancel()
                    closed.set()

            return groups()

        async with self.serving(exchange=handler) as (_, channel):
            call = channel.stream_stream("/test/exchange")()
            await call.write(b"x")
            assert await within_patience(call.read()) == b"hello"
            call.cancel()
            await within_patience(closed.wait())
            await within_patience(reading_ended.wait())

    async def test_a_handler_that_does_not_read_holds_the_caller_back(self):
        go_on = asyncio.Event()
        seen = []

        async def handler(requests, call):
            async def groups():
                await go_on.wait()
                async for request in requests:
                    seen.append(body_bytes(request))
                yield [b"done"]

            return groups()

        async with self.serving(exchange=handler) as (_, channel):
            call = channel.stream_stream("/test/exchange")()
            written = 0

            async def write_all():
                nonlocal written
                for _ in range(200):
                    await call.write(bytes(256 * 1024))
                    written += 1
                await call.done_writing()

            writing = asyncio.create_task(write_all())
            before = -1
            while written != before:
                before = written
                await asyncio.sleep(0.5)
            assert written < 100, "the caller was let ahead of the handler without a bound"
            go_on.set()
            assert await within_patience(call.read()) == b"done"
            await within_patience(writing)
        assert seen == [256 * 1024] * 200

    async def test_messages_of_an_exchange_may_be_larger_than_any_window(self):
        async def handler(requests, call):
            async def groups():
                async for request in requests:
                    yield [request]

            return groups()

        async with self.serving(exchange=handler) as (_, channel):
            call = channel.stream_stream("/test/exchange")()
            for size in (5, 9, 3):
                request = random.Random(size).randbytes(size * 1024 * 1024)
                await call.write(request)
                assert await within_patience(call.read()) == request
                await call.write(b"short")
                assert await within_patience(call.read()) == b"short"

    async def test_many_exchanges_of_one_connection_run_at_once(self):
        async def handler(requests, call):
            async def groups():
                async for request in requests:
                    yield [request]

            return groups()

        async with self.serving(exchange=handler) as (_, channel):
            calls = [channel.stream_stream("/test/exchange")() for _ in range(50)]
            for size in (70_000, 300_000, 10, 600_000):
                words = [random.Random(number).randbytes(size) for number in range(50)]
                sending = zip(calls, words, strict=True)
                await asyncio.gather(*(call.write(word) for call, word in sending))
                replies = await within_patience(asyncio.gather(*(call.read() for call in calls)))
                assert replies == words
