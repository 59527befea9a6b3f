"""Calls with a stream each way, frame by frame: what arrives when, and who gets how far ahead."""

import pytest

from pydanube.wire.calls import HandlerTable, StatusCode, whole
from pydanube.wire.http2.errors import ErrorCode
from pydanube.wire.http2.frames import (
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    RST_STREAM,
    WINDOW_UPDATE,
    ping_frame,
    reset_frame,
)
from pydanube.wire.http2.limits import Http2Limits
from pydanube.wire.http2.server_codec import ServerCodec
from pydanube.wire.http2.server_exchanges import IN_PLACE_MAX
from pydanube.wire.http2.server_heads import Peer
from tests.support.grpc_messages import frame_messages
from tests.support.http2_peers import (
    HELLO,
    Pair,
    Recording,
    RecordingCall,
    block,
    data,
    headers,
    request_fields,
    verdict,
)

TALK = "/test/talk"
KIB = 1024
LIMITS = Http2Limits(
    exchange_window_bytes=100 * KIB, stream_window_bytes=65_535, large_request_bytes_max=400 * KIB
)


class TalkServer(Recording):
    """A server codec that is told of exchanges, and takes their requests when the test says so."""

    def __init__(self, limits=LIMITS, *, greeted=True):
        super().__init__(limits, greeted=False)
        table = HandlerTable()
        table.add_exchange(TALK, lambda requests, call: None)
        self.codec = ServerCodec(limits, table, Peer("ipv4:test:1"), self, self.now_ms)
        self.began = []
        self.unread = {}
        self.over = []
        if greeted:
            self.receive(HELLO)
            self.written()

    def exchange_began(self, stream):
        self.began.append(stream)
        self.unread[stream.id] = []

    def exchange_request(self, stream, message):
        self.unread[stream.id].append(message)

    def exchange_requests_ended(self, stream):
        self.over.append(stream.id)

    def begin(self, stream_id=1, flags=0):
        self.receive(talk(stream_id, flags))
        return self.began[-1]

    def take(self, stream):
        message = self.unread[stream.id].pop(0)
        self.codec.consumed(stream, message)
        return whole(message)

    def live_for_minutes(self, minutes):
        """Let time pass with a peer that answers."""
        for _ in range(minutes):
            self.pass_seconds(30)
            self.pass_seconds(30)
            self.receive(ping_frame(b"pydanube", ack=True))
        self.written()

    def windows(self):
        """Return what each stream has been given in what was written meanwhile."""
        given = {}
        for found in self.written():
            if found.kind == WINDOW_UPDATE and found.stream_id:
                given[found.stream_id] = given.get(found.stream_id, 0) + int.from_bytes(
                    found.payload
                )
        return given


def talk(stream_id, flags=0):
    return headers(stream_id, request_fields(TALK), flags)


def message_of(size):
    """Return a message that takes `size` bytes on the wire."""
    return frame_messages([bytes(size - 5)])


def pieces(stream_id, payload, flags=0, size=16 * KIB):
    parts = [payload[at : at + size] for at in range(0, len(payload), size)]
    frames = [data(stream_id, part) for part in parts[:-1]]
    return b"".join([*frames, data(stream_id, parts[-1], flags)])


def test_an_exchange_begins_with_its_headers_and_its_requests_come_one_by_one():
    server = TalkServer()
    stream = server.begin()
    assert server.windows() == {1: 100 * KIB - 65_535}
    server.receive(data(1, frame_messages([b"one", b"two"]) + b"\0\0\0\0\5th"))
    assert server.unread[1] == [b"one", b"two"]
    server.receive(data(1, b"ree", END_STREAM))
    assert server.unread[1] == [b"one", b"two", b"three"]
    assert server.over == [1]
    server.codec.start_reply(stream)
    server.codec.send_messages(stream, [b"reply"])
    server.codec.end_reply(stream)
    assert [found.kind for found in server.written()] == [HEADERS, DATA, HEADERS]
    assert server.codec.buffered_bytes == 0
    assert not server.codec.streams


