"""Attacks on the limits of an HTTP/2 server, for tests and benchmarks alike."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydanube.wire.http2.errors import ErrorCode
from pydanube.wire.http2.frames import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    PRIORITY,
    SETTINGS,
    frame,
    ping_frame,
    reset_frame,
    window_update_frame,
)
from pydanube.wire.http2.limits import MIB
from pydanube.wire.http2.settings import INITIAL_WINDOW_SIZE, settings_frame
from tests.support.http2_peers import HELLO, Frame, block, data, request_fields

FLOOD_FRAMES_MAX = 30_000
"""Far more than any limit allows."""
LISTEN_FRAMES = 100
LISTEN_SECONDS = 0.002
"""A polite flood pauses so often and so long, to hear the answer before the connection is reset."""
RECEIVE_BYTES = 4_096
TCP_CLOSE = 7
"""The state of a connection that is gone, as the kernel counts."""
CUT_PIECE_BYTES = 6_000


class Target:
    """What is attacked: a path whose calls are answered at once, and one that answers at length."""

    def __init__(
        self, path: str, long_path: str, long_request: bytes, long_reply_bytes: int
    ) -> None:
        self.path = path
        self._long_reply_bytes = long_reply_bytes
        self.block = block(request_fields(path))
        self._long_block = block(request_fields(long_path))
        self._long_message = b"\0" + len(long_request).to_bytes(4) + long_request

    def headers(self, number: int) -> bytes:
        """The head of the call of that number, which stays open."""
        return frame(HEADERS, END_HEADERS, 2 * number + 1, self.block)

    def call(self, number: int) -> bytes:
        return self.headers(number) + data(2 * number + 1, bytes(5), END_STREAM)

    def calls_for(self, reply_bytes: int) -> bytes:
        """As many calls as make the server answer with that much."""
        count = -(-reply_bytes // self._long_reply_bytes)
        return b"".join(
            frame(HEADERS, END_HEADERS, 2 * number + 1, self._long_block)
            + data(2 * number + 1, self._long_message, END_STREAM)
            for number in range(count)
        )


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One way to ask too much of a server, and how it ends."""

    limit: str
    """What it breaks, for the reader of a table."""
    opening: Callable[[Target], bytes]
    flood: Callable[[Target, int], bytes] | None = None
    """Follows the opening: the piece of that number, from 0."""
    pause_seconds: float = 0.0
    """Between two pieces of the flood."""
    reads: bool = True
    code: ErrorCode = ErrorCode.ENHANCE_YOUR_CALM
    reason: str
    limits: Mapping[str, float] = field(default_factory=dict)
    """Limits under which it is over soon."""
    at_once: int = 1
    """How many connections it takes."""


def _with_an_open_call(target: Target) -> bytes:
    return HELLO + target.headers(0)


def _reset_call(target: Target, number: int) -> bytes:
    return target.headers(number + 1) + reset_frame(2 * number + 3, ErrorCode.CANCEL)


def _faulty_call(target: Target, number: int) -> bytes:
    return target.headers(number + 1) + window_update_frame(2 * number + 3, 0)


def _cut_call(target: Target, number: int) -> bytes:
    piece = b"\0\0\x01\0\0" + bytes(CUT_PIECE_BYTES)
    return target.headers(number) + data(2 * number + 1, piece)


def _windowless(target: Target) -> bytes:
    return HELLO + settings_frame({INITIAL_WINDOW_SIZE: 0}) + target.calls_for(2 * MIB)


def _insatiable(target: Target) -> bytes:
    wide = settings_frame({INITIAL_WINDOW_SIZE: 2**31 - 1}) + window_update_frame(0, 2**30)
    return HELLO + wide + target.calls_for(8 * MIB)


_OVERDUE_REQUEST = "a request takes too long"
_LATE_HANDSHAKE = "the handshake takes too long"
_USELESS = "too many frames that change nothing"
_RESETS = "too many streams are reset"
_LONG_BLOCK = "a header block is too long"
_IMPATIENT_HANDSHAKE = {"handshake_seconds_max": 0.2}

