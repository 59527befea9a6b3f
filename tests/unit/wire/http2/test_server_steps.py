"""How much a server codec does in one step, so that others get their turn."""

from pydanube.wire.http2.errors import ConnectionFault, ErrorCode
from pydanube.wire.http2.frames import (
    ping_frame,
)
from pydanube.wire.http2.incoming import STEP_BYTES, STEP_FAVOURS
from pydanube.wire.http2.server_codec import UNFINISHED, UNREAD_BYTES
from pydanube.wire.http2.settings import INITIAL_WINDOW_SIZE, settings_frame
from tests.support.http2_peers import (
    Recording,
    headers,
    request,
    request_fields,
)


def echo(message, call, reply):
    reply.send(message)


def echo_server(limits=None):
    return Recording(limits, direct=echo)


def stepwise(server, wire):
    """Let the server take `wire` step by step; return how many frames it answered in each."""
    server.codec.receive_step(wire, server.now_ms)
    answered = [len(server.written())]
    while server.codec.unread:
        server.codec.next_step(server.now_ms)
        answered.append(len(server.written()))
    return answered


def test_a_step_ends_after_some_frames_that_draw_on_an_allowance():
    pings = ping_frame(bytes(8), ack=False) * 100
    assert stepwise(Recording(), pings)[1:] == [STEP_FAVOURS] * 2 + [100 - 3 * STEP_FAVOURS + 1]


def test_who_begins_many_requests_and_ends_none_imposes():
    server = echo_server()
    server.receive(request(1))
    wire = b"".join(headers(number) for number in range(3, 3 + 2 * 1_000, 2))
    server.codec.receive_step(wire, server.now_ms)
    while not server.codec.imposes:
        server.codec.next_step(server.now_ms)
    assert UNFINISHED < len(server.codec.streams) <= UNFINISHED + STEP_FAVOURS
    server.codec.next_step(server.now_ms)
    assert server.codec.imposes
    assert len(server.codec.streams) <= UNFINISHED + 2 * STEP_FAVOURS


def test_who_leaves_replies_unread_goes_on_call_by_call():
    server = echo_server()
    server.receive(settings_frame({INITIAL_WINDOW_SIZE: 0}))
    size = 10_000
    enough = UNREAD_BYTES // size + 1
    wire = b"".join(request(number, bytes(size)) for number in range(1, 1 + 2 * enough, 2))
    server.receive(wire)
    assert server.codec.queued_bytes > UNREAD_BYTES
    first = 1 + 2 * enough
    more = b"".join(request(number, b"") for number in range(first, first + 6, 2))
    server.codec.receive_step(more, server.now_ms)
    for answered in (enough, enough + 1, enough + 2):
        assert server.codec.requests == answered
        assert server.codec.imposes
        server.codec.next_step(server.now_ms)
    assert server.codec.requests == enough + 3
    assert not server.codec.unread


def test_a_step_gives_way_after_a_call_whose_handler_runs_later():
    server = Recording(unary=echo)
    server.receive(request(1))
    wire = b"".join(request(number, b"") for number in range(3, 129, 2))
    server.codec.receive_step(wire, server.now_ms)
    assert server.codec.gives_way
    assert not server.codec.imposes
    assert len(server.codec.streams) == 2


def test_whole_requests_impose_on_nobody():
    server = echo_server()
    server.receive(request(1))
    wire = b"".join(request(number, b"") for number in range(3, 129, 2))
    server.codec.receive_step(wire, server.now_ms)
    assert not server.codec.imposes
    assert not server.codec.unread


def test_a_step_ends_after_a_header_block_that_was_not_known():
    server = echo_server()
    wires = [request(1), request(3), request(5, fields=request_fields(more=b"1")), request(7)]
    assert stepwise(server, b"".join(wires)) == [0, 3 + 3, 3 + 3]


def test_a_step_ends_after_some_bytes():
    server = echo_server()
    server.receive(request(1))
    server.written()
    count = 4 * STEP_BYTES // len(request(3))
    wire = b"".join(request(number) for number in range(3, 3 + 2 * count, 2))
    answered = stepwise(server, wire)
    assert sum(answered) == 3 * count
    assert len(answered) == 4


def test_bytes_that_arrive_before_the_next_step_follow_those_before_them():
    server = Recording()
    wire = ping_frame(bytes(8), ack=False) * 50 + request(1, b"one")
    wire += ping_frame(bytes(8), ack=False) * 50 + request(3, b"two")
    server.codec.receive_step(wire[:1_000], server.now_ms)
    assert server.codec.unread
    server.codec.receive_step(wire[1_000:], server.now_ms)
    stepwise(server, b"")
    assert server.messages == [b"one", b"two"]
    assert server.codec.buffered_bytes == 0


def test_nothing_is_read_after_a_fault_that_came_before_the_next_step():
    server = Recording()
    server.codec.receive_step(ping_frame(bytes(8), ack=False) * 50 + request(1), server.now_ms)
    server.codec.fail(ConnectionFault(ErrorCode.NO_ERROR, "enough"))
    assert not server.codec.unread
    server.codec.next_step(server.now_ms)
    assert server.messages == []
