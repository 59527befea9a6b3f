"""The server's driver on a transport that does what it is told."""

import asyncio

import pytest
from typing_extensions import override

from pydanube.runtime.clock import SystemClock
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.calls import HandlerTable
from pydanube.wire.http2.frames import DATA, GOAWAY, PING, ping_frame, window_update_frame
from pydanube.wire.http2.limits import Http2Limits
from pydanube.wire.http2.server_codec import STALL_MS
from pydanube.wire.http2.server_connection import FAREWELL_BYTES, FAREWELL_MS, ServerConnection
from pydanube.wire.http2.turns import TURN_SECONDS, Turns
from tests.support.http2_peers import ECHO, HELLO, headers, request, split_frames

FAULT = window_update_frame(0, 0)


class StandingClock(SystemClock):
    """No turn is ever over."""

    @override
    def monotonic_seconds(self):
        return 0.0


class HastyClock(SystemClock):
    """Every turn is over after one step."""

    def __init__(self):
        self._seconds = 0.0

    @override
    def monotonic_seconds(self):
        self._seconds += TURN_SECONDS * 0.6
        return self._seconds


class NoPauses(SystemClock):
    """Who imposes has its next turn when the event loop comes round, like everybody."""

    @override
    def call_later(self, seconds, callback):
        return asyncio.get_running_loop().call_soon(callback)


STANDING = StandingClock()


class FakeTransport(asyncio.Transport):
    """Keeps what is written; `broken` makes it fail as a socket whose peer is gone."""

    def __init__(self, *, half_closes=True, broken=False):
        super().__init__({"peername": ("127.0.0.1", 5)})
        self.writes = []
        self.half_closes = half_closes
        self.broken = broken
        self.ended = self.closed = self.aborted = False
        self.reads = True
        self.protocol = None

    def set_protocol(self, protocol):
        self.protocol = protocol

    def get_protocol(self):
        return self.protocol

    def pause_reading(self):
        self.reads = False

    def resume_reading(self):
        self.reads = True

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_write_buffer_size(self):
        return sum(map(len, self.writes))

    def write(self, data):
        if self.aborted:
            raise RuntimeError("unable to perform operation; the handler is closed")  # As uvloop.
        self.writes.append(bytes(data))

    def can_write_eof(self):
        return self.half_closes

    def write_eof(self):
        if self.broken:
            raise OSError(107, "Transport endpoint is not connected")
        self.ended = True

    def is_closing(self):
        return self.closed or self.aborted

    def close(self):
        self.closed = True

    def abort(self):
        self.aborted = True


class OpenDoor:
    def __init__(self, *, admits=True, crowded=False):
        self.admits = admits
        self.crowded = crowded
        self.present = set()

    def admit(self, connection):
        if self.admits:
            self.present.add(connection)
        return self.admits

    def dismiss(self, connection):
        self.present.discard(connection)

    def let_leave(self, stranger):
        return not self.crowded

    def has_left(self, stranger):
        pass


@pytest.fixture
async def connect():
    scope = TaskScope(lambda name, failure: None)

    def connect(transport, *, door=None, limits=None, handler=None, clock=STANDING):
        table = HandlerTable()
        table.add_direct(ECHO, handler or (lambda message, call, reply: reply.send(message)))
        connection = ServerConnection(
            limits or Http2Limits(), table, scope, clock, door or OpenDoor(), Turns(NoPauses())
        )
        connection.connection_made(transport)
        return connection

    yield connect
    await scope.close()


async def test_all_requests_of_one_read_are_answered_with_one_write(connect):
    transport = FakeTransport()
    connection = connect(transport)
    connection.data_received(HELLO)
    transport.writes.clear()
    connection.data_received(b"".join(request(number) for number in range(1, 65, 2)))
    assert len(transport.writes) == 1
    assert len(split_frames(transport.writes[0])) == 3 * 32


def pings(count):
    return b"".join(ping_frame(number.to_bytes(8), ack=False) for number in range(count))


def answered(transport):
    """Return the numbers of the pings that were answered, in order."""
    frames = split_frames(b"".join(transport.writes))
    return [int.from_bytes(found.payload) for found in frames if found.kind == PING]


async def all_turns_taken():
    for _ in range(100):
        await asyncio.sleep(0)


