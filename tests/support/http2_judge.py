"""Random HTTP/2 conversations, carried out by our codecs and judged by h2.

A conversation is a list of frames, some of them spoilt. Both ends are given one frame at a time
until one of them objects: then both must. Where they are known to differ, and why, is listed in
`DIFFERENCES`. Whatever happens, our codec raises nothing and holds no more than its limits allow.
"""

import contextlib
import random
from collections.abc import Iterator
from typing import NamedTuple

import h2.config
import h2.connection
import h2.errors
import h2.exceptions
from hpack import Encoder

from pydanube.wire.http2.client_codec import ClientCodec
from pydanube.wire.http2.errors import ErrorCode
from pydanube.wire.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from pydanube.wire.http2.grpc_framing import OK_BLOCK, RESPONSE_BLOCK
from pydanube.wire.http2.limits import Http2Limits
from tests.support.grpc_messages import frame_messages
from tests.support.http2_peers import Recording, RecordingCall, request_fields, split_frames

LIMITS = Http2Limits(
    payload_bytes_max=16_384,
    stream_window_bytes=65_535,
    connection_window_bytes=65_535,
    message_bytes_max=100_000,
    request_bytes_buffered_max=200_000,
    large_request_bytes_max=200_000,
    streams_max=100,
)
BUFFERED_BYTES_MAX = (
    9 + LIMITS.payload_bytes_max + LIMITS.header_block_bytes_max + LIMITS.request_bytes_buffered_max
)

STREAM_IDS = (0, 1, 1, 1, 2, 3, 3, 3, 5, 5, 7, 9, 2**31 - 1)
FLAGS = (0, END_STREAM, END_HEADERS, END_STREAM | END_HEADERS, PADDED, HAS_PRIORITY, 0xFF)
SETTINGS_ENTRIES = (
    b"\0\x01\0\0\0\0",
    b"\0\x01\0\0\x10\0",
    b"\0\x02\0\0\0\0",
    b"\0\x03\0\0\0\x05",
    b"\0\x04\0\0\0\x0a",
    b"\0\x04\0\1\0\0",
    b"\0\x05\0\0\x40\0",
    b"\xab\xcd\0\0\0\0",
)
HUGE_WINDOW = (2**31 - 1).to_bytes(4)


class Outcome(NamedTuple):
    """What became of one conversation."""

    frames: int
    ours: str | None
    theirs: str | None
    difference: str | None
    """Why the two may differ here; None when they agree."""


