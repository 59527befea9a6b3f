"""Each limit of the server's codec: below it a peer is served, beyond it the peer is cut off."""

import pytest

from pydanube.wire.http2.errors import ErrorCode
from pydanube.wire.http2.frames import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    frame,
    ping_frame,
    reset_frame,
    window_update_frame,
)
from pydanube.wire.http2.limits import Http2Limits
from tests.support.grpc_messages import frame_messages
from tests.support.http2_peers import (
    HELLO,
    Recording,
    block,
    data,
    headers,
    request,
    request_fields,
    verdict,
)

CALM = (GOAWAY, ErrorCode.ENHANCE_YOUR_CALM)
LATE = 1_000_000


def flood(server, make, count):
    """Send `count` frames and return how the peer was judged."""
    for number in range(count):
        server.receive(make(number))
    return verdict([f for f in server.written() if f.kind == GOAWAY])


FLOODS = {
    "pings": (Http2Limits(pings_burst=50), lambda _: ping_frame(bytes(8), ack=False), 50),
    "ping answers": (Http2Limits(pings_burst=50), lambda _: ping_frame(bytes(8), ack=True), 50),
    # The greeting has spent one.
    "settings": (Http2Limits(settings_burst=20), lambda _: frame(SETTINGS, 0, 0, b""), 19),
    "empty data": (Http2Limits(empty_frames_burst=30), lambda _: data(1, b""), 30),
    "only padding": (Http2Limits(empty_frames_burst=30), lambda _: frame(0, 8, 1, b"\x01\0"), 30),
    "priorities": (
        Http2Limits(idle_frames_burst=40),
        lambda _: frame(PRIORITY, 0, 1, bytes(4) + b"\x01"),
        40,
    ),
    "unknown frames": (Http2Limits(idle_frames_burst=40), lambda _: frame(0x42, 0, 0, b""), 40),
    "rapid resets": (
        Http2Limits(resets_burst=60),
        lambda n: headers(3 + 2 * n) + reset_frame(3 + 2 * n, ErrorCode.CANCEL),
        60,
    ),
    "provoked resets": (
        Http2Limits(resets_burst=60),
        lambda n: headers(3 + 2 * n) + window_update_frame(3 + 2 * n, 0),
        60,
    ),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_burst_is_served_and_a_flood_is_not(name):
    limits, make, burst = FLOODS[name]
    server = Recording(limits)
    server.receive(headers(1))
    assert flood(server, make, burst) is None
    assert flood(server, lambda n: make(n + burst), 1) == CALM
    assert server.codec.finished


@pytest.mark.parametrize("name", FLOODS)
def test_the_same_number_spread_over_time_is_served(name):
    limits, make, burst = FLOODS[name]
    server = Recording(limits)
    server.receive(headers(1))
    for number in range(3 * burst):
        server.now_ms += 2_000
        server.receive(make(number))
    assert not server.codec.finished


def test_a_block_of_many_continuations_is_refused():
    server = Recording(Http2Limits(continuations_max=3))
    server.receive(frame(HEADERS, 0, 1, b""))
    for _ in range(3):
        server.receive(frame(CONTINUATION, 0, 1, b""))
    assert not server.codec.finished
    server.receive(frame(CONTINUATION, 0, 1, b""))
    assert verdict(server.written()) == CALM


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_block_that_is_too_long_is_refused_before_it_is_decoded(pieces):
    server = Recording(Http2Limits(header_block_bytes_max=1_000))
    half = bytes(1_001 // pieces + 1)
    server.receive(frame(HEADERS, 0, 1, half))
    for _ in range(pieces - 1):
        server.receive(frame(CONTINUATION, 0, 1, half))
    assert verdict(server.written()) == CALM


def test_a_small_block_that_unpacks_to_long_headers_is_refused():
    server = Recording(Http2Limits(header_list_bytes_max=2_000))
    bomb = block() + b"\x40\x01a\x7f\x80\x01" + b"x" * 255 + b"\xbe" * 100
    server.receive(frame(HEADERS, END_HEADERS, 1, bomb))
    assert verdict(server.written()) == CALM


def test_calls_beyond_the_limit_are_refused_one_by_one_and_then_the_peer_is():
    server = Recording(Http2Limits(streams_max=3, resets_burst=5))
    server.receive(*(headers(number) for number in (1, 3, 5)))
    assert server.written() == []
    server.receive(headers(7))
    assert verdict(server.written()) == (RST_STREAM, ErrorCode.REFUSED_STREAM)
    server.receive(data(1, frame_messages([b"x"]), END_STREAM))
    server.arrived[0][0].send(b"y")
    server.receive(request(9, b"room again"))
    assert server.messages[-1] == b"room again"
    server.receive(*(headers(number) for number in range(11, 31, 2)))
    assert verdict(server.written()) == CALM


def test_nobody_holds_more_than_eight_kibibytes_before_the_handshake():
    server = Recording(greeted=False)
    server.receive(PREFACE + frame(SETTINGS, 0, 0, bytes(8_000))[:-1])
    assert not server.codec.finished
    assert len(server.codec._cut) < 8 * 1024
    server = Recording(greeted=False)
    server.receive(PREFACE + frame(SETTINGS, 0, 0, bytes(8_190))[:9])
    assert verdict(server.written()) == (GOAWAY, ErrorCode.FRAME_SIZE_ERROR)


def test_unfinished_requests_hold_a_bounded_number_of_bytes():
    server = Recording(Http2Limits(request_bytes_buffered_max=100_000))
    piece = frame_messages([bytes(1_000_000)])[:30_000]
    for number in range(1, 41, 2):
        server.receive(headers(number), data(number, piece))
        assert server.codec._held_bytes <= 100_000
    assert verdict(server.written()) == (RST_STREAM, ErrorCode.REFUSED_STREAM)
    assert not server.codec.finished


def test_a_peer_that_leaves_replies_unread_gets_no_further_calls_and_is_given_up():
    server = Recording(
        Http2Limits(outgoing_bytes_max=1_000, outgoing_seconds_max=30),
        direct=lambda m, c, reply: reply.send(bytes(600)),
    )
    server.codec.hold()
    server.receive(request(1), request(3), request(5))
    assert verdict(server.written()) == (RST_STREAM, ErrorCode.REFUSED_STREAM)
    server.pass_seconds(1)
    server.pass_seconds(29)
    assert not server.codec.finished
    server.pass_seconds(2)
    assert verdict(server.written()) == CALM


def test_a_slow_reader_that_makes_progress_is_kept():
    server = Recording(Http2Limits(outgoing_seconds_max=30))
    server.receive(request(1))
    for _ in range(10):
        server.codec.hold()
        server.pass_seconds(20)
        server.codec.release()
        server.receive(ping_frame(bytes(8), ack=True))
    assert not server.codec.finished


def test_a_handshake_that_takes_too_long_is_given_up():
    server = Recording(greeted=False)
    server.receive(PREFACE)
    server.pass_seconds(5)
    assert not server.codec.finished
    server.pass_seconds(1)
    assert verdict(server.written()) == CALM


def test_a_connection_that_asks_for_nothing_is_let_go():
    server = Recording()
    server.pass_seconds(9)
    assert not server.codec.finished
    server.pass_seconds(2)
    assert verdict(server.written()) == (GOAWAY, ErrorCode.NO_ERROR)
    assert server.codec.finished


def test_a_first_request_that_trickles_is_given_up():
    server = Recording()
    message = frame_messages([bytes(100)])
    server.receive(headers(1))
    for number in range(11):
        server.receive(data(1, message[number : number + 1]))
        server.pass_seconds(1)
    assert verdict(server.written()) == CALM


def test_a_later_request_that_trickles_is_given_up_too():
    server = Recording(Http2Limits(request_seconds_max=20))
    server.receive(request(1), headers(3))
    server.pass_seconds(20)
    assert not server.codec.finished
    server.pass_seconds(1)
    assert verdict(server.written()) == CALM


def test_a_call_may_take_as_long_as_it_likes_once_its_request_is_whole():
    server = Recording()
    server.receive(request(1))
    for _ in range(100):
        server.pass_seconds(30)
        server.receive(ping_frame(bytes(8), ack=True))
    assert not server.codec.finished


def test_a_silent_peer_is_asked_for_a_sign_of_life():
    server = Recording()
    server.receive(request(1))
    server.pass_seconds(61)
    (ping,) = server.written()
    assert (ping.kind, ping.flags) == (PING, 0)
    server.receive(ping_frame(ping.payload, ack=True))
    server.pass_seconds(60)
    assert server.written() == []
    server.pass_seconds(1)
    assert [found.kind for found in server.written()] == [PING]
    server.pass_seconds(21)
    assert verdict(server.written()) == (GOAWAY, ErrorCode.NO_ERROR)
    assert server.gone == [1]


def test_a_peer_that_says_anything_is_alive():
    server = Recording()
    server.receive(request(1))
    server.pass_seconds(61)
    server.now_ms += 1_000
    server.receive(request(3))
    server.pass_seconds(30)
    assert not server.codec.finished


def test_the_helpers_greet_as_a_client_does():
    assert HELLO.startswith(PREFACE)
    assert (b":path", b"/test/echo") in request_fields()
    assert LATE