FLOODS: Mapping[str, Attack] = {
    "pings": Attack(
        limit="PINGs",
        opening=_with_an_open_call,
        flood=lambda target, number: ping_frame(bytes(8), ack=False),
        reason="too many PINGs",
    ),
    "settings": Attack(
        limit="SETTINGS",
        opening=_with_an_open_call,
        flood=lambda target, number: frame(SETTINGS, 0, 0, b""),
        reason="too many SETTINGS",
    ),
    "empty data": Attack(
        limit="empty frames",
        opening=_with_an_open_call,
        flood=lambda target, number: data(1, b""),
        reason="too many empty frames",
    ),
    "priorities": Attack(
        limit="frames that change nothing",
        opening=_with_an_open_call,
        flood=lambda target, number: frame(PRIORITY, 0, 1, bytes(4) + b"\x01"),
        reason=_USELESS,
    ),
    "unknown frames": Attack(
        limit="frames that change nothing",
        opening=_with_an_open_call,
        flood=lambda target, number: frame(0x42, 0, 0, b""),
        reason=_USELESS,
    ),
    "rapid resets": Attack(
        limit="resets",
        opening=_with_an_open_call,
        flood=_reset_call,
        reason=_RESETS,
    ),
    "provoked resets": Attack(
        limit="resets",
        opening=_with_an_open_call,
        flood=_faulty_call,
        reason=_RESETS,
    ),
    "empty continuations": Attack(
        limit="CONTINUATION frames",
        opening=_with_an_open_call,
        flood=lambda target, number: frame(CONTINUATION if number else HEADERS, 0, 3, b""),
        reason=_LONG_BLOCK,
    ),
    "calls beyond the limit": Attack(
        limit="concurrent streams",
        opening=_with_an_open_call,
        flood=lambda target, number: target.headers(number + 1),
        reason="too many streams are refused",
        limits={"streams_max": 100},
    ),
    "requests that never end": Attack(
        limit="bytes of unfinished requests",
        opening=lambda target: HELLO,
        flood=_cut_call,
        reason="too many streams are refused",
        limits={"request_bytes_buffered_max": 100_000},
    ),
}

LARGE: Mapping[str, Attack] = {
    "long block": Attack(
        limit="bytes of a header block",
        opening=lambda target: (
            HELLO + frame(HEADERS, 0, 1, bytes(16_000)) + frame(CONTINUATION, 0, 1, bytes(1_000))
        ),
        reason=_LONG_BLOCK,
    ),
    "long list": Attack(
        limit="header list size",
        opening=lambda target: (
            HELLO
            + frame(
                HEADERS,
                END_HEADERS,
                1,
                target.block + b"\x40\x01a\x7f\x80\x01" + b"x" * 255 + b"\xbe" * 500,
            )
        ),
        reason="the headers are too large",
    ),
    "long list, Huffman": Attack(
        limit="header list size",
        # 0 has five bits: this unpacks to 25,000 of them.
        opening=lambda target: (
            HELLO
            + frame(
                HEADERS, END_HEADERS, 1, target.block + b"\x40\x01a\xff\x8c\x7a" + bytes(15_755)
            )
        ),
        reason="the headers are too large",
    ),
    "large handshake": Attack(
        limit="bytes before the handshake",
        opening=lambda target: PREFACE + frame(SETTINGS, 0, 0, bytes(9_000))[:100],
        code=ErrorCode.FRAME_SIZE_ERROR,
        reason="a frame of 9000 bytes is too long",
    ),
}

