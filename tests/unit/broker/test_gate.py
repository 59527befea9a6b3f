"""The gate: calls of every kind wait until the broker serves, and are refused once it stops."""

import asyncio

import pytest

from pydanube.broker.gate import Gate
from pydanube.observability.metrics import BrokerMetrics
from pydanube.wire.calls import Call, CallRefused, HandlerTable, StatusCode
from pydanube.wire.flight import service

CALL = Call(path="", peer="ipv4:test:1", metadata={})


async def one_group():
    yield [b"reply"]


async def no_requests():
    for _ in ():
        yield b""


def serving() -> HandlerTable:
    table = HandlerTable()

    async def unary(request, call):
        return request

    async def stream(request, call):
        return one_group()

    async def exchange(requests, call):
        if call.path == "refuse":
            raise CallRefused(StatusCode.NOT_FOUND, "no")
        return one_group()

    for path in service.UNARY:
        table.add_unary(path, unary)
    for path in service.STREAMS:
        table.add_stream(path, stream)
    for path in service.EXCHANGES:
        table.add_exchange(path, exchange)
    return table


@pytest.fixture
async def gate() -> Gate:
    return Gate([service.SERVICE], BrokerMetrics(""))


def calls_through(gate: Gate):
    yield gate.table.unary[service.GET_SCHEMA](b"x", CALL)
    yield gate.table.streams[service.DO_GET](b"x", CALL)
    yield gate.table.exchanges[service.DO_PUT](no_requests(), CALL)


async def test_every_method_of_flight_passes_through_the_gate(gate):
    assert gate.table.unary.keys() == set(service.UNARY)
    assert gate.table.streams.keys() == set(service.STREAMS)
    assert gate.table.exchanges.keys() == set(service.EXCHANGES)


async def test_calls_wait_until_the_broker_serves(gate):
    waiting = [asyncio.ensure_future(call) for call in calls_through(gate)]
    await asyncio.sleep(0.01)
    assert not any(call.done() for call in waiting)
    gate.open(serving())
    reply, stream, exchange = await asyncio.gather(*waiting)
    assert reply == b"x"
    assert [group async for group in stream] == [[b"reply"]]
    assert [group async for group in exchange] == [[b"reply"]]


async def test_what_is_served_early_is_answered_before_all_else_also_to_those_who_wait(gate):
    held = asyncio.ensure_future(gate.table.unary[service.GET_SCHEMA](b"held", CALL))
    other = asyncio.ensure_future(gate.table.unary[service.GET_FLIGHT_INFO](b"other", CALL))
    await asyncio.sleep(0)
    early = HandlerTable()
    early.add_unary(service.GET_SCHEMA, serving().unary[service.GET_SCHEMA])
    gate.serve_early(early)
    assert await held == b"held"
    assert await gate.table.unary[service.GET_SCHEMA](b"later", CALL) == b"later"
    assert not other.done()
    gate.open(serving())
    assert await other == b"other"


async def test_nothing_is_held_for_what_an_operator_must_do(gate):
    gate.waits_for = lambda: "type this"
    for call in calls_through(gate):
        with pytest.raises(CallRefused, match="type this") as refused:
            await call
        assert refused.value.code is StatusCode.UNAVAILABLE
    gate.open(serving())
    gate.waits_for = lambda: None
    assert await gate.table.unary[service.GET_SCHEMA](b"x", CALL) == b"x"


async def test_calls_are_refused_once_the_broker_stops(gate):
    held = [asyncio.ensure_future(call) for call in calls_through(gate)]
    await asyncio.sleep(0)
    gate.close()
    for call in [*held, *calls_through(gate)]:
        with pytest.raises(CallRefused) as refused:
            await call
        assert refused.value.code is StatusCode.UNAVAILABLE


async def test_exchanges_are_counted_by_how_they_begin():
    metrics = BrokerMetrics("")
    gate = Gate([service.SERVICE], metrics)
    gate.open(serving())
    handler = gate.table.exchanges[service.DO_EXCHANGE]
    await handler(no_requests(), CALL)
    with pytest.raises(CallRefused):
        await handler(no_requests(), Call(path="refuse", peer="", metadata={}))
    counts = metrics.rpc(service.DO_EXCHANGE)
    assert (counts.ok, counts.errors) == (1, 1)


async def test_without_flight_there_is_none():
    assert not Gate([], BrokerMetrics("")).table.exchanges
