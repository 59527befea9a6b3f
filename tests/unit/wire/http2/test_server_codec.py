"""The server's codec, frame by frame: what it answers, what it refuses, and what it never does."""

import gzip

import pytest

from pydanube.wire.calls import StatusCode
from pydanube.wire.http2.errors import ErrorCode
from pydanube.wire.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    ping_frame,
    reset_frame,
    window_update_frame,
)
from pydanube.wire.http2.limits import Http2Limits
from pydanube.wire.http2.settings import INITIAL_WINDOW_SIZE, settings_frame
from tests.support.grpc_messages import frame_messages
from tests.support.http2_peers import (
    HELLO,
    Recording,
    block,
    data,
    decoded,
    headers,
    request,
    request_fields,
    split_frames,
    verdict,
)


def echo(message, call, reply):
    reply.send(message)


def echo_server(limits=None):
    return Recording(limits, direct=echo)


def goaway(code):
    return GOAWAY, code


def reset(code):
    return RST_STREAM, code


def test_a_server_speaks_first_and_widens_its_window_when_it_knows_the_peer():
    server = Recording(greeted=False)
    assert [found.kind for found in server.written()] == [SETTINGS]
    server.receive(HELLO)
    acknowledged, widened = server.written()
    assert (acknowledged.kind, acknowledged.flags) == (SETTINGS, ACK)
    assert widened.kind == WINDOW_UPDATE
    assert int.from_bytes(widened.payload) == 16 * 1024 * 1024 - 65_535


@pytest.mark.parametrize("step", [1, 3, 9, 24, 1_000])
def test_a_request_is_the_same_however_its_bytes_arrive(step):
    server = Recording(greeted=False)
    wire = HELLO + request(1, b"one") + request(3, b"x" * 500) + ping_frame(b"12345678", ack=False)
    for start in range(0, len(wire), step):
        server.receive(wire[start : start + step])
    assert server.messages == [b"one", b"x" * 500]
    assert PING in [found.kind for found in server.written()]


def test_an_answer_is_headers_the_message_and_trailers():
    server = echo_server()
    server.receive(request(1, b"hello"))
    frames = server.written()
    assert [(found.kind, found.stream_id) for found in frames] == [
        (HEADERS, 1),
        (DATA, 1),
        (HEADERS, 1),
    ]
    assert frames[1].payload == frame_messages([b"hello"])
    assert frames[2].flags & END_STREAM
    assert decoded(frames) == [
        {b":status": b"200", b"content-type": b"application/grpc"},
        {b"grpc-status": b"0"},
    ]
    assert server.codec.streams == {}


def test_the_first_block_tells_the_peer_that_no_table_is_used():
    server = echo_server()
    server.receive(request(1), request(3))
    blocks = [found.payload for found in server.written() if found.kind == HEADERS]
    assert blocks[0].startswith(b"\x20")
    assert not any(later.startswith(b"\x20") for later in blocks[1:])


def test_many_requests_of_one_read_are_answered_in_one_go():
    server = echo_server()
    server.receive(*(request(number, b"%d" % number) for number in range(1, 201, 2)))
    bodies = [found.payload[5:] for found in server.written() if found.kind == DATA]
    assert bodies == [b"%d" % number for number in range(1, 201, 2)]
    assert server.wakes == 0


def test_a_late_answer_asks_to_be_written():
    server = Recording()
    server.receive(request(1), request(3))
    assert server.written() == []
    for stream, _ in server.arrived:
        stream.send(b"later")
    assert server.wakes == 1
    assert len(server.written()) == 6


def test_a_second_answer_and_an_answer_to_nobody_are_dropped():
    server = Recording()
    server.receive(request(1), request(3))
    (first, _), (second, _) = server.arrived
    first.send(b"once")
    first.send(b"twice")
    first.refuse(StatusCode.INTERNAL, "thrice")
    server.receive(reset_frame(3, ErrorCode.CANCEL))
    second.send(b"nobody")
    assert server.gone == [3]
    assert [found.stream_id for found in server.written()] == [1, 1, 1]


