"""The engine of simulated worlds keeps the promises that clients of the real ones rely on."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.loop import run_simulated
from pydanube.runtime.simulation.network import SimulatedNetwork
from pydanube.wire.calls import CallRefused, HandlerTable, StatusCode
from tests.contract.engine_contract import ClosableGroups
from tests.support.plain_engine import PlainChannel, PlainEngine, PlainServer

PORT = 6650


class Wire:
    """A server on one simulated host and a client on another."""

    def __init__(self, randomness: Randomness) -> None:
        self.network = SimulatedNetwork(randomness, stall_seconds=5.0, connect_seconds=2.0)
        self.table = HandlerTable()
        self.channel = PlainChannel(self.network.host("client"), "server", PORT)

    async def serve(self) -> PlainServer:
        return await PlainEngine(self.network.host("server")).serve(self.table, "", PORT)


def on_a_wire(body: Callable[[Wire], Awaitable[None]]) -> Callable[[], None]:
    async def run(randomness: Randomness) -> None:
        wire = Wire(randomness)
        await body(wire)
        await wire.channel.close()

    def test() -> None:
        for seed in range(5):
            run_simulated(run, seed)

    test.__name__ = body.__name__
    return test


async def refusal_of(call: Awaitable[object]) -> StatusCode:
    with pytest.raises(CallRefused) as refused:
        await call
    return refused.value.code


async def echo(request: bytes, call: object) -> bytes:
    return request


@on_a_wire
async def test_calls_at_once_get_their_own_answers(wire: Wire) -> None:
    wire.table.add_unary("/echo", echo)
    wire.table.add_direct("/direct", lambda request, call, reply: reply.send(request[::-1]))
    await wire.serve()
    requests = [b"%d" % number for number in range(100, 150)]
    calls = [wire.channel.unary("/echo", request) for request in requests]
    calls += [wire.channel.unary("/direct", request) for request in requests]
    assert await asyncio.gather(*calls) == requests + [request[::-1] for request in requests]


@on_a_wire
async def test_refusals_and_unknown_methods_reach_the_caller(wire: Wire) -> None:
    async def refuse(request: bytes, call: object) -> bytes:
        raise CallRefused(StatusCode.NOT_FOUND, "no such thing")

    wire.table.add_unary("/refuse", refuse)
    await wire.serve()
    assert await refusal_of(wire.channel.unary("/refuse", b"")) is StatusCode.NOT_FOUND
    assert await refusal_of(wire.channel.unary("/nothing", b"")) is StatusCode.UNIMPLEMENTED


@on_a_wire
async def test_a_deadline_cancels_the_handler(wire: Wire) -> None:
    cancelled = asyncio.Event()

    async def hang(request: bytes, call: object) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return b""

    wire.table.add_unary("/hang", hang)
    await wire.serve()
    call = wire.channel.unary("/hang", b"", timeout_seconds=0.5)
    assert await refusal_of(call) is StatusCode.DEADLINE_EXCEEDED
    await cancelled.wait()


@on_a_wire
async def test_a_stream_comes_in_order_and_ends(wire: Wire) -> None:
    async def count(request: bytes, call: object):
        async def groups():
            yield [b"1", b"2"]
            yield [b"3"]

        return groups()

    wire.table.add_stream("/count", count)
    await wire.serve()
    assert [reply async for reply in wire.channel.stream("/count", b"")] == [b"1", b"2", b"3"]


@on_a_wire
async def test_a_stream_that_nobody_reads_any_more_is_closed(wire: Wire) -> None:
    closed = asyncio.Event()

    async def endless(request: bytes, call: object):
        async def groups():
            try:
                yield [b"1"]
                await asyncio.Event().wait()
            finally:
                closed.set()

        return groups()

    wire.table.add_stream("/endless", endless)
    await wire.serve()
    stream = wire.channel.stream("/endless", b"")
    assert await anext(stream) == b"1"
    await stream.aclose()
    await closed.wait()


@on_a_wire
async def test_a_killed_server_fails_its_calls_and_the_next_one_is_found(wire: Wire) -> None:
    async def hang(request: bytes, call: object) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def endless(request: bytes, call: object):
        return ClosableGroups([b"1"])

    wire.table.add_unary("/echo", echo)
    wire.table.add_unary("/hang", hang)
    wire.table.add_stream("/endless", endless)
    await wire.serve()
    stream = wire.channel.stream("/endless", b"")
    assert await anext(stream) == b"1"
    call = asyncio.create_task(wire.channel.unary("/hang", b""))
    await asyncio.sleep(0.1)
    wire.network.kill("server")
    assert await refusal_of(call) is StatusCode.UNAVAILABLE
    assert await refusal_of(anext(stream)) is StatusCode.UNAVAILABLE
    assert await refusal_of(wire.channel.unary("/echo", b"")) is StatusCode.UNAVAILABLE
    await wire.serve()
    assert await wire.channel.unary("/echo", b"back") == b"back"


@on_a_wire
async def test_a_stop_lets_running_calls_end_and_refuses_new_ones(wire: Wire) -> None:
    finish = asyncio.Event()

    async def slow(request: bytes, call: object) -> bytes:
        await finish.wait()
        return b"done"

    wire.table.add_unary("/slow", slow)
    server = await wire.serve()
    call = asyncio.create_task(wire.channel.unary("/slow", b""))
    await asyncio.sleep(0.1)
    stopping = asyncio.create_task(server.stop(5.0))
    await asyncio.sleep(0.1)
    assert await refusal_of(wire.channel.unary("/slow", b"")) is StatusCode.UNAVAILABLE
    finish.set()
    assert await call == b"done"
    await stopping
    assert await refusal_of(wire.channel.unary("/slow", b"")) is StatusCode.UNAVAILABLE


def test_an_error_in_a_handler_fails_the_simulation() -> None:
    async def main(randomness: Randomness) -> None:
        async def fail(request: bytes, call: object) -> bytes:
            raise ZeroDivisionError("a bug")

        wire = Wire(randomness)
        wire.table.add_unary("/fail", fail)
        await wire.serve()
        call = wire.channel.unary("/fail", b"", timeout_seconds=1.0)
        assert await refusal_of(call) is StatusCode.DEADLINE_EXCEEDED

    with pytest.raises(ZeroDivisionError, match="a bug"):
        run_simulated(main, 1)