class Conversation:
    """Makes frames that mostly make sense."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._encoder = Encoder()
        self._next_id = 1
        self._open: list[int] = []

    def frames(self) -> list[bytes]:
        chance = self._random.random
        made = [PREFACE + self._settings(), *self._request()]
        for _ in range(self._random.randrange(1, 25)):
            step = self._random.choices(
                [self._request, self._data, self._control, self._any_frame],
                weights=[60, 20, 30, 1],
            )[0]
            made += step()
        if chance() < 0.3:
            self._spoil(made)
        return made

    def _settings(self) -> bytes:
        entries = b"".join(
            self._random.choice(SETTINGS_ENTRIES) for _ in range(self._random.randrange(4))
        )
        return frame(SETTINGS, 0, 0, entries)

    def _request(self) -> list[bytes]:
        stream_id = self._next_id
        self._next_id += self._random.choice([2, 2, 2, 2, 4])
        ends = self._random.choice([0, 0, 0, END_STREAM])
        frames = self._headers(stream_id, self._fields(), ends)
        if ends:
            return frames
        if self._random.random() < 0.6:
            # Now and then one that fills a frame, which is taken piece by piece.
            length = self._random.choices([self._random.randrange(60), 16_379], [30, 1])[0]
            message = frame_messages([self._random.randbytes(length)])
            return frames + self._message(stream_id, message)
        self._open.append(stream_id)
        return frames

    def _fields(self) -> list[tuple[bytes, bytes]]:
        fields = request_fields(self._random.choice(["/test/echo", "/test/echo", "/no/thing"]))
        fields.append((b"x-tag", b"%d" % self._random.randrange(4)))
        if self._random.random() < 0.03:
            fields.insert(
                self._random.randrange(len(fields) + 1),
                self._random.choice(
                    [
                        (b":path", b"/again"),
                        (b":status", b"200"),
                        (b"Upper", b"x"),
                        (b"connection", b"close"),
                        (b"te", b"gzip"),
                        (b"x", b"a\0b"),
                        (b"x", b" y"),
                        (b"", b"y"),
                        (b"content-length", b"5"),
                        (b"content-length", b"x"),
                    ]
                ),
            )
        if self._random.random() < 0.01:
            del fields[self._random.randrange(3)]
        return fields

    def _headers(
        self, stream_id: int, fields: list[tuple[bytes, bytes]], flags: int
    ) -> list[bytes]:
        block = self._encoder.encode(fields, huffman=self._random.random() < 0.5)
        start = b""
        if self._random.random() < 0.2:
            flags |= HAS_PRIORITY
            start = self._random.choice([0] * 9 + [stream_id]).to_bytes(4) + b"\x10"
        cuts = sorted(self._random.randrange(len(block) + 1) for _ in range(self._parts()))
        pieces = [block[a:b] for a, b in zip([0, *cuts], [*cuts, len(block)], strict=True)]
        pieces[0] = start + pieces[0]
        if self._random.random() < 0.2:
            flags |= PADDED
            padding = self._random.randrange(4)
            pieces[0] = bytes([padding]) + pieces[0] + bytes(padding)
        last = len(pieces) - 1
        return [
            frame(
                CONTINUATION if number else HEADERS,
                (0 if number else flags) | (END_HEADERS if number == last else 0),
                stream_id,
                piece,
            )
            for number, piece in enumerate(pieces)
        ]

    def _parts(self) -> int:
        return self._random.choice([0, 0, 0, 1, 2])

    def _message(self, stream_id: int, message: bytes) -> list[bytes]:
        cut = self._random.randrange(len(message) + 1)
        if self._random.random() < 0.7:
            return [frame(DATA, END_STREAM, stream_id, message)]
        return [
            frame(DATA, 0, stream_id, message[:cut]),
            frame(DATA, self._random.choice([0, END_STREAM]), stream_id, message[cut:]),
        ]

    def _data(self) -> list[bytes]:
        stream_id = self._stream_id()
        payload = self._random.choice(
            [b"", b"\0", b"\0\0\0\0\x05", self._random.randbytes(self._random.randrange(40))]
        )
        flags = self._random.choice([0, 0, END_STREAM])
        if flags and stream_id in self._open:
            self._open.remove(stream_id)
        if self._random.random() < 0.2:
            flags |= PADDED
            padding = self._random.choice([0, 1, 5])
            payload = bytes([padding]) + payload + bytes(padding)
        return [frame(DATA, flags, stream_id, payload)]

    def _stream_id(self) -> int:
        dice = self._random.random()
        if dice < 0.95 and self._open:
            return self._random.choice(self._open)
        if dice < 0.99 and self._next_id > 1:
            return self._random.randrange(1, self._next_id, 2)
        return self._random.choice(STREAM_IDS)

    def _control(self) -> list[bytes]:
        stream_id = self._stream_id()
        window = self._random.choices(
            [b"\0\0\0\x01", b"\0\1\0\0", bytes(4), HUGE_WINDOW], [20, 20, 1, 1]
        )
        return [
            self._random.choice(
                [
                    self._settings(),
                    frame(SETTINGS, 1, 0, b""),
                    frame(PING, self._random.choice([0, 1]), 0, self._random.randbytes(8)),
                    frame(WINDOW_UPDATE, 0, self._random.choice([0, stream_id]), window[0]),
                    frame(RST_STREAM, 0, stream_id, self._random.randbytes(4)),
                    frame(PRIORITY, 0, stream_id, self._random.randrange(40).to_bytes(4) + b"\x01"),
                    frame(0x42, 0xFF, stream_id, b"unknown"),
                ]
            )
        ]

    def _any_frame(self) -> list[bytes]:
        kind = self._random.choice(
            [DATA, HEADERS, SETTINGS, PUSH_PROMISE, PING, GOAWAY, *range(10)]
        )
        length = self._random.choice([0, 4, 5, 6, 8, 20])
        flags = self._random.choice(FLAGS)
        return [frame(kind, flags, self._stream_id(), self._random.randbytes(length))]

    def _spoil(self, frames: list[bytes]) -> None:
        """Flip, drop or repeat something."""
        position = self._random.randrange(1, len(frames))
        spoilt = bytearray(frames[position])
        match self._random.randrange(3):
            case 0:
                # Not the length: the judge can only compare frames that end where they say.
                spoilt[self._random.randrange(3, len(spoilt))] ^= 1 << self._random.randrange(8)
                frames[position] = bytes(spoilt)
            case 1:
                frames.insert(position, frames[position])
            case _:
                del frames[position]


class Judge:
    """A server of h2 that answers as ours does, and objects where it must."""

    def __init__(self) -> None:
        config = h2.config.H2Configuration(client_side=False, header_encoding=None)
        self._connection = h2.connection.H2Connection(config)
        self._connection.initiate_connection()
        self._connection.data_to_send()

    def objects_to(self, data: bytes) -> str | None:
        """Return what it says against the bytes."""
        try:
            self._connection.receive_data(data)
        except h2.exceptions.ProtocolError as fault:
            return f"connection: {type(fault).__name__}: {fault}"
        for sent in split_frames(self._connection.data_to_send()):
            if sent.kind == RST_STREAM:
                return f"stream {sent.stream_id}: {h2.errors.ErrorCodes(sent.payload[3]).name}"
        return None

    def answers_as(self, frames: list) -> None:
        """Do what our codec did, so that both are in the same state."""
        for sent in frames:
            if sent.kind == HEADERS:
                self._try(self._connection.send_headers, sent.stream_id, [(b":status", b"200")])
                if sent.flags & END_STREAM:
                    self._try(self._connection.end_stream, sent.stream_id)
            elif sent.kind == RST_STREAM:
                self._try(self._connection.reset_stream, sent.stream_id)
            elif sent.kind == WINDOW_UPDATE:
                increment = int.from_bytes(sent.payload)
                self._try(
                    self._connection.increment_flow_control_window,
                    increment,
                    sent.stream_id or None,
                )
        self._connection.data_to_send()

    @staticmethod
    def _try(action, *arguments) -> None:
        # It may hold the stream for closed already.
        with contextlib.suppress(h2.exceptions.ProtocolError):
            action(*arguments)


def our_objection(frames: list) -> str | None:
    """Return what our codec said against the bytes."""
    for sent in frames:
        if sent.kind == GOAWAY:
            code, text = sent.payload[4:8], sent.payload[8:].decode()
            return f"connection: {ErrorCode(int.from_bytes(code)).name}: {text}"
        # NO_ERROR ends a request that was answered early.
        if sent.kind == RST_STREAM and any(sent.payload):
            return f"stream {sent.stream_id}: {ErrorCode(int.from_bytes(sent.payload)).name}"
    return None


def _is_over(codec, stream_id: int) -> bool:
    """Tell a stream that has begun and ended."""
    return not codec._is_idle(stream_id) and stream_id not in codec.streams


def _first(wire: bytes):
    return split_frames(wire.removeprefix(PREFACE))[0]


def is_late(found, codec, ours: str | None, theirs: str | None) -> bool:
    """Tell a frame for a stream that was reset: h2 resets it once more, we put up with it."""
    return (
        ours is None
        and theirs is not None
        and "STREAM_CLOSED" in theirs
        and found.stream_id in codec._reset_here
    )


DIFFERENCES = {
    "h2 waits for the end of a pushed block; we object to its beginning": (
        lambda found, codec, ours, theirs: theirs is None and found.kind == PUSH_PROMISE
    ),
    "h2 looks at a block when it is whole; we know its stream from the beginning": (
        lambda found, codec, ours, theirs: (
            theirs is None and found.kind == HEADERS and not found.flags & END_HEADERS
        )
    ),
    "h2 objects to padding that leaves no content; RFC 9113 only to more than that": (
        lambda found, codec, ours, theirs: ours is None and "invalid padding" in theirs
    ),
    "h2 lets padding reach into the priority of HEADERS; RFC 9113 section 6.2 forbids it": (
        lambda found, codec, ours, theirs: (
            theirs is None and "HEADERS is cut" in ours and bool(found.flags & PADDED)
        )
    ),
    "h2 objects to WINDOW_UPDATE by nothing for a stream that is over; to us it is late": (
        lambda found, codec, ours, theirs: (
            ours is None and found.kind == WINDOW_UPDATE and _is_over(codec, found.stream_id)
        )
    ),
    "h2 takes the reserved bit of WINDOW_UPDATE for a part of the number": (
        lambda found, codec, ours, theirs: (
            ours is None and found.kind == WINDOW_UPDATE and bool(found.payload[0] & 0x80)
        )
    ),
    "h2 takes RST_STREAM for a stream that has not begun; RFC 9113 section 6.4 forbids it": (
        lambda found, codec, ours, theirs: theirs is None and found.kind == RST_STREAM
    ),
    "h2 asks for :authority or host; our peers may do without": (
        lambda found, codec, ours, theirs: ours is None and ":authority or Host" in theirs
    ),
    "h2 sees only the last value of a setting in a frame; RFC 9113 section 6.5.3 takes each": (
        lambda found, codec, ours, theirs: (
            theirs is None and found.kind == SETTINGS and _repeats_a_setting(found.payload)
        )
    ),
    "h2 forgets content-length when there is no DATA": (
        lambda found, codec, ours, theirs: (
            theirs is None and found.kind in (HEADERS, CONTINUATION) and "PROTOCOL_ERROR" in ours
        )
    ),
}


def _repeats_a_setting(payload: bytes) -> bool:
    names = [payload[start : start + 2] for start in range(0, len(payload), 6)]
    return len(set(names)) < len(names)


def explained(found, codec, ours: str | None, theirs: str | None) -> str:
    """Return why the two differ, or what they said."""
    for reason, applies in DIFFERENCES.items():
        if applies(found, codec, ours, theirs):
            return reason
    return f"unexplained: we say {ours}, h2 says {theirs}"


def run(seed: int) -> Outcome:
    """Carry one conversation out."""
    ours, theirs = Recording(LIMITS, greeted=False), Judge()
    ours.written()
    frames = Conversation(seed).frames()
    chance = random.Random(f"cuts {seed}")
    for number, wire in enumerate(frames):
        cut = chance.randrange(len(wire))
        ours.receive(wire[:cut])
        ours.receive(wire[cut:])
        assert ours.codec.buffered_bytes <= BUFFERED_BYTES_MAX
        written = ours.written()
        our_view, their_view = our_objection(written), theirs.objects_to(wire)
        if is_late(_first(wire), ours.codec, our_view, their_view):
            continue
        if our_view is not None or their_view is not None:
            difference = None
            if (our_view is None) != (their_view is None):
                found = _first(wire)
                difference = explained(found, ours.codec, our_view, their_view)
            return Outcome(number + 1, our_view, their_view, difference)
        if _first(wire).kind == GOAWAY:
            # After it h2 takes nothing more; RFC 9113 section 6.8 lets the streams go on.
            return Outcome(number + 1, None, None, None)
        theirs.answers_as(written)
    return Outcome(len(frames), None, None, None)


def run_noise(seed: int) -> int:
    """Feed a server anything at all, cut anywhere; return how many requests it took for whole."""
    chance = random.Random(f"noise {seed}")
    server = Recording(
        LIMITS, greeted=False, direct=lambda message, call, reply: reply.send(message)
    )
    for piece in _noise(chance, b"".join(Conversation(seed).frames())):
        server.receive(piece)
        assert server.codec.buffered_bytes <= BUFFERED_BYTES_MAX
        server.written()
    server.codec.connection_lost()
    assert server.codec.streams == {}
    assert server.codec.queued_bytes == 0
    return len(server.messages)


def run_client_noise(seed: int) -> int:
    """Feed a client anything at all; return how many of its calls were told their end."""
    chance = random.Random(f"client noise {seed}")
    client = ClientCodec(LIMITS, 0, lambda: None)
    calls = [RecordingCall() for _ in range(4)]
    client.receive(frame(SETTINGS, 0, 0, b""), 0)
    for call in calls:
        client.open(b"\x83", [frame_messages([b"hello"])], call)
    for piece in _noise(chance, b"".join(_replies(chance))):
        client.receive(piece, 0)
        split_frames(b"".join(client.take_output()).removeprefix(PREFACE))
    client.connection_lost()
    assert client.streams == {}
    assert all(call.ending is not None for call in calls)
    return sum(call.is_ok for call in calls)


def _replies(chance: random.Random) -> list[bytes]:
    frames = []
    for stream_id in (1, 3, 5, 7):
        frames.append(frame(HEADERS, END_HEADERS, stream_id, RESPONSE_BLOCK))
        for _ in range(chance.randrange(4)):
            message = frame_messages([chance.randbytes(chance.randrange(30))])
            frames.append(frame(DATA, 0, stream_id, message))
        frames.append(frame(HEADERS, END_HEADERS | END_STREAM, stream_id, OK_BLOCK))
        frames.append(
            frame(chance.randrange(11), 0, chance.choice(STREAM_IDS), chance.randbytes(8))
        )
    chance.shuffle(frames)
    return frames


def _noise(chance: random.Random, wire: bytes) -> Iterator[bytes]:
    """Yield `wire` in pieces of any size, spoilt in a few places or not at all."""
    spoilt = bytearray(wire)
    for _ in range(chance.choice([0, 0, 1, 1, 2, 10])):
        place = chance.randrange(len(spoilt))
        match chance.randrange(3):
            case 0:
                spoilt[place] ^= 1 << chance.randrange(8)
            case 1:
                del spoilt[place : place + chance.randrange(20)]
                spoilt += b"\0"
            case _:
                spoilt[place:place] = chance.randbytes(chance.randrange(20))
    longest = chance.choice([1, 10, 100, 10_000])
    position = 0
    while position < len(spoilt):
        length = chance.randrange(1, longest + 1)
        yield bytes(spoilt[position : position + length])
        position += length
