"""The client's codec, frame by frame: what it sends, and what it makes of the answers."""

import gzip

import pytest

from pydanube.wire.calls import StatusCode
from pydanube.wire.http2.client_codec import STREAM_WINDOW_BYTES, ClientCodec
from pydanube.wire.http2.errors import ErrorCode
from pydanube.wire.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    goaway_frame,
    ping_frame,
    reset_frame,
    window_update_frame,
)
from pydanube.wire.http2.grpc_framing import OK_BLOCK, RESPONSE_BLOCK
from pydanube.wire.http2.header_blocks import encode_fields
from pydanube.wire.http2.limits import Http2Limits
from pydanube.wire.http2.requests import request_block
from pydanube.wire.http2.settings import (
    ENABLE_PUSH,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    settings_frame,
)
from tests.support.grpc_messages import frame_messages
from tests.support.http2_peers import RecordingCall, decoded, split_frames, verdict

BLOCK = request_block(scheme=b"http", authority=b"h:1", path="/a/B", metadata={}, timeout=None)
HELLO = frame(SETTINGS, 0, 0, b"")
BEGIN = frame(HEADERS, END_HEADERS, 1, RESPONSE_BLOCK)
END = frame(HEADERS, END_HEADERS | END_STREAM, 1, OK_BLOCK)


class Client:
    """A codec with one call under way, and what it wrote."""

    def __init__(self, *hello, limits=None, message=b"hello"):
        self.now_ms = 1_000
        self.codec = ClientCodec(limits or Http2Limits(), self.now_ms, lambda: None)
        self.receive(*(hello or (HELLO,)))
        self.codec.take_output()
        self.call = RecordingCall()
        self.stream = self.codec.open(BLOCK, [frame_messages([message])], self.call)

    def receive(self, *pieces):
        self.codec.receive(b"".join(pieces), self.now_ms)

    def written(self):
        return split_frames(b"".join(self.codec.take_output()))


def reply(message, flags=0):
    return frame(DATA, flags, 1, frame_messages([message]))


def test_a_client_begins_with_the_preface_and_forbids_pushes():
    codec = ClientCodec(Http2Limits(), 0, lambda: None)
    first = b"".join(codec.take_output())
    assert first.startswith(PREFACE)
    (settings,) = split_frames(first[len(PREFACE) :])
    assert settings.payload.startswith(b"\0\x02\0\0\0\0")


def test_a_call_is_headers_and_a_message_that_ends_it():
    client = Client()
    head, body = client.written()
    assert decoded([head])[0][b":path"] == b"/a/B"
    assert (head.stream_id, head.flags & END_STREAM) == (1, 0)
    assert (body.payload, body.flags) == (frame_messages([b"hello"]), END_STREAM)


def test_a_reply_ends_the_call():
    client = Client()
    client.receive(BEGIN, reply(b"world"), END)
    assert client.call.replies == [b"world"]
    assert client.call.is_ok
    assert client.codec.streams == {}


@pytest.mark.parametrize("step", [1, 4, 9, 50])
def test_replies_are_the_same_however_their_bytes_arrive(step):
    client = Client()
    wire = BEGIN + frame(DATA, 0, 1, frame_messages([b"1", b"", b"3" * 99])) + reply(b"4") + END
    for start in range(0, len(wire), step):
        client.receive(wire[start : start + step])
    assert client.call.replies == [b"1", b"", b"3" * 99, b"4"]
    assert client.call.is_ok


def test_a_compressed_reply_is_unpacked():
    client = Client()
    head = RESPONSE_BLOCK + encode_fields([(b"grpc-encoding", b"gzip")])
    body = gzip.compress(b"hello" * 100)
    message = b"\x01" + len(body).to_bytes(4) + body
    client.receive(frame(HEADERS, END_HEADERS, 1, head), frame(DATA, 0, 1, message), END)
    assert client.call.replies == [b"hello" * 100]


def test_a_refusal_is_told_with_its_text():
    client = Client()
    refusal = encode_fields([(b"grpc-status", b"5"), (b"grpc-message", b"sp%C3%A4ti")])
    client.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, RESPONSE_BLOCK + refusal))
    assert client.call.ending == (StatusCode.NOT_FOUND, "späti")


def block(*fields):
    return encode_fields(list(fields))


