"""However requests are sized, sent, cut and taken, they arrive, in order and within bounds."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.wire.http2.limits import Http2Limits
from tests.support.grpc_messages import frame_messages
from tests.support.http2_peers import Pair, RecordingCall, block, request_fields
from tests.unit.wire.http2.test_exchanges import TALK, TalkServer

STREAMS = 3
WINDOW = 70_000
LARGE = 400_000
PATTERN = random.Random(7).randbytes(LARGE + 1_000)
LIMITS = Http2Limits(
    exchange_window_bytes=WINDOW,
    stream_window_bytes=65_535,
    exchange_bytes_max=2 * (WINDOW - 65_535),
    large_request_bytes_max=LARGE,
    message_bytes_max=LARGE,
)
SIZES = st.sampled_from([0, 1, 1_000, 30_000, 65_530, 70_000, 150_000, 262_144, LARGE - 10])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, STREAMS - 1), SIZES),
        st.tuples(st.just("take"), st.integers(0, STREAMS - 1), st.just(0)),
        st.tuples(st.just("carry"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


class Talker(RecordingCall):
    def requests_sent(self):
        pass


@settings(max_examples=60)
@given(STEPS, st.sampled_from([1_000, 10_000, 100_000, 1 << 30]), st.booleans())
def test_requests_of_exchanges_arrive_in_order_within_bounds(steps, piece_bytes, in_place):
    server = TalkServer(LIMITS, greeted=False)
    pair = Pair(server=server, piece_bytes=piece_bytes, in_place=in_place)
    streams = [
        pair.client.open_exchange(block(request_fields(TALK)), Talker()) for _ in range(STREAMS)
    ]
    pair.settle()
    sent = {stream.id: [] for stream in streams}
    taken = {stream.id: [] for stream in streams}

    def take(number):
        stream = server.began[number]
        if server.unread[stream.id]:
            taken[stream.id].append(server.take(stream))
            return True
        return False

    for step, number, size in steps:
        if step == "send":
            stream = streams[number]
            place = len(sent[stream.id]) % 1_000
            message = PATTERN[place : place + size]
            pair.client.send_request(stream, [frame_messages([message])])
            sent[stream.id].append(message)
        elif step == "take":
            take(number)
        else:
            pair.settle()
        assert server.codec.buffered_bytes <= STREAMS * WINDOW + LARGE + 16_384
    for stream in streams:
        pair.client.end_requests(stream)
    pair.settle()
    while any([take(number) for number in range(STREAMS)]):
        pair.settle()
        assert server.codec.buffered_bytes <= STREAMS * WINDOW + LARGE + 16_384
    assert taken == sent
    assert sorted(server.over) == [stream.id for stream in streams]
    assert server.codec.buffered_bytes == 0
    assert not server.codec.finished


@pytest.mark.parametrize("piece_bytes", [1_000, 10_000])
def test_most_of_a_long_request_is_received_where_it_belongs(piece_bytes):
    server = TalkServer(LIMITS, greeted=False)
    pair = Pair(server=server, piece_bytes=piece_bytes, in_place=True)
    stream = pair.client.open_exchange(block(request_fields(TALK)), Talker())
    pair.client.send_request(stream, [frame_messages([PATTERN[:LARGE], b"short"])])
    pair.settle()
    long = server.take(server.began[0])
    assert long == PATTERN[:LARGE]
    assert pair.placed_bytes > LARGE // 2
    pair.settle()
    assert server.take(server.began[0]) == b"short"
