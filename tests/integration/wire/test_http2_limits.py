"""Attackers on real sockets: each is told to calm down and cut off, and others are still served."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from pydanube.wire.calls import HandlerTable
from pydanube.wire.http2.channel import Http2Channel
from pydanube.wire.http2.engine import Http2Engine
from pydanube.wire.http2.errors import ErrorCode
from pydanube.wire.http2.frames import (
    CONTINUATION,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    PRIORITY,
    SETTINGS,
    frame,
    ping_frame,
    reset_frame,
    window_update_frame,
)
from pydanube.wire.http2.limits import Http2Limits
from pydanube.wire.http2.settings import INITIAL_WINDOW_SIZE, settings_frame
from tests.contract.engine_contract import within_patience
from tests.support.http2_peers import HELLO, Frame, block, data, headers, request_fields

FIELDS = request_fields("/test/direct")
FLOOD_FRAMES_MAX = 30_000


class Attacker:
    """A bare connection that reads only what it is told to."""

    def __init__(self, reader, writer):
        self._reader = reader
        self._writer = writer
        self.is_cut_off = False
        self.reason = ""

    def send(self, *pieces):
        self._writer.write(b"".join(pieces))

    async def flood(self, make):
        """Send until the server has had enough, or far more than any limit allows."""
        for number in range(FLOOD_FRAMES_MAX):
            if self.is_cut_off or self._writer.is_closing():
                return
            self._writer.write(make(number))
            if number % 100 == 0:
                try:
                    await within_patience(self._writer.drain())
                except ConnectionError:
                    return
                # Slow enough to hear the answer; what is said after GOAWAY is soon cut short.
                await asyncio.sleep(0.002)

    async def farewell(self):
        """Read to the end and return the code of GOAWAY."""
        while (found := await within_patience(self._next_frame())).kind != GOAWAY:
            pass
        self.reason = found.payload[8:].decode()
        self.is_cut_off = await within_patience(self._ended())
        return ErrorCode(int.from_bytes(found.payload[4:8]))

    async def _next_frame(self):
        head = await self._reader.readexactly(9)
        payload = await self._reader.readexactly(int.from_bytes(head[:3]))
        return Frame(head[3], head[4], int.from_bytes(head[5:]), payload)

    async def _ended(self):
        try:
            while await self._reader.read(65_536):
                pass
        except ConnectionError:
            pass
        return True

    def close(self):
        self._writer.close()


async def only_one_left(server):
    while server.connection_count != 1:
        await asyncio.sleep(0.01)


@asynccontextmanager
async def attacked(**limits):
    """Serve, with one honest client that is answered before and after what happens within."""
    table = HandlerTable()
    table.add_direct("/test/direct", lambda message, call, reply: reply.send(message))
    table.add_direct("/test/large", lambda message, call, reply: reply.send(bytes(100_000)))
    server = await Http2Engine(limits=Http2Limits(**limits)).serve(table, "127.0.0.1", 0)
    honest = Http2Channel(f"127.0.0.1:{server.port}")
    attackers = []

    async def attack():
        connected = await asyncio.open_connection("127.0.0.1", server.port)
        attackers.append(Attacker(*connected))
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


FLOODS = {
    "pings": lambda _: ping_frame(bytes(8), ack=False),
    "settings": lambda _: frame(SETTINGS, 0, 0, b""),
    "empty data": lambda _: data(1, b""),
    "priorities": lambda _: frame(PRIORITY, 0, 1, bytes(4) + b"\x01"),
    "unknown frames": lambda _: frame(0x42, 0, 0, b""),
    "rapid resets": lambda n: headers(3 + 2 * n, FIELDS) + reset_frame(3 + 2 * n, ErrorCode.CANCEL),
    "provoked resets": lambda n: headers(3 + 2 * n, FIELDS) + window_update_frame(3 + 2 * n, 0),
    "empty continuations": lambda n: frame(CONTINUATION if n else HEADERS, 0, 3, b""),
    "calls beyond the limit": lambda n: headers(3 + 2 * n, FIELDS),
}


REASONS = {
    "pings": "too many PINGs",
    "settings": "too many SETTINGS",
    "empty data": "too many empty frames",
    "priorities": "too many frames that change nothing",
    "unknown frames": "too many frames that change nothing",
    "rapid resets": "too many streams are reset",
    "provoked resets": "too many streams are reset",
    "empty continuations": "a header block is too long",
    "calls beyond the limit": "too many streams are refused",
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_is_cut_off_and_others_are_served(name):
    async with attacked(streams_max=100) as (server, attack):
        attacker = await attack()
        attacker.send(HELLO, headers(1, FIELDS))
        sending = asyncio.create_task(attacker.flood(FLOODS[name]))
        assert await attacker.farewell() is ErrorCode.ENHANCE_YOUR_CALM
        assert attacker.reason == REASONS[name]
        await sending
        attacker.close()
        await within_patience(only_one_left(server))


LARGE_HEADERS = {
    "long block": frame(HEADERS, 0, 1, bytes(16_000)) + frame(CONTINUATION, 0, 1, bytes(1_000)),
    "long list": frame(
        HEADERS, 4, 1, block(FIELDS) + b"\x40\x01a\x7f\x80\x01" + b"x" * 255 + b"\xbe" * 500
    ),
}


@pytest.mark.parametrize("name", LARGE_HEADERS)
async def test_large_headers_are_cut_off_and_others_are_served(name):
    async with attacked() as (_, attack):
        attacker = await attack()
        attacker.send(HELLO, LARGE_HEADERS[name])
        assert await attacker.farewell() is ErrorCode.ENHANCE_YOUR_CALM


SLOW = {
    "says nothing": (b"", {"handshake_seconds_max": 0.2}),
    "half a preface": (PREFACE[:10], {"handshake_seconds_max": 0.2}),
    "half a handshake": (PREFACE + HELLO[-9:-4], {"handshake_seconds_max": 0.2}),
    "half a first request": (
        HELLO + headers(1, FIELDS) + data(1, b"\0\0"),
        {"first_request_seconds_max": 0.2},
    ),
    "half a later request": (
        HELLO + headers(1, FIELDS) + data(1, bytes(5), END_STREAM) + headers(3, FIELDS),
        {"request_seconds_max": 0.2},
    ),
}


@pytest.mark.parametrize("name", SLOW)
async def test_who_takes_too_long_is_cut_off_and_others_are_served(name):
    wire, limits = SLOW[name]
    async with attacked(**limits) as (_, attack):
        attacker = await attack()
        attacker.send(wire)
        assert await attacker.farewell() is ErrorCode.ENHANCE_YOUR_CALM
        late = "the handshake" if "handshake_seconds_max" in limits else "a request"
        assert attacker.reason == f"{late} takes too long"


async def test_who_never_asks_for_anything_is_let_go():
    async with attacked(first_request_seconds_max=0.2) as (_, attack):
        attacker = await attack()
        attacker.send(HELLO)
        assert await attacker.farewell() is ErrorCode.NO_ERROR


async def test_who_does_not_answer_pings_is_let_go():
    async with attacked(idle_seconds_max=0.2, ping_seconds_max=0.2) as (server, attack):
        attacker = await attack()
        attacker.send(HELLO, headers(1, FIELDS), data(1, bytes(5), END_STREAM))
        assert await attacker.farewell() is ErrorCode.NO_ERROR
        await within_patience(only_one_left(server))


async def test_who_reads_nothing_is_cut_off_and_others_are_served():
    large = request_fields("/test/large")
    async with attacked(outgoing_seconds_max=0.3, outgoing_bytes_max=1_000_000) as (server, attack):
        attacker = await attack()
        attacker.send(HELLO, settings_frame({INITIAL_WINDOW_SIZE: 2**31 - 1}))
        attacker.send(window_update_frame(0, 2**30))
        for number in range(1, 401, 2):
            attacker.send(headers(number, large), data(number, bytes(5), END_STREAM))
        await within_patience(only_one_left(server))


async def test_who_opens_no_window_gets_no_further_calls_and_is_cut_off():
    large = request_fields("/test/large")
    async with attacked(outgoing_seconds_max=0.3, outgoing_bytes_max=1_000_000) as (_, attack):
        attacker = await attack()
        attacker.send(HELLO, settings_frame({INITIAL_WINDOW_SIZE: 0}))
        for number in range(1, 41, 2):
            attacker.send(headers(number, large), data(number, bytes(5), END_STREAM))
        assert await attacker.farewell() is ErrorCode.ENHANCE_YOUR_CALM
        assert attacker.reason == "replies are not read"


async def test_connections_beyond_the_limit_are_turned_away():
    async with attacked(connections_max=3) as (server, attack):
        first, second, third = [await attack() for _ in range(3)]
        # The time limits have the same code, so the reason must tell them apart.
        assert await third.farewell() is ErrorCode.ENHANCE_YOUR_CALM
        assert third.reason == "too many connections"
        first.close()
        while server.connection_count > 2:
            await asyncio.sleep(0.01)
        fourth = await attack()
        fourth.send(HELLO, headers(1, FIELDS), data(1, bytes(5), END_STREAM))
        assert (await within_patience(fourth._next_frame())).kind == SETTINGS
        second.close()


async def test_connections_of_one_address_are_limited_too():
    async with attacked(connections_per_address_max=2) as (_, attack):
        _, second = await attack(), await attack()
        assert await second.farewell() is ErrorCode.ENHANCE_YOUR_CALM
        assert second.reason == "too many connections"


async def test_a_frame_before_the_handshake_is_small():
    async with attacked() as (_, attack):
        attacker = await attack()
        attacker.send(PREFACE, frame(SETTINGS, 0, 0, bytes(9_000))[:100])
        assert await attacker.farewell() is ErrorCode.FRAME_SIZE_ERROR