ENDINGS = {
    "no status": (BEGIN + frame(DATA, END_STREAM, 1, b""), StatusCode.UNKNOWN),
    "no status in trailers": (
        BEGIN + frame(HEADERS, END_HEADERS | END_STREAM, 1, b""),
        StatusCode.UNKNOWN,
    ),
    "no status in headers": (
        frame(HEADERS, END_HEADERS | END_STREAM, 1, RESPONSE_BLOCK),
        StatusCode.UNKNOWN,
    ),
    "http 503": (
        frame(HEADERS, END_HEADERS | END_STREAM, 1, block((b":status", b"503"))),
        StatusCode.UNAVAILABLE,
    ),
    "http 404 with a page": (
        frame(HEADERS, END_HEADERS, 1, block((b":status", b"404"))) + frame(DATA, 0, 1, b"<html>"),
        StatusCode.UNIMPLEMENTED,
    ),
    "a web page": (
        frame(
            HEADERS, END_HEADERS, 1, block((b":status", b"200"), (b"content-type", b"text/html"))
        ),
        StatusCode.UNKNOWN,
    ),
    "unknown compression": (
        frame(HEADERS, END_HEADERS, 1, RESPONSE_BLOCK + block((b"grpc-encoding", b"zstd"))),
        StatusCode.INTERNAL,
    ),
    "a cut message": (BEGIN + frame(DATA, 0, 1, b"\0\0\0\0\x09abc") + END, StatusCode.INTERNAL),
    "a long message": (BEGIN + frame(DATA, 0, 1, b"\0\x7f\0\0\0"), StatusCode.INVALID_ARGUMENT),
    "reset": (reset_frame(1, ErrorCode.INTERNAL_ERROR), StatusCode.INTERNAL),
    "cancelled": (reset_frame(1, ErrorCode.CANCEL), StatusCode.CANCELLED),
    "data before headers": (reply(b"x"), StatusCode.INTERNAL),
    "no :status": (frame(HEADERS, END_HEADERS, 1, block((b"x", b"y"))), StatusCode.INTERNAL),
    "two beginnings": (BEGIN + BEGIN, StatusCode.INTERNAL),
    "malformed": (frame(HEADERS, END_HEADERS, 1, block((b"X", b"y"))), StatusCode.INTERNAL),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_every_other_ending_is_told_as_what_it_is(name):
    wire, code = ENDINGS[name]
    client = Client()
    client.receive(wire)
    assert client.call.ending is not None
    assert client.call.ending[0] is code
    assert client.codec.streams == {}
    assert not client.codec.finished


def test_an_interim_answer_is_passed_over():
    client = Client()
    client.receive(frame(HEADERS, END_HEADERS, 1, block((b":status", b"103"))), BEGIN, END)
    assert client.call.is_ok


def test_a_refused_stream_and_one_beyond_goaway_may_be_repeated():
    client = Client()
    second = RecordingCall()
    client.codec.open(BLOCK, [frame_messages([b""])], second)
    client.receive(goaway_frame(1, ErrorCode.NO_ERROR, "stop"))
    assert second.ending is not None
    assert second.repeatable
    assert client.codec.leaving
    assert client.call.ending is None
    client.receive(reset_frame(1, ErrorCode.REFUSED_STREAM))
    assert client.call.ending[0] is StatusCode.UNAVAILABLE
    assert client.call.repeatable


def test_a_lost_connection_ends_calls_that_must_not_be_repeated_blindly():
    client = Client()
    client.codec.connection_lost()
    assert client.call.ending[0] is StatusCode.UNAVAILABLE
    assert not client.call.repeatable


def test_a_cancelled_call_is_reset_and_its_late_answer_ignored():
    client = Client()
    client.written()
    client.codec.cancel(client.stream)
    client.codec.cancel(client.stream)
    assert verdict(client.written()) == (RST_STREAM, ErrorCode.CANCEL)
    client.receive(BEGIN, reply(b"late"), END)
    assert client.call.ending is None
    assert client.call.replies == []
    assert client.written() == []


def test_a_call_that_is_refused_while_it_is_sent_is_given_up():
    client = Client(settings_frame({INITIAL_WINDOW_SIZE: 10}), message=bytes(100))
    assert [len(f.payload) for f in client.written() if f.kind == DATA] == [10]
    refusal = RESPONSE_BLOCK + block((b"grpc-status", b"3"))
    client.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, refusal))
    assert client.call.ending[0] is StatusCode.INVALID_ARGUMENT
    assert verdict(client.written()) == (RST_STREAM, ErrorCode.CANCEL)
    assert client.codec.queued_bytes == 0