def test_memory_is_given_in_advance_to_so_many_requests_of_a_connection():
    server = TalkServer(Http2Limits())
    announced = frame_messages([bytes(1024 * KIB)])

    def announce(stream_id):
        stream = server.begin(stream_id)
        server.receive(data(stream_id, announced[:100]))
        return stream.reader.is_within_long_message

    ids = [2 * number + 1 for number in range(IN_PLACE_MAX + 1)]
    assert [announce(each) for each in ids] == [True] * IN_PLACE_MAX + [False]
    server.receive(pieces(1, announced[100:]))
    server.receive(reset_frame(3, ErrorCode.CANCEL))
    assert [announce(101), announce(103), announce(105)] == [True, True, False]
    server.receive(pieces(ids[-1], announced[100:]))
    for each in (1, ids[-1]):
        assert [whole(message) for message in server.unread[each]] == [bytes(1024 * KIB)]


def test_an_exchange_without_requests_has_ended_at_once():
    server = TalkServer()
    server.begin(flags=END_STREAM)
    assert (server.over, server.windows()) == ([1], {})
    server.receive(talk(3), data(3, b"", END_STREAM))
    assert server.over == [1, 3]


def test_a_sender_gets_no_further_ahead_than_its_window():
    server = TalkServer()
    stream = server.begin()
    server.windows()
    server.receive(*(pieces(1, message_of(25 * KIB)) for _ in range(4)))
    assert len(server.unread[1]) == 4
    assert server.windows() == {}
    server.take(stream)
    assert server.windows() == {}
    server.take(stream)
    assert server.windows() == {1: 50 * KIB}
    assert server.codec.buffered_bytes == 50 * KIB
    server.receive(*(pieces(1, message_of(25 * KIB)) for _ in range(2)))
    assert server.windows() == {}
    server.receive(data(1, b"x"))
    assert verdict(server.written()) == (RST_STREAM, ErrorCode.FLOW_CONTROL_ERROR)
    assert server.gone == [1]


def test_requests_that_are_taken_keep_the_window_open():
    server = TalkServer()
    stream = server.begin()
    for _ in range(50):
        server.receive(pieces(1, message_of(30 * KIB)))
        server.take(stream)
    assert not server.codec.finished
    assert server.codec.buffered_bytes == 0


def test_a_request_larger_than_the_window_gets_through_and_gives_its_room_back():
    server = TalkServer()
    first, second = server.begin(1), server.begin(3)
    server.windows()
    large = message_of(350 * KIB)
    server.receive(pieces(1, large[: 100 * KIB]))
    assert server.windows() == {1: 250 * KIB}
    server.receive(pieces(3, large[: 100 * KIB]))
    assert server.windows() == {}, "the room for large requests is taken"
    server.receive(pieces(1, large[100 * KIB :]))
    assert len(server.unread[1]) == 1
    assert server.windows() == {}, "the request is here, but still takes its room"
    server.take(first)
    assert server.windows() == {1: 100 * KIB, 3: 250 * KIB}
    server.receive(pieces(3, large[100 * KIB :]))
    server.take(second)
    assert server.codec.buffered_bytes == 0


def test_what_is_unread_comes_before_room_for_a_large_request():
    server = TalkServer()
    stream = server.begin()
    server.windows()
    server.receive(pieces(1, message_of(30 * KIB) + message_of(300 * KIB)[: 70 * KIB]))
    assert server.windows() == {}
    server.take(stream)
    assert server.windows() == {1: 230 * KIB}


def test_exchanges_share_what_they_may_be_ahead():
    more = 100 * KIB - 65_535
    server = TalkServer(
        Http2Limits(
            exchange_window_bytes=100 * KIB, stream_window_bytes=65_535, exchange_bytes_max=2 * more
        )
    )
    for number in (1, 3, 5):
        server.begin(number)
    assert server.windows() == {1: more, 3: more}
    server.began[0].refuse(StatusCode.ABORTED, "enough")
    server.written()
    server.begin(7)
    assert server.windows() == {7: more}


def test_an_exchange_may_be_silent_for_as_long_as_it_likes():
    server = TalkServer(Http2Limits(request_seconds_max=60))
    stream = server.begin()
    server.receive(data(1, frame_messages([b"x"])))
    server.take(stream)
    server.live_for_minutes(10)
    assert not server.codec.finished


def test_a_request_of_an_exchange_that_is_not_finished_in_time_is_given_up():
    server = TalkServer(Http2Limits(request_seconds_max=60))
    server.begin()
    server.live_for_minutes(5)
    server.receive(data(1, frame_messages([b"abc"])[:-1]))
    server.pass_seconds(59)
    assert not server.codec.finished
    server.pass_seconds(2)
    assert verdict(server.written()) == (GOAWAY, ErrorCode.ENHANCE_YOUR_CALM)