async def test_who_sends_a_lot_goes_on_in_turns_and_is_not_read_meanwhile(connect):
    transport, other = FakeTransport(), FakeTransport()
    connection, honest = connect(transport, clock=HastyClock()), connect(other)
    connection.data_received(HELLO)
    connection.data_received(pings(500))
    assert 0 < len(answered(transport)) < 500
    assert not transport.reads
    honest.data_received(HELLO + request(1))
    assert other.writes
    await all_turns_taken()
    assert transport.reads
    assert answered(transport) == list(range(500))


async def test_what_arrives_out_of_turn_keeps_its_place(connect):
    transport = FakeTransport()
    connection = connect(transport, clock=HastyClock())
    connection.data_received(HELLO)
    everything = pings(500)
    connection.data_received(everything[:5_001])
    connection.data_received(everything[5_001:])
    await all_turns_taken()
    assert transport.reads
    assert answered(transport) == list(range(500))


@pytest.mark.parametrize("way", ["fault", "lost", "stop"])
async def test_a_connection_that_ends_before_its_turn_is_passed_over(connect, way):
    transport = FakeTransport()
    connection = connect(transport, clock=HastyClock())
    connection.data_received(HELLO)
    connection.data_received(pings(500) + FAULT + pings(500))
    if way == "lost":
        transport.closed = True
        connection.connection_lost(None)
    elif way == "stop":
        connection.cut()
    await all_turns_taken()
    assert (len(answered(transport)) == 500) == (way == "fault")
    assert transport.ended == (way != "lost")
    connection.connection_lost(None)


def answered_calls(transport):
    frames = split_frames(b"".join(transport.writes))
    return [found.stream_id for found in frames if found.kind == DATA]


class HandClock(StandingClock):
    """Milliseconds pass when the test says so."""

    def __init__(self):
        self.now = 1_000

    @override
    def monotonic_ms(self):
        return self.now


def calls(start, end, size=0):
    return b"".join(request(2 * number + 1, bytes(size)) for number in range(start, end))


def connect_unread(connect, transport, **more):
    """Connect a client that has not read for a while, and has made 18 calls meanwhile."""
    clock = HandClock()
    connection = connect(transport, clock=clock, **more)
    connection.data_received(HELLO + window_update_frame(0, 2**20))
    connection.pause_writing()
    connection.data_received(calls(0, 17, 4 * 1024))
    connection.data_received(calls(17, 18))
    clock.now += STALL_MS
    return connection, clock


@pytest.mark.parametrize("cut_at", [0, 9], ids=["whole", "cut"])
async def test_who_calls_and_does_not_read_is_not_read_until_it_does(connect, cut_at):
    transport = FakeTransport()
    connection, _ = connect_unread(connect, transport)
    connection.data_received(ping_frame(bytes(8), ack=False))
    assert transport.reads
    wire = calls(18, 60)
    connection.data_received(wire[: len(wire) - cut_at])
    await all_turns_taken()
    assert not transport.reads
    assert answered_calls(transport) == []
    connection.resume_writing()
    await all_turns_taken()
    assert transport.reads
    connection.data_received(wire[len(wire) - cut_at :])
    assert sorted(answered_calls(transport)) == list(range(1, 2 * 60, 2))


async def test_who_calls_one_by_one_and_does_not_read_is_not_read_either(connect):
    transport = FakeTransport()
    connection, _ = connect_unread(connect, transport)
    connection.data_received(headers(99))
    assert not transport.reads
    connection.resume_writing()
    await all_turns_taken()
    assert transport.reads


async def test_who_does_not_read_loses_its_turn(connect):
    transport, asked = FakeTransport(), []

    def answer(message, call, reply):
        asked.append(call)
        reply.send(message)

    connection, clock = connect_unread(connect, transport, handler=answer)
    clock.now -= STALL_MS
    connection.data_received(calls(18, 60))
    before = len(asked)
    clock.now += STALL_MS
    await all_turns_taken()
    assert before < len(asked) <= before + 1
    connection.resume_writing()
    await all_turns_taken()
    assert len(asked) == 60


async def test_a_peer_that_is_not_read_any_more_is_given_up_in_time(connect):
    transport = FakeTransport()
    limits = Http2Limits(outgoing_seconds_max=5)
    connection, clock = connect_unread(connect, transport, limits=limits)
    connection.data_received(calls(18, 60))
    assert not transport.reads
    connection.tick(clock.now)
    assert not transport.ended
    clock.now += 5_100
    connection.tick(clock.now)
    assert transport.ended
    connection.tick(clock.now + 5_000)
    assert transport.aborted
    connection.connection_lost(None)