def test_a_refusal_is_trailers_only():
    server = Recording(direct=lambda m, c, reply: reply.refuse(StatusCode.NOT_FOUND, "späti 100 %"))
    server.receive(request(1))
    frames = server.written()
    assert [(found.kind, found.flags) for found in frames] == [(HEADERS, END_HEADERS | END_STREAM)]
    assert decoded(frames)[0][b"grpc-status"] == b"5"
    assert decoded(frames)[0][b"grpc-message"] == b"sp%C3%A4ti 100 %25"


def test_an_unknown_method_is_refused_before_its_message():
    server = Recording()
    server.receive(headers(1, request_fields("/no/thing")))
    refused, ended = server.written()
    assert decoded([refused])[0][b"grpc-status"] == b"12"
    assert (ended.kind, ended.payload) == (RST_STREAM, bytes(4))
    server.receive(data(1, b"whatever", END_STREAM))
    assert server.written() == []


@pytest.mark.parametrize(
    ("field", "status"),
    [({"grpc_encoding": b"snappy"}, b"12"), ({"grpc_timeout": b"soon"}, b"3")],
)
def test_what_a_request_asks_for_and_cannot_have_is_refused(field, status):
    server = Recording()
    server.receive(request(1, fields=request_fields(**field)))
    assert decoded(server.written())[0][b"grpc-status"] == status
    assert server.messages == []


def test_a_compressed_request_is_unpacked():
    server = Recording()
    body = gzip.compress(b"hello" * 100)
    message = b"\x01" + len(body).to_bytes(4) + body
    fields = request_fields(grpc_encoding=b"gzip")
    server.receive(headers(1, fields), data(1, message, END_STREAM))
    assert server.messages == [b"hello" * 100]


def test_a_message_that_is_too_long_is_an_invalid_argument_and_the_rest_is_ignored():
    server = Recording(Http2Limits(message_bytes_max=1_000))
    message = frame_messages([bytes(1_001)])
    server.receive(headers(1), data(1, message[:100]))
    refused, ended = server.written()
    assert decoded([refused])[0][b"grpc-status"] == b"3"
    assert ended.kind == RST_STREAM
    server.receive(data(1, message[100:], END_STREAM), request(3, bytes(1_000)))
    assert server.messages == [bytes(1_000)]
    assert verdict(server.written()) is None


def test_a_message_that_is_too_long_but_came_at_once_is_refused_too():
    server = Recording(Http2Limits(message_bytes_max=1_000))
    server.receive(request(1, bytes(1_001)))
    assert decoded(server.written())[0][b"grpc-status"] == b"3"
    assert server.messages == []


@pytest.mark.parametrize(
    "body", [b"", b"\0\0\0", frame_messages([b"abc"])[:-1], frame_messages([b"a", b"b"])]
)
def test_anything_but_one_whole_message_is_refused(body):
    server = Recording()
    server.receive(headers(1), data(1, body, END_STREAM))
    assert decoded(server.written())[0][b"grpc-status"] == b"13"
    assert server.messages == []


def test_a_message_may_come_in_pieces_with_padding_and_an_empty_end():
    server = Recording()
    message = frame_messages([b"hello world"])
    server.receive(
        headers(1),
        data(1, message[:3]),
        frame(DATA, PADDED, 1, b"\x04" + message[3:8] + bytes(4)),
        data(1, message[8:]),
        data(1, b"", END_STREAM),
    )
    assert server.messages == [b"hello world"]


def test_a_request_may_end_with_trailers():
    server = Recording()
    trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, block([(b"x", b"y")]))
    server.receive(headers(1), data(1, frame_messages([b"hi"])), trailers)
    assert server.messages == [b"hi"]


def test_a_block_may_be_continued():
    server = Recording()
    fields = block()
    server.receive(
        frame(HEADERS, 0, 1, fields[:5]),
        frame(CONTINUATION, 0, 1, fields[5:20]),
        frame(CONTINUATION, END_HEADERS, 1, fields[20:]),
        data(1, frame_messages([b"hi"]), END_STREAM),
    )
    assert server.messages == [b"hi"]


