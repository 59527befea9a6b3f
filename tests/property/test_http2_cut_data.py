"""Where a read ends decides nothing: long DATA frames may be cut anywhere."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.wire.http2.frames import DATA, END_STREAM, PADDED, RST_STREAM, frame
from pydanube.wire.http2.limits import Http2Limits
from tests.support.grpc_messages import frame_messages
from tests.support.http2_peers import Recording, data, headers, request, verdict

LIMITS = Http2Limits(message_bytes_max=60_000)


def body(length, value):
    return bytes([value % 256]) * length


def padded(stream_id, payload):
    return frame(DATA, END_STREAM | PADDED, stream_id, b"\x03" + payload + bytes(3))


def told(server):
    """Return all that a peer and the application get to know, but not when."""
    frames = server.written()
    answers = [each for each in frames if each.stream_id and each.kind != 8]
    given = sum(int.from_bytes(each.payload) for each in frames if each.kind == 8)
    return server.messages, answers, given, verdict(frames)


def run(wire, cuts=()):
    server = Recording(LIMITS, direct=lambda message, call, reply: reply.send(b"%d" % len(message)))
    places = [0, *sorted(cut % len(wire) for cut in cuts), len(wire)]
    for start, end in itertools.pairwise(places):
        server.receive(wire[start:end])
    return told(server)


calls = st.lists(
    st.tuples(
        st.sampled_from(["whole", "two frames", "padded", "too long", "beyond the window"]),
        st.integers(16_000, 50_000),
    ),
    min_size=1,
    max_size=5,
)


def wire_of(wanted):
    wire = b""
    for number, (kind, length) in enumerate(wanted):
        stream_id = 2 * number + 1
        message = frame_messages([body(length, number)])
        wire += headers(stream_id)
        match kind:
            case "whole":
                wire += data(stream_id, message, END_STREAM)
            case "two frames":
                wire += data(stream_id, message[:-100]) + data(
                    stream_id, message[-100:], END_STREAM
                )
            case "padded":
                wire += padded(stream_id, message)
            case "too long":
                long = frame_messages([bytes(60_001)])
                wire += data(stream_id, long[:40_000]) + data(stream_id, long[40_000:], END_STREAM)
            case "beyond the window":
                wire += data(stream_id, message[:-1]) + data(stream_id, bytes(60_000))
    return wire


@settings(max_examples=150, deadline=None)
@given(calls, st.lists(st.integers(0, 1 << 20), max_size=12))
def test_the_end_is_the_same_wherever_the_wire_is_cut(wanted, cuts):
    wire = wire_of(wanted)
    assert run(wire, cuts) == run(wire)


def test_what_follows_a_refusal_within_a_cut_frame_is_ignored():
    server = Recording(LIMITS)
    frames = data(1, frame_messages([bytes(60_001)])[:50_000])
    server.receive(headers(1) + frames[:1_000])
    assert [each.kind for each in server.written()][-1] == RST_STREAM
    server.receive(frames[1_000:] + request(3))
    assert server.messages == [b"hello"]
    assert verdict(server.written()) is None


@pytest.mark.parametrize("length", [16_384, 60_000])
def test_the_beginning_of_a_long_frame_is_not_held_as_a_frame(length):
    server = Recording(LIMITS)
    wire = headers(1) + data(1, frame_messages([bytes(length - 5)]), END_STREAM)
    server.receive(wire[:-1])
    assert len(server.codec._cut) == 0
    server.receive(wire[-1:])
    assert server.messages == [bytes(length - 5)]
