"""Attackers on real sockets: each is told to calm down and cut off, and others are still served."""

import asyncio
import gc
from contextlib import asynccontextmanager, suppress

import pytest

from pydanube.wire.calls import HandlerTable
from pydanube.wire.http2.channel import Http2Channel
from pydanube.wire.http2.engine import Http2Engine
from pydanube.wire.http2.errors import ErrorCode
from pydanube.wire.http2.frames import END_STREAM, HEADERS, SETTINGS, window_update_frame
from pydanube.wire.http2.limits import MIB, Http2Limits
from pydanube.wire.http2.server_codec import UNREAD_REPLIES
from pydanube.wire.http2.settings import INITIAL_WINDOW_SIZE, settings_frame
from tests.contract.engine_contract import PATIENCE_SECONDS, within_patience
from tests.support.http2_attacks import ATTACKS, CROWDS, Attacker, Target
from tests.support.http2_peers import HELLO

LONG_REPLY_BYTES = 100_000
TARGET = Target("/test/direct", "/test/large", b"", LONG_REPLY_BYTES)
COUNTED_REPLY_BYTES = LONG_REPLY_BYTES // 10
COUNTED = Target("/test/large", "/test/large", b"", COUNTED_REPLY_BYTES)
LISTENERS = [name for name, attack in ATTACKS.items() if attack.reads and name not in CROWDS]


async def none_left(server):
    while server.connection_count:
        await asyncio.sleep(0.01)


async def only_one_left(server):
    while server.connection_count != 1:
        await asyncio.sleep(0.01)


@asynccontextmanager
async def attacked(**limits):
    """Serve, with one honest client that is answered before and after what happens within."""
    table = HandlerTable()
    table.add_direct("/test/direct", lambda message, call, reply: reply.send(message))
    table.add_direct(
        "/test/large", lambda message, call, reply: reply.send(bytes(LONG_REPLY_BYTES))
    )
    server = await Http2Engine(limits=Http2Limits(**limits)).serve(table, "127.0.0.1", 0)
    honest = Http2Channel(f"127.0.0.1:{server.port}")
    attackers = []

    async def attack(*, reads=True):
        attackers.append(await Attacker.connect(server.port, reads=reads))
        return attackers[-1]

    try:
        assert await within_patience(honest.unary("/test/direct", b"before")) == b"before"
        yield server, attack
        assert await within_patience(honest.unary("/test/direct", b"after")) == b"after"
        assert honest._connection.is_usable
    finally:
        for attacker in attackers:
            attacker.close()
        await honest.close()
        await server.stop(0)


@pytest.mark.parametrize("name", LISTENERS)
async def test_an_attacker_is_told_why_and_cut_off_and_others_are_served(name):
    planned = ATTACKS[name]
    async with attacked(**planned.limits) as (server, attack):
        attacker = await attack()
        attacker.send(planned.opening(TARGET))
        sending = None
        if planned.flood is not None:
            sending = asyncio.create_task(attacker.flood(planned, TARGET))
        assert await within_patience(attacker.farewell()) is planned.code
        assert attacker.reason == planned.reason
        if sending is not None:
            await within_patience(sending)
        attacker.close()
        await within_patience(only_one_left(server))


async def test_who_reads_nothing_is_cut_off_and_others_are_served():
    planned = ATTACKS["reads nothing"]
    async with attacked(**planned.limits) as (server, attack):
        attacker = await attack(reads=False)
        attacker.send(planned.opening(TARGET))
        await within_patience(attacker.dropped())
        assert attacker.is_cut_off
        await within_patience(only_one_left(server))
        assert server.connection_count == 1


@asynccontextmanager
async def counted_calls(**limits):
    """Serve a method whose handler runs as a task, and keep account of the calls."""
    began = []

    async def answer(message, call):
        began.append(call.path)
        return bytes(COUNTED_REPLY_BYTES)

    table = HandlerTable()
    table.add_unary("/test/large", answer)
    server = await Http2Engine(limits=Http2Limits(**limits)).serve(table, "127.0.0.1", 0)
    try:
        yield server, began
    finally:
        await server.stop(0)


async def answered(client, count):
    """Return when so many calls have been answered to their ends."""
    ended = 0
    while ended < count:
        found = await within_patience(client.next_frame())
        ended += found.kind == HEADERS and found.flags & END_STREAM > 0


async def test_calls_of_who_opens_no_window_wait_and_it_is_cut_off_for_that():
    async with counted_calls(outgoing_seconds_max=0.3) as (server, began):
        attacker = await Attacker.connect(server.port, reads=True)
        attacker.send(ATTACKS["opens no window"].opening(COUNTED))
        assert await within_patience(attacker.farewell()) is ErrorCode.ENHANCE_YOUR_CALM
        assert attacker.reason == "replies are not read"
        attacker.close()
        await within_patience(none_left(server))
        asked = 2 * MIB // COUNTED_REPLY_BYTES
        assert UNREAD_REPLIES < len(began) < asked