def test_priority_is_ignored():
    server = Recording()
    prioritised = frame(
        HEADERS, END_HEADERS | 0x20 | PADDED, 1, b"\x01\0\0\0\x07\x10" + block() + b"\0"
    )
    server.receive(
        frame(PRIORITY, 0, 9, b"\0\0\0\x01\x10"),
        prioritised,
        data(1, frame_messages([b"hi"]), END_STREAM),
    )
    assert server.messages == [b"hi"]
    assert server.written() == []


def test_unknown_frames_flags_and_the_reserved_bit_are_ignored():
    server = Recording()
    server.receive(
        frame(0x42, 0xFF, 0, b"whatever"),
        frame(0x42, 0xFF, 77, b""),
        frame(HEADERS, END_HEADERS | 0xC2, 0x8000_0001, block()),
        data(1, frame_messages([b"hi"]), END_STREAM | 0xF0),
    )
    assert server.messages == [b"hi"]


def test_a_browser_is_told_what_this_port_is():
    server = Recording()
    fields = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"x")]
    server.receive(headers(1, fields, END_STREAM))
    frames = server.written()
    assert decoded(frames)[0][b":status"] == b"415"
    assert b"gRPC" in frames[1].payload
    assert frames[1].flags & END_STREAM
    assert server.codec.streams == {}


def test_a_long_upload_that_is_not_grpc_is_answered_early():
    server = Recording()
    fields = [field for field in request_fields() if field[0] != b"content-type"]
    server.receive(headers(1, fields), data(1, bytes(30_000)))
    assert server.written() == []
    server.receive(data(1, bytes(10_000)))
    assert [found.kind for found in server.written()] == [HEADERS, DATA, RST_STREAM]


@pytest.mark.parametrize(
    "wire",
    [
        data(1, b""),
        data(0, b""),
        reset_frame(1, ErrorCode.CANCEL),
        reset_frame(0, ErrorCode.CANCEL),
        window_update_frame(1, 1),
        window_update_frame(0, 0),
        headers(2),
        headers(0),
        headers(5) + headers(3),
        frame(CONTINUATION, END_HEADERS, 1, b""),
        frame(HEADERS, 0, 1, b"") + ping_frame(bytes(8), ack=False),
        frame(HEADERS, 0, 1, b"") + frame(0x42, 0, 1, b""),
        frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, END_HEADERS, 3, b""),
        frame(HEADERS, END_HEADERS | PADDED, 1, b"\x05abc"),
        frame(5, END_HEADERS, 1, bytes(4)),
        frame(SETTINGS, 0, 1, b""),
        frame(PING, 0, 1, bytes(8)),
        frame(GOAWAY, 0, 1, bytes(8)),
        frame(PRIORITY, 0, 0, bytes(5)),
        frame(PRIORITY, 0, 3, b"\0\0\0\x03\0"),
        settings_frame({2: 2}),
    ],
)
def test_a_breach_of_protocol_ends_the_connection(wire):
    server = Recording()
    server.receive(wire, request(9))
    assert verdict(server.written()) == goaway(ErrorCode.PROTOCOL_ERROR)
    assert server.codec.finished
    assert server.messages == []


@pytest.mark.parametrize(
    "wire",
    [
        frame(PING, 0, 0, bytes(7)),
        frame(SETTINGS, ACK, 0, bytes(6)),
        frame(SETTINGS, 0, 0, bytes(5)),
        frame(GOAWAY, 0, 0, bytes(7)),
        frame(WINDOW_UPDATE, 0, 0, bytes(3)),
        headers(1) + frame(RST_STREAM, 0, 1, bytes(5)),
        frame(HEADERS, END_HEADERS | 0x20, 1, bytes(4)),
        headers(1) + frame(DATA, PADDED, 1, b""),
        (Http2Limits().payload_bytes_max + 1).to_bytes(3) + frame(DATA, 0, 1, b"")[3:],
    ],
)
def test_a_frame_of_the_wrong_size_ends_the_connection(wire):
    server = Recording()
    server.receive(wire)
    assert verdict(server.written()) == goaway(ErrorCode.FRAME_SIZE_ERROR)


