"""What both ends of an HTTP/2 connection need in tests: frames, a recording server, a fake wire."""

from typing import NamedTuple

from hpack import Decoder, Encoder

from pydanube.wire.calls import HandlerTable, StatusCode
from pydanube.wire.http2.client_codec import ClientCodec
from pydanube.wire.http2.errors import ErrorCode
from pydanube.wire.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    frame,
)
from pydanube.wire.http2.limits import Http2Limits
from pydanube.wire.http2.server_codec import ServerCodec
from pydanube.wire.http2.server_heads import Peer
from tests.support.grpc_messages import frame_messages

HELLO = PREFACE + frame(SETTINGS, 0, 0, b"")
ECHO = "/test/echo"


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes


def split_frames(data):
    """Return the frames of `data`, which must be whole."""
    frames, position = [], 0
    while position < len(data):
        length_and_kind, flags, stream_id = FRAME_HEADER.unpack_from(data, position)
        end = position + 9 + (length_and_kind >> 8)
        assert end <= len(data), "a frame is cut"
        payload = data[position + 9 : end]
        frames.append(Frame(length_and_kind & 0xFF, flags, stream_id & 0x7FFF_FFFF, payload))
        position = end
    return frames


def request_fields(path=ECHO, **more):
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"test"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
    return fields + [(name.replace("_", "-").encode(), value) for name, value in more.items()]


def block(fields=None):
    """Encode without the dynamic table, so that blocks do not depend on each other."""
    return Encoder().encode([(*field, True) for field in fields or request_fields()])


def headers(stream_id, fields=None, flags=0):
    return frame(HEADERS, END_HEADERS | flags, stream_id, block(fields))


def data(stream_id, payload, flags=0):
    return frame(DATA, flags, stream_id, payload)


def request(stream_id, message=b"hello", fields=None):
    return headers(stream_id, fields) + data(stream_id, frame_messages([message]), END_STREAM)


class Recording:
    """A server codec, and everything it told its application."""

    def __init__(self, limits=None, *, greeted=True, direct=None, unary=None):
        table = HandlerTable()
        if unary is not None:
            table.add_unary(ECHO, unary)
        else:
            table.add_direct(ECHO, direct or (lambda message, call, reply: None))
        self.arrived = []
        self.gone = []
        self.drained = []
        self.relieved = 0
        self.wakes = 0
        self.now_ms = 1_000
        self.codec = ServerCodec(
            limits or Http2Limits(), table, Peer("ipv4:test:1"), self, self.now_ms
        )
        if greeted:
            self.receive(HELLO)
            self.written()

    def request_arrived(self, stream, message):
        self.arrived.append((stream, message))
        if stream.head.direct is not None:
            stream.head.direct(message, stream.head.call, stream)

    def caller_gone(self, stream, *, reset=False):
        self.gone.append(stream.id)

    def stream_drained(self, stream):
        self.drained.append(stream.id)

    def replies_read(self):
        self.relieved += 1

    def output_ready(self):
        self.wakes += 1

    def receive(self, *pieces):
        self.codec.receive(b"".join(pieces), self.now_ms)

    def pass_seconds(self, seconds):
        self.now_ms += int(seconds * 1000)
        self.codec.tick(self.now_ms)

    def written(self):
        return split_frames(b"".join(self.codec.take_output()))

    @property
    def messages(self):
        return [message for _, message in self.arrived]


def verdict(frames):
    """Return how the peer was judged: the codes of GOAWAY, else of RST_STREAM, else None."""
    for kind, code_at in ((GOAWAY, 4), (RST_STREAM, 0)):
        for found in frames:
            if found.kind == kind:
                return kind, ErrorCode(int.from_bytes(found.payload[code_at : code_at + 4]))
    return None


class RecordingCall:
    """Events of a client's call."""

    def __init__(self):
        self.replies = []
        self.ending = None
        self.repeatable = None

    def reply_arrived(self, message):
        assert self.ending is None, "a reply after the end"
        self.replies.append(message)

    def call_ended(self, code, text, *, repeatable):
        assert self.ending is None, "a call ends once"
        self.ending, self.repeatable = (code, text), repeatable

    @property
    def is_ok(self):
        return self.ending == (StatusCode.OK, "")


class Pair:
    """A client and a server joined by a wire that delivers in pieces of a chosen size.

    `in_place`: what belongs to a long message is put there, as far as the server says where.
    """

    def __init__(self, *, server=None, piece_bytes=1 << 30, limits=None, in_place=False):
        self.server = server or Recording(greeted=False)
        self.client = ClientCodec(limits or Http2Limits(), 1_000, lambda: None)
        self.piece_bytes = piece_bytes
        self.in_place = in_place
        self.placed_bytes = 0
        self.settle()

    def settle(self):
        """Carry bytes to and fro until both ends are silent."""
        while True:
            to_server = b"".join(self.client.take_output())
            to_client = b"".join(self.server.codec.take_output())
            if not to_server and not to_client:
                return
            self._carry(to_server, self.server.codec)
            self._carry(to_client, self.client)

    def _carry(self, data, target):
        while data:
            piece = data[: self.piece_bytes]
            room = target.room() if self.in_place else None
            if room is None:
                target.receive(piece, 1_000)
            else:
                piece = piece[: len(room)]
                room[: len(piece)] = piece
                target.receive(room[: len(piece)], 1_000)
                self.placed_bytes += len(piece)
            data = data[len(piece) :]


def decoded(frames):
    """Return the fields of each header block among a server's frames, in order."""
    decoder = Decoder()
    return [
        dict(decoder.decode(found.payload, raw=True)) for found in frames if found.kind == HEADERS
    ]