async def test_calls_of_who_opens_its_windows_late_are_all_answered():
    count = 200
    async with counted_calls() as (server, began):
        client = await Attacker.connect(server.port, reads=True)
        calls = COUNTED.calls_for(count * COUNTED_REPLY_BYTES)
        client.send(HELLO, settings_frame({INITIAL_WINDOW_SIZE: 0}), calls)
        while len(began) <= UNREAD_REPLIES:
            await asyncio.sleep(0.01)
        client.send(settings_frame({INITIAL_WINDOW_SIZE: 2**20}), window_update_frame(0, 2**30))
        await answered(client, count)
        assert len(began) == count
        client.close()


async def test_who_reads_nothing_is_not_listened_to():
    async with counted_calls(outgoing_seconds_max=0.3) as (server, began):
        attacker = await Attacker.connect(server.port, reads=False)
        attacker.send(ATTACKS["reads nothing"].opening(COUNTED))
        await within_patience(attacker.dropped())
        attacker.close()
        await within_patience(none_left(server))
        asked = 8 * MIB // COUNTED_REPLY_BYTES
        assert 0 < len(began) < asked // 4


async def test_who_reads_late_is_answered_all_the_same():
    count = 400
    async with counted_calls() as (server, began):
        client = await Attacker.connect(server.port, reads=False)
        calls = COUNTED.calls_for(count * COUNTED_REPLY_BYTES)
        wide = settings_frame({INITIAL_WINDOW_SIZE: 2**20}) + window_update_frame(0, 2**30)
        client.send(HELLO, wide, calls)
        while len(began) < 10:
            await asyncio.sleep(0.01)
        client.read_on()
        await answered(client, count)
        assert len(began) == count
        client.close()


async def test_connections_beyond_the_limit_are_turned_away():
    async with attacked(connections_max=3) as (server, attack):
        first, second, third = [await attack() for _ in range(3)]
        # The time limits have the same code, so the reason must tell them apart.
        assert await within_patience(third.farewell()) is ErrorCode.ENHANCE_YOUR_CALM
        assert third.reason == "too many connections"
        first.close()
        while server.connection_count > 2:
            await asyncio.sleep(0.01)
        fourth = await attack()
        fourth.send(HELLO, TARGET.call(0))
        assert (await within_patience(fourth.next_frame())).kind == SETTINGS
        second.close()


async def test_connections_of_one_address_are_limited_too():
    planned = CROWDS["a crowd"]
    async with attacked(**planned.limits) as (_, attack):
        _, second = await attack(), await attack()
        assert await within_patience(second.farewell()) is planned.code
        assert second.reason == planned.reason


async def test_who_is_turned_away_and_does_not_leave_is_thrown_out():
    async with attacked(connections_max=1) as (_, attack):
        attacker = await attack()
        assert await within_patience(attacker.farewell()) is ErrorCode.ENHANCE_YOUR_CALM
        await within_patience(attacker.dropped())


async def test_who_is_turned_away_in_a_crowd_gets_no_moment_to_leave():
    async with attacked(connections_max=1, backlog=2) as (server, attack):
        crowd = [await attack() for _ in range(6)]
        told = 0
        for each in crowd:
            with suppress(ConnectionError, EOFError):
                told += await within_patience(each.farewell()) is ErrorCode.ENHANCE_YOUR_CALM
        assert told == 2
        while server._leaving:
            await asyncio.sleep(0.01)


async def test_calls_of_who_is_cut_off_leave_nothing_for_the_collector_of_garbage():
    async def wait_for_ever(message, call):
        await asyncio.get_running_loop().create_future()

    async def answer_for_ever(requests, call):
        async def answers():
            async for _ in requests:
                yield [bytes(10)]

        return answers()

    table = HandlerTable()
    table.add_unary("/test/unary", wait_for_ever)
    table.add_exchange("/test/exchange", answer_for_ever)
    server = await Http2Engine().serve(table, "127.0.0.1", 0)
    calls = 200
    gc.collect()
    gc.disable()
    try:
        for path in ("/test/unary", "/test/exchange"):
            target = Target(path, path, b"", 1)
            attacker = await Attacker.connect(server.port, reads=True)
            attacker.send(HELLO, *(target.call(number) for number in range(calls)))
            attacker.send(window_update_frame(0, 0))
            await within_patience(attacker.farewell())
            attacker.close()
        while server.connection_count:
            await asyncio.sleep(0.01)
        await server.stop(0)
        assert gc.collect() < 2 * calls
    finally:
        gc.enable()


async def test_who_makes_the_server_hold_most_goes_when_all_together_make_it_hold_too_much():
    """Each alone is within its limits; the honest client, who holds nothing, stays."""
    async with attacked(held_bytes_max=32 * MIB, idle_seconds_max=0.5) as (server, attack):
        crowd = [await attack(reads=False) for _ in range(4)]
        wide = settings_frame({INITIAL_WINDOW_SIZE: 2**30}) + window_update_frame(0, 2**30)
        for count, each in enumerate(crowd, start=1):
            each.send(HELLO, wide, COUNTED.calls_for(count * 4 * MIB))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while server.connection_count == len(crowd) + 1:
                await asyncio.sleep(0.01)
        assert sum(each.held_bytes for each in server._connections) <= 32 * MIB
        assert server.connection_count > 1, "as few as possible had to go"
