"""Calls of a peer that lets replies pile up."""

import asyncio
from types import SimpleNamespace

import pytest

from pydanube.runtime.clock import SystemClock
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.calls import HandlerTable
from pydanube.wire.http2.frames import window_update_frame
from pydanube.wire.http2.limits import Http2Limits
from pydanube.wire.http2.parked_calls import PARKED_BYTES_MAX, ParkedCalls
from pydanube.wire.http2.server_calls import ServerCalls
from pydanube.wire.http2.server_codec import UNREAD_BYTES, UNREAD_REPLIES
from pydanube.wire.http2.server_heads import Peer
from pydanube.wire.http2.settings import INITIAL_WINDOW_SIZE, settings_frame
from pydanube.wire.http2.turns import Pace, Turns
from tests.support.http2_peers import ECHO, HELLO, request


class HandClock:
    """Pauses end when the test says so."""

    def __init__(self):
        self.pauses = []

    def call_later(self, seconds, callback):
        assert seconds == Pace.TRICKLING.value
        self.pauses.append(callback)

    async def end_pause(self):
        self.pauses.pop()()
        await rounds()


async def rounds():
    for _ in range(20):
        await asyncio.sleep(0)


class World:
    def __init__(self, scope):
        self.clock = HandClock()
        self.codec = SimpleNamespace(is_choked=True, is_crowded=True, held=False, parked=0)
        self.calls = ParkedCalls(self.codec, scope, Turns(self.clock))
        self.started = []

    def start(self, name, request_bytes=10):
        stream = SimpleNamespace(
            local_closed=False,
            inbox="messages",
            head=SimpleNamespace(call=SimpleNamespace(path=name)),
        )

        async def work():
            self.started.append(name)

        self.calls.start(stream, request_bytes, work)
        return stream


@pytest.fixture
async def world():
    scope = TaskScope(lambda name, failure: None)
    yield World(scope)
    await scope.close()


async def test_calls_start_at_once_while_replies_are_read(world):
    world.codec.is_choked = False
    world.start("a")
    await rounds()
    assert world.started == ["a"]
    assert world.codec.parked == 0


async def test_calls_start_one_by_one_while_replies_are_unread(world):
    for name in "abc":
        world.start(name)
    await rounds()
    assert world.started == []
    assert world.codec.parked == 3
    for expected in (["a"], ["a", "b"], ["a", "b", "c"]):
        await world.clock.end_pause()
        assert world.started == expected
    assert world.codec.parked == 0
    assert world.clock.pauses == []


async def test_all_start_soon_once_replies_are_read(world):
    for name in "abc":
        world.start(name)
    world.codec.is_choked = world.codec.is_crowded = False
    world.calls.hurry()
    await rounds()
    assert world.started == ["a", "b", "c"]
    assert world.codec.parked == 0


async def test_while_the_transport_is_full_a_call_starts_only_when_it_has_room_again(world):
    world.codec.is_crowded, world.codec.held = False, True
    for name in "abc":
        world.start(name)
    await rounds()
    assert world.started == []
    assert world.clock.pauses == []
    world.calls.hurry()
    await rounds()
    assert world.started == ["a"]
    world.codec.held = world.codec.is_choked = False
    world.calls.hurry()
    await rounds()
    assert world.started == ["a", "b", "c"]
    assert world.codec.parked == 0


async def test_a_call_whose_caller_has_gone_never_starts(world):
    gone = world.start("a")
    world.start("b")
    gone.local_closed = True
    await world.clock.end_pause()
    assert world.started == ["b"]
    assert gone.inbox is None


async def test_nothing_starts_on_a_connection_that_is_gone(world):
    stream = world.start("a")
    world.calls.close()
    await world.clock.end_pause()
    assert world.started == []
    assert stream.inbox is None
    assert world.codec.parked == 0


async def test_what_waiting_requests_take_is_bounded(world):
    world.start("a", PARKED_BYTES_MAX)
    world.start("b", 1)
    await rounds()
    assert world.started == ["b"]
    await world.clock.end_pause()
    world.start("c", PARKED_BYTES_MAX)
    await rounds()
    assert world.started == ["b", "a"]
    assert world.codec.parked == 1


async def test_calls_of_a_connection_wait_for_its_windows_and_for_no_pause():
    scope, clock, began = TaskScope(lambda name, failure: None), HandClock(), []

    async def answer(message, call):
        began.append(message)
        return bytes(UNREAD_BYTES // UNREAD_REPLIES)

    table = HandlerTable()
    table.add_unary(ECHO, answer)
    calls = ServerCalls(
        Http2Limits(), table, Peer("test"), scope, SystemClock(), Turns(clock), lambda: None
    )
    calls.codec.receive(HELLO + settings_frame({INITIAL_WINDOW_SIZE: 0}), 1_000)
    for number in range(40):
        calls.codec.receive(request(2 * number + 1), 1_000)
        await rounds()
    assert len(began) == UNREAD_REPLIES + 1
    assert calls.codec.parked == 40 - len(began)
    wide = settings_frame({INITIAL_WINDOW_SIZE: 2**20}) + window_update_frame(0, 2**20)
    calls.codec.receive(wide, 1_000)
    for _ in range(10):
        await rounds()
    assert len(began) == 40
    calls.close()
    await scope.close()