def test_a_long_request_waits_for_the_servers_windows():
    client = Client(settings_frame({INITIAL_WINDOW_SIZE: 40}), message=bytes(100))
    assert [(len(f.payload), f.flags) for f in client.written() if f.kind == DATA] == [(40, 0)]
    client.receive(window_update_frame(1, 1_000))
    assert [(len(f.payload), f.flags) for f in client.written()] == [(65, END_STREAM)]


def test_the_server_says_how_many_calls_run_at_once():
    client = Client(settings_frame({MAX_CONCURRENT_STREAMS: 2}))
    assert client.codec.has_room
    client.codec.open(BLOCK, [frame_messages([b""])], RecordingCall())
    assert not client.codec.has_room
    client.receive(BEGIN, END)
    assert client.codec.has_room


def test_room_is_given_back_as_messages_are_consumed():
    client = Client()
    client.written()
    piece = bytes(60_000)
    client.receive(BEGIN)
    for _ in range(STREAM_WINDOW_BYTES // 60_005):
        client.receive(reply(piece))
    assert WINDOW_UPDATE not in [f.kind for f in client.written() if f.stream_id]
    for message in client.call.replies:
        client.codec.consumed(client.stream, message)
    given = [int.from_bytes(f.payload) for f in client.written() if f.stream_id]
    assert sum(given) >= STREAM_WINDOW_BYTES // 2
    assert client.stream.receive_left <= STREAM_WINDOW_BYTES
    client.receive(*(reply(piece) for _ in range(sum(given) // 60_005)))
    assert client.call.ending is None


def test_a_message_longer_than_the_window_gets_the_room_it_needs():
    client = Client()
    client.written()
    size = STREAM_WINDOW_BYTES + 1_000_000
    wire = frame_messages([bytes(size)])
    client.receive(BEGIN)
    sent, window = 0, STREAM_WINDOW_BYTES
    while sent < len(wire):
        count = min(window, 60_000, len(wire) - sent)
        assert count > 0, "the message is stuck"
        client.receive(frame(DATA, 0, 1, wire[sent : sent + count]))
        sent, window = sent + count, window - count
        window += sum(int.from_bytes(f.payload) for f in client.written() if f.stream_id)
    assert client.call.replies == [bytes(size)]
    assert client.stream.receive_left <= STREAM_WINDOW_BYTES


CONNECTION_FAULTS = {
    "a push": frame(5, END_HEADERS, 1, bytes(4)),
    "a server that wants pushes": settings_frame({ENABLE_PUSH: 1}),
    "an answer to no call": frame(HEADERS, END_HEADERS, 3, RESPONSE_BLOCK),
    "a stream of the server": frame(HEADERS, END_HEADERS, 2, RESPONSE_BLOCK),
    "data for no call": frame(DATA, 0, 5, b""),
}


@pytest.mark.parametrize("name", CONNECTION_FAULTS)
def test_a_server_that_breaks_the_protocol_is_left(name):
    client = Client()
    client.receive(CONNECTION_FAULTS[name])
    assert verdict(client.written()) == (GOAWAY, ErrorCode.PROTOCOL_ERROR)
    assert client.codec.finished
    assert client.call.ending[0] is StatusCode.UNAVAILABLE


def test_what_is_not_http2_is_left():
    codec = ClientCodec(Http2Limits(), 0, lambda: None)
    codec.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n", 0)
    assert codec.finished


def test_a_silent_server_is_asked_for_a_sign_of_life_and_then_left():
    client = Client()
    client.written()
    client.codec.tick(62_000)
    (ping,) = client.written()
    assert ping.kind == PING
    client.now_ms = 63_000
    client.receive(ping_frame(ping.payload, ack=True))
    client.codec.tick(124_000)
    assert [f.kind for f in client.written()] == [PING]
    client.codec.tick(145_000)
    assert client.codec.finished
    assert client.call.ending[0] is StatusCode.UNAVAILABLE


def test_a_caller_that_gives_up_within_a_reply_hears_no_more():
    client = Client()

    class Quitter(RecordingCall):
        def reply_arrived(self, message):
            super().reply_arrived(message)
            client.codec.cancel(client.stream)

    client.call = client.stream.events = Quitter()
    client.receive(BEGIN, frame(DATA, 0, 1, frame_messages([b"1", b"2", b"3"])), END)
    assert client.call.replies == [b"1"]
    assert client.call.ending is None