def test_a_request_that_waits_for_its_handler_is_not_blamed_for_being_late():
    server = TalkServer()
    stream = server.begin()
    server.receive(pieces(1, message_of(60 * KIB) + message_of(80 * KIB)[: 40 * KIB]))
    server.live_for_minutes(5)
    assert not server.codec.finished
    server.take(stream)
    server.pass_seconds(59)
    assert not server.codec.finished
    server.receive(pieces(1, message_of(80 * KIB)[40 * KIB :]))
    assert len(server.unread[1]) == 1


def test_a_cut_request_is_refused_and_the_handler_stopped():
    server = TalkServer()
    server.begin()
    server.receive(data(1, frame_messages([b"abc"])[:-1], END_STREAM))
    assert (server.over, server.gone) == ([], [1])
    assert [found.kind for found in server.written() if found.stream_id == 1][-1] == HEADERS
    assert server.codec.buffered_bytes == 0


def test_a_request_that_is_too_long_is_refused_and_the_handler_stopped():
    server = TalkServer(Http2Limits(message_bytes_max=1_000))
    server.begin()
    server.receive(data(1, frame_messages([bytes(1_001)])[:10]))
    assert server.gone == [1]
    assert server.codec.buffered_bytes == 0
    server.receive(data(1, bytes(1_000)))
    assert not server.codec.finished


def test_what_was_under_way_when_an_exchange_ended_is_forgiven():
    server = TalkServer(Http2Limits(idle_frames_burst=10, stream_window_bytes=65_535))
    stream = server.begin()
    stream.refuse(StatusCode.ABORTED, "enough")
    server.receive(*(data(1, b"12345") for _ in range(10_000)))
    assert not server.codec.finished
    room = LIMITS.exchange_window_bytes + 2 * 1024 * KIB
    server.receive(*(data(1, bytes(10 * KIB)) for _ in range(room // (10 * KIB))))
    assert verdict(server.written())[0] == GOAWAY, "but no more than there was room for"


def test_what_is_not_grpc_is_told_so():
    server = TalkServer()
    fields = [
        (name, b"text/html" if name == b"content-type" else value)
        for name, value in request_fields(TALK)
    ]
    server.receive(headers(1, fields, END_STREAM))
    assert server.began == []
    assert server.written()[0].kind == HEADERS


def test_a_lost_connection_stops_every_exchange():
    server = TalkServer()
    server.begin(1)
    server.begin(3)
    server.codec.connection_lost()
    assert sorted(server.gone) == [1, 3]


class Talker(RecordingCall):
    """Events of a client's exchange."""

    def __init__(self):
        super().__init__()
        self.sent = 0

    def requests_sent(self):
        self.sent += 1


@pytest.mark.parametrize("piece_bytes", [7, 1_000, 1 << 30])
def test_a_client_sends_requests_as_the_window_lets_it(piece_bytes):
    server = TalkServer(greeted=False)
    pair = Pair(server=server, piece_bytes=piece_bytes)
    talker = Talker()
    stream = pair.client.open_exchange(block(request_fields(TALK)), talker)
    assert pair.client.send_request(stream, [frame_messages([b"small"])])
    pair.settle()
    assert not pair.client.send_request(stream, [frame_messages([bytes(300 * KIB)])])
    before = talker.sent
    pair.settle()
    assert (talker.sent, server.unread[1]) == (before, [b"small"])
    server.take(server.began[0])
    pair.settle()
    assert talker.sent == before + 1
    assert server.take(server.began[0]) == bytes(300 * KIB)
    pair.client.end_requests(stream)
    pair.settle()
    assert server.over == [1]
    server.codec.start_reply(server.began[0])
    server.codec.send_messages(server.began[0], [b"reply"])
    server.codec.end_reply(server.began[0])
    pair.settle()
    assert talker.replies == [b"reply"]
    assert talker.is_ok
    assert not pair.client.streams
    assert not server.codec.streams


def test_a_client_that_ends_its_requests_behind_a_queue_sends_all_of_them():
    server = TalkServer(greeted=False)
    pair = Pair(server=server)
    stream = pair.client.open_exchange(block(request_fields(TALK)), Talker())
    pair.client.send_request(stream, [frame_messages([bytes(150 * KIB)])])
    pair.client.end_requests(stream)
    pair.settle()
    assert ([whole(each) for each in server.unread[1]], server.over) == ([bytes(150 * KIB)], [1])
    pair.client.send_request(stream, [frame_messages([b"late"])])
    pair.settle()
    assert len(server.unread[1]) == 1