SLOW: Mapping[str, Attack] = {
    "says nothing": Attack(
        limit="handshake time",
        opening=lambda target: b"",
        reason=_LATE_HANDSHAKE,
        limits=_IMPATIENT_HANDSHAKE,
    ),
    "half a preface": Attack(
        limit="handshake time",
        opening=lambda target: PREFACE[:10],
        reason=_LATE_HANDSHAKE,
        limits=_IMPATIENT_HANDSHAKE,
    ),
    "half a handshake": Attack(
        limit="handshake time",
        opening=lambda target: PREFACE + HELLO[-9:-4],
        reason=_LATE_HANDSHAKE,
        limits=_IMPATIENT_HANDSHAKE,
    ),
    "asks for nothing": Attack(
        limit="time to the first request",
        opening=lambda target: HELLO,
        code=ErrorCode.NO_ERROR,
        reason="nothing was asked for",
        limits={"first_request_seconds_max": 0.2},
    ),
    "half a first request": Attack(
        limit="time to the first request",
        opening=lambda target: HELLO + target.headers(0) + data(1, b"\0\0"),
        reason=_OVERDUE_REQUEST,
        limits={"first_request_seconds_max": 0.2},
    ),
    "half a later request": Attack(
        limit="time of a request",
        opening=lambda target: HELLO + target.call(0) + target.headers(1),
        reason=_OVERDUE_REQUEST,
        limits={"request_seconds_max": 0.2},
    ),
    "a request by the byte": Attack(
        limit="time of a request (slow writer)",
        opening=lambda target: HELLO + target.call(0) + target.headers(1) + data(3, b"\0\0\x01\0"),
        flood=lambda target, number: data(3, b"x"),
        pause_seconds=0.01,
        reason=_OVERDUE_REQUEST,
        limits={"request_seconds_max": 0.2},
    ),
    "answers no ping": Attack(
        limit="idle time",
        opening=lambda target: HELLO + target.call(0),
        code=ErrorCode.NO_ERROR,
        reason="the peer does not answer",
        limits={"idle_seconds_max": 0.2, "ping_seconds_max": 0.2},
    ),
    "opens no window": Attack(
        limit="unread replies (slow reader)",
        opening=_windowless,
        reason="replies are not read",
        limits={"outgoing_seconds_max": 0.3, "outgoing_bytes_max": 100_000},
    ),
    "reads nothing": Attack(
        limit="unread replies (slow reader)",
        opening=_insatiable,
        reads=False,
        reason="replies are not read",
        limits={"outgoing_seconds_max": 0.3, "outgoing_bytes_max": 100_000},
    ),
}

CROWDS: Mapping[str, Attack] = {
    "a crowd": Attack(
        limit="connections of one address",
        opening=lambda target: b"",
        reason="too many connections",
        limits={"connections_per_address_max": 2},
        at_once=40,
    ),
}

ATTACKS: Mapping[str, Attack] = {**FLOODS, **LARGE, **SLOW, **CROWDS}


class Attacker:
    """A bare connection that reads only what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.is_cut_off = False
        self.reason = ""

    @classmethod
    async def connect(cls, port: int, source: str = "127.0.0.1", *, reads: bool) -> "Attacker":
        """Connect from that address of this machine; who does not read has little room, too."""
        connection = socket.socket()
        try:
            connection.setblocking(False)
            if not reads:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            connection.bind((source, 0))
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
            connected = await asyncio.open_connection(sock=connection)
        except BaseException:
            connection.close()
            raise
        if not reads:
            connected[1].transport.pause_reading()
        return cls(*connected)

    def send(self, *pieces: bytes) -> None:
        self._writer.write(b"".join(pieces))

    async def flood(self, attack: Attack, target: Target) -> None:
        """Send until the server has had enough, or far more than any limit allows."""
        assert attack.flood is not None, "this attack is no flood"
        for number in range(FLOOD_FRAMES_MAX):
            if self.is_cut_off or self._writer.is_closing():
                return
            self._writer.write(attack.flood(target, number))
            if attack.pause_seconds or number % LISTEN_FRAMES == 0:
                try:
                    await self._writer.drain()
                except ConnectionError:
                    return
                await asyncio.sleep(attack.pause_seconds or LISTEN_SECONDS)

    async def farewell(self) -> ErrorCode:
        """Read to the end and return the code of GOAWAY."""
        while (found := await self.next_frame()).kind != GOAWAY:
            pass
        self.reason = found.payload[8:].decode()
        await self.ended()
        return ErrorCode(int.from_bytes(found.payload[4:8]))

    async def next_frame(self) -> Frame:
        head = await self._reader.readexactly(9)
        payload = await self._reader.readexactly(int.from_bytes(head[:3]))
        return Frame(head[3], head[4], int.from_bytes(head[5:]), payload)

    def read_on(self) -> None:
        """Begin to read after all."""
        self._writer.transport.resume_reading()

    async def ended(self) -> None:
        """Read until the server has closed."""
        try:
            while await self._reader.read(65_536):
                pass
        except ConnectionError:
            pass
        self.is_cut_off = True

    async def dropped(self) -> None:
        """Wait until the server has reset the connection, without reading."""
        connection = self._writer.get_extra_info("socket")
        while connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != TCP_CLOSE:
            await asyncio.sleep(0.02)  # Nobody is told about a connection that he does not read.
        self.is_cut_off = True

    def close(self) -> None:
        self._writer.close()