LONG = frame_messages([bytes(1_000_000)])
STREAM_FAULTS = {
    "depends on itself": (
        frame(HEADERS, END_HEADERS | 0x20, 1, b"\0\0\0\x01\0" + block()),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "window grows by nothing": (
        headers(1) + window_update_frame(1, 0),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "headers within a request": (headers(1) + headers(1), ErrorCode.PROTOCOL_ERROR),
    "malformed": (headers(1, [*request_fields(), (b"X", b"")]), ErrorCode.PROTOCOL_ERROR),
    "cut priority": (headers(1) + frame(PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
    "window overflows": (
        headers(1) + window_update_frame(1, 2**31 - 1),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "data without room": (
        headers(1) + data(1, LONG[:4]) + data(1, bytes(65_533)),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "data after the end": (request(1) + data(1, b"more"), ErrorCode.STREAM_CLOSED),
    "headers after the end": (request(1) + headers(1), ErrorCode.STREAM_CLOSED),
    "content-length exceeded": (
        headers(1, request_fields(content_length=b"3")) + data(1, b"four"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "content-length not reached": (
        headers(1, request_fields(content_length=b"9")) + data(1, b"four", END_STREAM),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "content-length of a whole message": (
        headers(1, request_fields(content_length=b"9"))
        + data(1, frame_messages([b""]), END_STREAM),
        ErrorCode.PROTOCOL_ERROR,
    ),
}


@pytest.mark.parametrize("name", STREAM_FAULTS)
def test_a_fault_of_one_stream_costs_that_stream_only(name):
    wire, code = STREAM_FAULTS[name]
    server = Recording()
    server.receive(wire, request(3, b"other"))
    assert verdict(server.written()) == reset(code)
    assert server.messages[-1] == b"other"
    assert not server.codec.finished


def test_frames_for_a_stream_that_ended_long_ago():
    server = echo_server()
    server.receive(request(1))
    server.written()
    server.receive(window_update_frame(1, 5), reset_frame(1, ErrorCode.CANCEL))
    assert server.written() == []
    server.receive(data(1, b"x"))
    assert verdict(server.written()) == reset(ErrorCode.STREAM_CLOSED)
    server.receive(request(3))
    server.written()
    server.receive(headers(3))
    assert verdict(server.written()) == goaway(ErrorCode.STREAM_CLOSED)


def test_frames_under_way_to_a_stream_we_reset_are_put_up_with():
    server = Recording()
    server.receive(headers(1), window_update_frame(1, 0))
    assert verdict(server.written()) == reset(ErrorCode.PROTOCOL_ERROR)
    trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, block([(b"x", b"y")]))
    server.receive(data(1, b"late"), window_update_frame(1, 9), trailers)
    assert server.written() == []


def test_a_table_stays_in_step_through_a_stream_that_is_refused():
    from hpack import Encoder

    server = Recording()
    encoder = Encoder()
    bad = encoder.encode([*request_fields(), (b"bad", b"a\nb"), (b"x-kept", b"1")])
    good = encoder.encode([*request_fields(), (b"x-kept", b"1")])
    server.receive(frame(HEADERS, END_HEADERS, 1, bad), frame(HEADERS, END_HEADERS, 3, good))
    server.receive(data(3, frame_messages([b"hi"]), END_STREAM))
    assert server.messages == [b"hi"]
    assert server.arrived[0][0].head.call.metadata["x-kept"] == "1"


def test_the_same_block_means_the_same_call():
    server = Recording()
    server.receive(request(1), request(3))
    (first, _), (second, _) = server.arrived
    assert first.head is second.head
    assert first.head.call.peer == "ipv4:test:1"


def test_no_byte_is_sent_without_a_window():
    server = Recording(direct=lambda m, c, reply: reply.send(b"x" * 100))
    server.receive(settings_frame({INITIAL_WINDOW_SIZE: 10}), request(1))
    sent = [found for found in server.written() if found.kind == DATA]
    assert [len(found.payload) for found in sent] == [10]
    server.receive(window_update_frame(1, 50))
    assert [len(found.payload) for found in server.written()] == [50]
    server.receive(settings_frame({INITIAL_WINDOW_SIZE: 25}))
    assert [len(f.payload) for f in server.written() if f.kind == DATA] == [15]
    server.receive(settings_frame({INITIAL_WINDOW_SIZE: 5}), window_update_frame(1, 20))
    assert [found.kind for found in server.written()] == [SETTINGS]
    server.receive(window_update_frame(1, 1_000))
    rest, trailers = server.written()
    assert (rest.kind, len(rest.payload), trailers.kind) == (DATA, 30, HEADERS)
    assert server.codec.queued_bytes == 0


def test_the_window_of_the_connection_is_shared_in_turns():
    server = Recording(direct=lambda m, c, reply: reply.send(b"x" * 40_000))
    server.receive(settings_frame({INITIAL_WINDOW_SIZE: 2**20}), request(1), request(3))
    assert sum(len(f.payload) for f in server.written() if f.kind == DATA) == 65_535
    server.receive(window_update_frame(0, 40_000))
    frames = server.written()
    assert {found.stream_id for found in frames if found.kind == DATA} == {3}
    assert server.codec.streams == {}


def test_large_answers_take_turns_frame_by_frame():
    server = Recording(direct=lambda m, c, reply: reply.send(b"x" * 40_000))
    server.receive(settings_frame({INITIAL_WINDOW_SIZE: 2**20}))
    server.codec.hold()
    server.receive(window_update_frame(0, 2**20), request(1), request(3))
    server.written()
    server.codec.release()
    order = [found.stream_id for found in server.written() if found.kind == DATA]
    assert order == [1, 3, 1, 3, 1, 3]


def test_a_full_transport_holds_data_back_and_nothing_else():
    server = echo_server()
    server.codec.hold()
    server.receive(request(1, b"hello"), ping_frame(bytes(8), ack=False))
    assert DATA not in [found.kind for found in server.written()]
    assert server.codec.queued_bytes == 10
    server.codec.release()
    assert [found.kind for found in server.written()] == [DATA, HEADERS]
    assert server.codec.queued_bytes == 0


def test_what_waits_for_a_stream_that_is_reset_is_dropped():
    server = echo_server()
    server.codec.hold()
    server.receive(request(1, b"hello"))
    server.receive(reset_frame(1, ErrorCode.CANCEL))
    assert server.codec.queued_bytes == 0
    server.written()
    server.codec.release()
    assert server.written() == []


def test_a_stream_of_messages_tells_when_it_has_drained():
    server = Recording()
    server.receive(settings_frame({INITIAL_WINDOW_SIZE: 8}), request(1))
    stream = server.arrived[0][0]
    server.codec.start_reply(stream)
    server.codec.send_messages(stream, [b"abc"])
    assert server.drained == [1]
    server.codec.send_messages(stream, [b"def", b"ghi"])
    assert server.drained == [1]
    server.receive(window_update_frame(1, 100))
    assert server.drained == [1, 1]
    server.codec.refuse(stream, StatusCode.UNAVAILABLE, "moved")
    frames = server.written()
    payload = b"".join(found.payload for found in frames if found.kind == DATA)
    assert payload == frame_messages([b"abc", b"def", b"ghi"])
    assert decoded(frames)[-1] == {b"grpc-status": b"14", b"grpc-message": b"moved"}


def test_a_large_request_is_given_the_room_it_needs():
    server = Recording()
    message = frame_messages([bytes(1_000_000)])
    server.receive(headers(1), data(1, message[:60_000]))
    (widened,) = server.written()
    assert (widened.kind, widened.stream_id) == (WINDOW_UPDATE, 1)
    given = int.from_bytes(widened.payload)
    assert 60_000 + (64 * 1024 - 60_000) + given == len(message)
    for start in range(60_000, len(message), 60_000):
        end = start + 60_000
        server.receive(data(1, message[start:end], END_STREAM if end >= len(message) else 0))
    assert server.messages == [bytes(1_000_000)]
    assert verdict(server.written()) is None


def test_large_requests_wait_for_each_other_and_all_arrive():
    server = Recording(Http2Limits(large_request_bytes_max=200_000))
    message = frame_messages([bytes(150_000)])
    windows = {number: 64 * 1024 for number in (1, 3, 5)}
    sent = dict.fromkeys(windows, 0)
    server.receive(*(headers(number) for number in windows))
    while len(server.messages) < 3:
        progress = False
        for number in windows:
            count = min(windows[number], 20_000, len(message) - sent[number])
            if count:
                end = sent[number] + count
                last = END_STREAM if end == len(message) else 0
                server.receive(data(number, message[sent[number] : end], last))
                sent[number], windows[number] = end, windows[number] - count
                progress = True
        for found in server.written():
            if found.kind == WINDOW_UPDATE and found.stream_id:
                windows[found.stream_id] += int.from_bytes(found.payload)
                progress = True
        assert progress, "the requests starve each other"
    assert server.codec._held_bytes == 0


def test_leaving_refuses_new_calls_lets_running_ones_end_and_then_finishes():
    server = Recording()
    server.receive(request(1))
    server.codec.leave("stop")
    (farewell,) = server.written()
    assert farewell.payload[:8] == b"\0\0\0\x01" + bytes(4)
    server.receive(request(3))
    assert verdict(server.written()) == reset(ErrorCode.REFUSED_STREAM)
    assert not server.codec.finished
    server.arrived[0][0].send(b"done")
    assert [found.kind for found in server.written()] == [HEADERS, DATA, HEADERS]
    assert server.codec.finished


def test_leaving_without_calls_finishes_at_once():
    server = Recording()
    server.codec.leave("stop")
    assert server.codec.finished


def test_a_client_that_leaves_gets_its_answers():
    server = Recording()
    server.receive(request(1), frame(GOAWAY, 0, 0, bytes(8)))
    server.arrived[0][0].send(b"done")
    assert [found.kind for found in server.written()] == [HEADERS, DATA, HEADERS]


def test_a_lost_connection_ends_every_call():
    server = Recording()
    server.receive(request(1), request(3))
    server.codec.connection_lost()
    assert server.gone == [1, 3]
    server.arrived[0][0].send(b"nobody")
    assert server.written() == []


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", PREFACE[:23] + b"x"]
)
def test_what_is_not_http2_is_turned_away(garbage):
    server = Recording(greeted=False)
    server.receive(garbage)
    assert verdict(server.written()) == goaway(ErrorCode.PROTOCOL_ERROR)
    assert server.codec.finished


@pytest.mark.parametrize(
    "first", [ping_frame(bytes(8), ack=False), frame(SETTINGS, ACK, 0, b""), headers(1)]
)
def test_the_first_frame_is_settings(first):
    server = Recording(greeted=False)
    server.receive(PREFACE, first)
    assert verdict(server.written()) == goaway(ErrorCode.PROTOCOL_ERROR)


def test_nothing_is_read_after_the_end():
    server = Recording()
    server.receive(window_update_frame(0, 0))
    server.written()
    server.receive(request(1))
    server.pass_seconds(1_000)
    assert server.written() == []
    assert server.messages == []
    assert split_frames(b"") == []


def warmed_up(direct, limits=None):
    """Return a server that has answered once, and so answers small calls in one piece."""
    server = Recording(limits, direct=direct)
    server.receive(request(1))
    server.written()
    return server


def sent_bytes(frames):
    return sum(len(found.payload) for found in frames if found.kind == DATA)


def test_small_answers_use_the_window_of_the_connection_up_and_no_more():
    server = warmed_up(echo)
    before = server.codec.send_window
    server.receive(*(request(number, bytes(995)) for number in range(3, 203, 2)))
    assert sent_bytes(server.written()) == before
    server.receive(window_update_frame(0, 10_000))
    assert sent_bytes(server.written()) == 10_000


def test_a_small_answer_keeps_to_the_window_of_its_stream():
    server = warmed_up(lambda m, c, reply: reply.send(b"x" * 95))
    server.receive(settings_frame({INITIAL_WINDOW_SIZE: 30}), request(3))
    assert sent_bytes(server.written()) == 30
    server.receive(window_update_frame(3, 70))
    assert sent_bytes(server.written()) == 70


def test_data_beyond_the_window_of_the_connection_ends_it():
    limits = Http2Limits(connection_window_bytes=65_535)
    server = Recording(limits)
    server.receive(headers(1), data(1, LONG[:32_000]), headers(3))
    assert not server.codec.finished
    server.receive(data(3, LONG[:60_000]))
    assert verdict(server.written()) == goaway(ErrorCode.FLOW_CONTROL_ERROR)
