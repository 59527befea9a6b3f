"""Both codecs joined by a wire: whatever one says, the other understands."""

import pytest

from pydanube.wire.calls import StatusCode
from pydanube.wire.http2.limits import Http2Limits
from pydanube.wire.http2.requests import request_block
from tests.support.grpc_messages import frame_messages
from tests.support.http2_peers import ECHO, Pair, Recording, RecordingCall


def block(path=ECHO, **metadata):
    return request_block(
        scheme=b"http", authority=b"test", path=path, metadata=metadata, timeout=None
    )


def echo(message, call, reply):
    reply.send(message)


def pair(piece_bytes=1 << 30, limits=None, direct=echo):
    server = Recording(limits, greeted=False, direct=direct)
    return Pair(server=server, piece_bytes=piece_bytes)


def open_call(joined, message, header_block=None):
    call = RecordingCall()
    stream = joined.client.open(header_block or block(), [frame_messages([message])], call)
    return call, stream


@pytest.mark.parametrize("piece_bytes", [1, 7, 100, 1 << 30])
def test_calls_are_answered_whatever_the_wire_does_to_their_bytes(piece_bytes):
    joined = pair(piece_bytes)
    messages = [b"", b"x", b"y" * 3_000, bytes(20_000 if piece_bytes < 7 else 300_000)]
    calls = [open_call(joined, message)[0] for message in messages]
    joined.settle()
    assert [call.replies for call in calls] == [[message] for message in messages]
    assert all(call.is_ok for call in calls)
    assert joined.client.streams == joined.server.codec.streams == {}
    assert not joined.client.finished
    assert not joined.server.codec.finished


def test_five_mebibytes_go_both_ways_through_small_windows():
    joined = pair(60_000)
    message = bytes(range(256)) * 20_480
    call, _ = open_call(joined, message)
    joined.settle()
    assert call.replies == [message]
    assert joined.server.codec._held_bytes == 0


def test_a_hundred_large_calls_at_once_all_end():
    joined = pair(1 << 20, Http2Limits(large_request_bytes_max=500_000))
    calls = [open_call(joined, bytes(200_000))[0] for _ in range(100)]
    joined.settle()
    assert all(call.is_ok for call in calls)
    assert [len(call.replies[0]) for call in calls] == [200_000] * 100


def test_metadata_and_refusals_arrive_as_they_were_said():
    def refuse(message, call, reply):
        reply.refuse(StatusCode.OUT_OF_RANGE, f"{call.metadata['who']}: 100 %\nüber …")

    joined = pair(direct=refuse)
    call, _ = open_call(joined, b"", block(who="me"))
    joined.settle()
    assert call.ending == (StatusCode.OUT_OF_RANGE, "me: 100 %\nüber …")


def test_a_message_that_is_too_long_is_refused_and_the_connection_lives_on():
    joined = pair(limits=Http2Limits(message_bytes_max=100_000))
    too_long, _ = open_call(joined, bytes(5_000_000))
    fits, _ = open_call(joined, bytes(100_000))
    joined.settle()
    assert too_long.ending[0] is StatusCode.INVALID_ARGUMENT
    assert fits.is_ok
    again, _ = open_call(joined, b"x")
    joined.settle()
    assert again.is_ok


def test_an_unknown_method_is_unimplemented():
    joined = pair()
    call, _ = open_call(joined, bytes(300_000), block("/no/thing"))
    joined.settle()
    assert call.ending[0] is StatusCode.UNIMPLEMENTED


def test_a_cancelled_call_reaches_the_handler():
    joined = pair(direct=lambda *_: None)
    call, stream = open_call(joined, b"x")
    joined.settle()
    joined.client.cancel(stream)
    joined.settle()
    assert joined.server.gone == [1]
    joined.server.arrived[0][0].send(b"too late")
    joined.settle()
    assert call.replies == []
    assert not joined.client.finished


def test_a_reader_that_does_not_consume_stops_the_writer_and_nothing_is_lost():
    joined = pair(direct=lambda *_: None)
    call, stream = open_call(joined, b"")
    joined.settle()
    server = joined.server
    answering = server.arrived[0][0]
    server.codec.start_reply(answering)
    sent = 0
    while answering.queue is None:
        server.codec.send_messages(answering, [b"%08d" % sent + bytes(50_000)])
        sent += 1
        joined.settle()
    assert sent * 50_000 < 10_000_000
    for message in list(call.replies):
        joined.client.consumed(stream, message)
    joined.settle()
    assert answering.queue is None
    server.codec.end_reply(answering)
    joined.settle()
    assert [int(message[:8]) for message in call.replies] == list(range(sent))
    assert call.is_ok


def test_a_server_that_leaves_ends_its_calls_and_sends_new_ones_away():
    joined = pair(direct=lambda *_: None)
    first, _ = open_call(joined, b"1")
    joined.settle()
    joined.server.codec.leave("stop")
    late, _ = open_call(joined, b"2")
    joined.settle()
    assert late.repeatable
    joined.server.arrived[0][0].send(b"done")
    joined.settle()
    assert first.replies == [b"done"]
    assert joined.server.codec.finished


def test_a_client_that_leaves_ends_the_handlers_work():
    joined = pair(direct=lambda *_: None)
    call, _ = open_call(joined, b"1")
    joined.settle()
    joined.client.leave()
    assert call.ending[0] is StatusCode.UNAVAILABLE
    joined.settle()
    joined.server.codec.connection_lost()
    assert joined.server.gone == [1]


def test_no_more_calls_run_at_once_than_the_server_allows():
    joined = pair(limits=Http2Limits(streams_max=3), direct=lambda *_: None)
    for _ in range(3):
        open_call(joined, b"")
    joined.settle()
    assert not joined.client.has_room
    joined.server.arrived[0][0].send(b"")
    joined.settle()
    assert joined.client.has_room