async def test_late_answers_of_one_turn_travel_in_one_write(connect):
    transport, replies = FakeTransport(), []
    connection = connect(transport, handler=lambda message, call, reply: replies.append(reply))
    connection.data_received(HELLO + request(1) + request(3) + request(5))
    transport.writes.clear()
    for reply in replies:
        reply.send(b"later")
    assert transport.writes == []
    await asyncio.sleep(0)
    assert len(transport.writes) == 1


async def test_a_peer_at_fault_is_told_and_its_side_stays_open_until_it_has_read(connect):
    transport = FakeTransport()
    connection = connect(transport)
    connection.data_received(HELLO + FAULT)
    assert split_frames(b"".join(transport.writes))[-1].kind == GOAWAY
    assert transport.ended
    assert not transport.is_closing()


async def test_a_transport_that_cannot_half_close_is_closed(connect):
    transport = FakeTransport(half_closes=False)
    connect(transport).data_received(HELLO + FAULT)
    assert transport.closed


@pytest.mark.parametrize("way", ["fault", "leave", "cut"])
async def test_a_peer_that_is_gone_already_raises_nothing(connect, way):
    transport = FakeTransport(broken=True)
    connection = connect(transport)
    connection.data_received(HELLO)
    if way == "fault":
        connection.data_received(FAULT)
    elif way == "leave":
        connection.leave("stop")
    else:
        connection.cut()
    assert transport.aborted
    connection.connection_lost(None)


async def test_an_answer_to_a_peer_that_is_lost_before_it_is_written_raises_nothing(connect):
    transport, replies, complaints = FakeTransport(), [], []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    connection = connect(transport, handler=lambda message, call, reply: replies.append(reply))
    connection.data_received(HELLO + request(1))
    replies[0].send(b"too late")
    transport.abort()
    connection.connection_lost(ConnectionResetError())
    await all_turns_taken()
    assert complaints == []


async def test_what_a_peer_says_after_its_farewell_is_ignored_and_soon_cut_short(connect):
    transport = FakeTransport()
    connection = connect(transport)
    connection.data_received(HELLO + FAULT)
    transport.writes.clear()
    piece = ping_frame(bytes(8), ack=False) * 1_000
    for _ in range(FAREWELL_BYTES // len(piece)):
        connection.data_received(piece)
    assert not transport.aborted
    connection.data_received(piece)
    assert transport.aborted
    assert transport.writes == []


async def test_a_peer_that_does_not_read_its_farewell_is_cut_off(connect):
    transport = FakeTransport()
    connection = connect(transport)
    connection.data_received(HELLO + FAULT)
    now_ms = SystemClock().monotonic_ms()
    connection.tick(now_ms)
    assert not transport.aborted
    connection.tick(now_ms + FAREWELL_MS + 100)
    assert transport.aborted


async def test_a_peer_that_reads_nothing_and_asks_for_more_is_given_up(connect):
    transport = FakeTransport()
    connection = connect(transport, limits=Http2Limits(outgoing_bytes_max=5_000))
    connection.data_received(HELLO)
    connection.pause_writing()
    for number in range(400):
        connection.data_received(ping_frame(b"%08d" % number, ack=False))
    assert transport.ended
    assert transport.get_write_buffer_size() < 6_000


async def test_a_connection_too_many_is_told_so(connect):
    transport = FakeTransport()
    connect(transport, door=OpenDoor(admits=False))
    assert split_frames(b"".join(transport.writes))[-1].kind == GOAWAY
    assert transport.ended
    transport.protocol.connection_lost(None)


async def test_a_connection_too_many_is_thrown_out_when_it_does_not_leave(connect):
    transport = FakeTransport()
    connect(transport, door=OpenDoor(admits=False), clock=NoPauses())
    assert not transport.aborted
    await asyncio.sleep(0)
    assert transport.aborted


async def test_a_connection_too_many_is_thrown_out_at_once_where_many_are(connect):
    transport = FakeTransport()
    connect(transport, door=OpenDoor(admits=False, crowded=True))
    assert transport.aborted
    assert transport.writes == []


async def test_a_connection_too_many_may_not_say_much(connect):
    transport = FakeTransport()
    connect(transport, door=OpenDoor(admits=False))
    transport.protocol.data_received(bytes(FAREWELL_BYTES))
    assert not transport.aborted
    transport.protocol.data_received(b"x")
    assert transport.aborted
    transport.protocol.connection_lost(None)


async def test_a_lost_connection_leaves_the_register(connect):
    door = OpenDoor()
    connection = connect(FakeTransport(), door=door)
    assert door.present == {connection}
    connection.connection_lost(None)
    assert door.present == set()
