"""How much a server codec does in one step, so that others get their turn."""

from pydanube.wire.http2.errors import ConnectionFault, ErrorCode
from pydanube.wire.http2.frames import ping_frame, window_update_frame
from pydanube.wire.http2.incoming import STEP_BYTES, STEP_FAVOURS
from pydanube.wire.http2.limits import Http2Limits
from pydanube.wire.http2.server_codec import (
    CROWDED_CALLS,
    STALL_MS,
    UNFINISHED,
    UNREAD_BYTES,
    UNREAD_REPLIES,
)
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


def requests(numbers, size=0):
    return b"".join(request(2 * number + 1, bytes(size)) for number in numbers)


def crowded_server(limits=None):
    """Return a server whose peer opens no window, and the number of its next call."""
    server = echo_server(limits)
    server.receive(settings_frame({INITIAL_WINDOW_SIZE: 0}))
    count = UNREAD_REPLIES + 1
    server.receive(requests(range(count), UNREAD_BYTES // UNREAD_REPLIES))
    server.written()
    return server, count


def test_who_leaves_many_replies_unread_goes_on_with_a_few_calls_at_a_time():
    server, first = crowded_server()
    assert server.codec.is_crowded
    before = server.codec.requests
    server.codec.receive_step(requests(range(first, first + 3 * CROWDED_CALLS)), server.now_ms)
    for turn in (1, 2, 3):
        assert server.codec.imposes
        assert server.codec.requests - before <= turn * CROWDED_CALLS
        server.codec.next_step(server.now_ms)
    assert server.codec.requests == before + 3 * CROWDED_CALLS
    assert not server.codec.unread


def test_who_leaves_few_replies_unread_imposes_on_nobody_however_long_they_are():
    server = echo_server()
    server.receive(settings_frame({INITIAL_WINDOW_SIZE: 0}))
    server.receive(requests(range(UNREAD_REPLIES), 4 * UNREAD_BYTES // UNREAD_REPLIES))
    assert server.codec.queued_bytes > UNREAD_BYTES
    more = b"".join(headers(number) for number in range(101, 141, 2))
    server.codec.receive_step(more, server.now_ms)
    assert not server.codec.imposes
    assert not server.codec.unread


def test_replies_that_are_read_or_given_up_crowd_nobody():
    server, first = crowded_server()
    server.receive(*(window_update_frame(2 * number + 1, UNREAD_BYTES) for number in (3, 4)))
    assert server.codec.queued_streams == first - 2
    assert not server.codec.is_crowded
    server.codec.connection_lost()
    assert server.codec.queued_streams == 0


def test_waiting_calls_are_told_when_replies_have_been_read():
    server, first = crowded_server()
    server.codec.parked = 1
    server.receive(window_update_frame(1, 1))
    assert server.relieved == 0
    server.receive(*(window_update_frame(2 * number + 1, UNREAD_BYTES) for number in range(first)))
    assert server.relieved > 0


def test_waiting_calls_are_told_when_the_transport_has_room():
    server = echo_server()
    server.codec.hold()
    assert server.codec.is_choked
    server.codec.parked = 1
    server.codec.release()
    assert not server.codec.is_choked
    assert server.relieved == 1


def test_who_has_many_calls_waiting_goes_on_with_a_few_at_a_time_and_then_stalls():
    server = echo_server()
    server.codec.hold()
    server.codec.parked = UNREAD_REPLIES + 1
    server.codec.receive_step(requests(range(3 * CROWDED_CALLS)), server.now_ms)
    while server.codec.unread and not server.codec.imposes:
        server.codec.next_step(server.now_ms)
    assert server.codec.imposes
    assert server.codec.requests <= CROWDED_CALLS
    server.codec.next_step(server.now_ms + STALL_MS)
    assert server.codec.stalls


def test_who_reads_nothing_while_calls_wait_for_that_is_given_up():
    server, _ = crowded_server(Http2Limits(outgoing_seconds_max=10))
    server.codec.parked = 1
    for _ in range(3):
        server.pass_seconds(9)
        assert not server.codec.finished
        server.receive(window_update_frame(1, 1))
    server.pass_seconds(1)
    server.pass_seconds(11)
    assert server.codec.fault.text == "replies are not read"


def test_replies_may_stay_unread_as_long_as_no_call_waits_for_that():
    server, _ = crowded_server(Http2Limits(outgoing_seconds_max=10))
    for _ in range(5):
        server.pass_seconds(9)
    assert not server.codec.finished


def held_server():
    """Return a server whose peer has not read for a moment, and the number of its next call."""
    server = echo_server()
    server.codec.hold()
    count = UNREAD_REPLIES + 1
    server.receive(requests(range(count), UNREAD_BYTES // UNREAD_REPLIES))
    assert server.codec.is_crowded
    server.receive(requests([count]))
    server.written()
    return server, count + 1


def test_a_new_call_of_who_leaves_the_transport_full_stalls_until_there_is_room():
    server, first = held_server()
    server.now_ms += STALL_MS
    server.codec.receive_step(ping_frame(bytes(8), ack=False), server.now_ms)
    assert not server.codec.stalls
    before = server.codec.requests
    server.codec.receive_step(requests(range(first, first + 20)), server.now_ms)
    assert server.codec.stalls
    assert server.codec.unread
    assert server.codec.requests == before
    server.codec.release()
    assert not server.codec.stalls
    server.codec.next_step(server.now_ms)
    assert not server.codec.stalls
    assert not server.codec.unread
    assert server.codec.requests == before + 20


def test_a_transport_that_is_full_for_a_moment_stalls_nobody():
    server, first = held_server()
    server.now_ms += STALL_MS - 1
    server.receive(requests([first]))
    assert not server.codec.stalls
    server.codec.release()
    server.codec.hold()
    server.now_ms += STALL_MS
    server.receive(requests(range(first + 1, first + 20), UNREAD_BYTES // UNREAD_REPLIES))
    assert server.codec.is_crowded
    assert not server.codec.stalls


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
