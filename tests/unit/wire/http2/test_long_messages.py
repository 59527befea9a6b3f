"""Who stands in for a connection while a long message arrives, and when it steps back."""

import asyncio

from pydanube.wire.http2.long_messages import BETWEEN_FRAMES_BYTES, LongMessages, Receiver
from tests.unit.wire.http2.test_server_connection import FakeTransport


class FakeReceiver(Receiver):
    """Wants so many bytes of a long message, in frames of a hundred."""

    def __init__(self, wanted):
        self.memory = memoryview(bytearray(wanted))
        self.filled_bytes = 0
        self.between = []
        self.events = []
        self.in_frame = False

    @property
    def is_within_long_message(self):
        return self.filled_bytes < len(self.memory)

    def room(self):
        if not (self.in_frame and self.is_within_long_message):
            return None
        return self.memory[self.filled_bytes : self.filled_bytes + 100]

    def data_received(self, data):
        if isinstance(data, memoryview):
            self.filled_bytes += len(data)
            self.in_frame = len(data) < 100
        else:
            self.between.append(data)
            self.in_frame = True

    def pause_writing(self):
        self.events.append("pause")

    def resume_writing(self):
        self.events.append("resume")

    def eof_received(self):
        self.events.append("eof")
        return True

    def connection_lost(self, exc):
        self.events.append(exc)


def put(protocol, data):
    """Do what an event loop does when it has read something."""
    buffer = protocol.get_buffer(65_536)
    size = min(len(buffer), len(data))
    buffer[:size] = data[:size]
    protocol.buffer_updated(size)
    return data[size:]


def test_bytes_go_where_they_belong_until_the_message_is_over():
    transport, receiver = FakeTransport(), FakeReceiver(150)
    long = LongMessages(receiver, transport)
    long.begin()
    assert transport.protocol is long
    assert put(long, b"header") == b""
    assert put(long, b"x" * 120) == b"x" * 20
    assert transport.protocol is long
    assert put(long, b"next") == b""
    assert put(long, b"y" * 80) == b"y" * 30
    assert bytes(receiver.memory) == b"x" * 100 + b"y" * 50
    assert receiver.between == [b"header", b"next"]
    assert transport.protocol is receiver


def test_between_frames_little_is_read():
    transport, receiver = FakeTransport(), FakeReceiver(150)
    long = LongMessages(receiver, transport)
    long.begin()
    assert len(long.get_buffer(1 << 20)) == BETWEEN_FRAMES_BYTES


def test_all_else_reaches_the_connection():
    receiver, loss = FakeReceiver(1), OSError("gone")
    long = LongMessages(receiver, FakeTransport())
    long.pause_writing()
    long.resume_writing()
    assert long.eof_received() is True
    long.connection_lost(loss)
    assert receiver.events == ["pause", "resume", "eof", loss]
    assert not isinstance(long, asyncio.Protocol)  # Event loops would ask it for nothing.
