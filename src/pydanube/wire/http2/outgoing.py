"""The sending half of a connection: frames in order, DATA only as far as the windows allow."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from pydanube.wire.http2.errors import ConnectionFault, ErrorCode, StreamFault
from pydanube.wire.http2.flow import grown
from pydanube.wire.http2.frames import DATA, END_STREAM, FRAME_HEADER, header_frames
from pydanube.wire.http2.header_blocks import FORGET_TABLE
from pydanube.wire.http2.settings import DEFAULT_WINDOW, PeerSettings
from pydanube.wire.http2.streams import Stream

DATA_FRAME_BYTES_MAX: Final = 256 * 1024
"""Larger frames would let one call keep the others waiting, even if the peer takes them."""

AnyStream = TypeVar("AnyStream", bound=Stream)
Buffer = bytes | memoryview


class Outgoing(Generic[AnyStream]):
    """Collects what must be written in `out`; the driver takes it from there.

    DATA of several streams takes turns, frame by frame. Bytes that have no window, or come while
    the transport is full (`hold`), wait in their stream's queue and count in `queued_bytes`, and
    their streams in `queued_streams`. `output_ready` is called when `out` has got its first bytes
    outside of `receive`.
    """

    def __init__(self, output_ready: Callable[[], None]) -> None:
        self.out: list[Buffer] = []
        self.peer = PeerSettings()
        self.streams: dict[int, AnyStream] = {}
        self.send_window = DEFAULT_WINDOW
        self.queued_bytes = 0
        self.queued_streams = 0
        self.held = False
        self._at_once_bytes_max = -1
        """Up to here a reply goes out without a queue, the windows permitting."""
        self._table_is_forgotten = False
        self._ready: dict[int, AnyStream] = {}
        """Streams with queued bytes and a window of their own, in the order of their turns."""
        self._output_ready = output_ready
        self._receiving = False

    def take_output(self) -> list[Buffer]:
        """Return what must be written, in order, and forget it."""
        out, self.out = self.out, []
        return out

    def hold(self) -> None:
        """Keep DATA back: the transport has enough."""
        self.held = True
        self._set_at_once_bytes_max()

    def release(self) -> None:
        """Let DATA flow again."""
        self.held = False
        self._set_at_once_bytes_max()
        self._pump()

    def _set_at_once_bytes_max(self) -> None:
        may = not self.held and self._table_is_forgotten
        self._at_once_bytes_max = self._data_frame_bytes_max() if may else -1

    def _data_frame_bytes_max(self) -> int:
        return min(self.peer.payload_bytes_max, DATA_FRAME_BYTES_MAX)

    def _write(self, data: bytes) -> None:
        if not self.out and not self._receiving:
            self._output_ready()
        self.out.append(data)

    def _write_block(self, stream_id: int, block: bytes, flags: int) -> None:
        if not self._table_is_forgotten:
            self._table_is_forgotten = True
            self._set_at_once_bytes_max()
            block = FORGET_TABLE + block
        self._write(header_frames(stream_id, block, flags, self.peer.payload_bytes_max))

    def _write_data(self, stream: AnyStream, pieces: Sequence[Buffer]) -> None:
        """Send the pieces, none of them empty, on a stream that goes on, now or when it can be."""
        if not pieces:
            return
        if stream.queue is None:
            stream.queue = deque()
            self.queued_streams += 1
        stream.queue.extend(pieces)
        added = sum(map(len, pieces))
        stream.queued_bytes += added
        self.queued_bytes += added
        if stream.send_window > 0:
            self._ready[stream.id] = stream
            self._pump()

    def _write_last_data(self, stream: AnyStream, pieces: Sequence[Buffer]) -> None:
        """Send the pieces, one at least and none of them empty, and end our side with them."""
        stream.local_closed = True
        stream.ending = b""
        self._write_data(stream, pieces)

    def _close_local(self, stream: AnyStream) -> None:
        """End our side without trailers, after what is queued."""
        stream.local_closed = True
        stream.ending = b""
        if stream.queue is None:
            self._write(FRAME_HEADER.pack(DATA, END_STREAM, stream.id))
            self._finish(stream)

    def _end(self, stream: AnyStream, trailers: bytes) -> None:
        """End our side with trailers, after what is queued."""
        stream.local_closed = True
        stream.ending = trailers
        if stream.queue is None:
            self._finish(stream)

    def _pump(self) -> None:
        """Send queued bytes, one frame of each stream in turn, until something stops it."""
        while self._ready and self.send_window > 0 and not self.held:
            stream_id, stream = next(iter(self._ready.items()))
            del self._ready[stream_id]
            self._write_one_frame(stream)
            if stream.queue and stream.send_window > 0:
                self._ready[stream_id] = stream

    def _write_one_frame(self, stream: AnyStream) -> None:
        queue = stream.queue
        assert queue, "a stream without bytes has no turn"
        room = min(self._data_frame_bytes_max(), self.send_window, stream.send_window)
        length = min(room, stream.queued_bytes)
        self.send_window -= length
        stream.send_window -= length
        stream.queued_bytes -= length
        self.queued_bytes -= length
        flags = END_STREAM if not stream.queued_bytes and stream.ending == b"" else 0
        self._write(FRAME_HEADER.pack(length << 8 | DATA, flags, stream.id))
        self._move(queue, length)
        if not queue:
            stream.queue = None
            self.queued_streams -= 1
            if stream.ending is None:
                self._drained(stream)
            else:
                self._finish(stream)

    def _move(self, queue: deque[Buffer], length: int) -> None:
        """Write the first `length` bytes of a queue that holds as many."""
        while length:
            piece = queue[0]
            if len(piece) <= length:
                queue.popleft()
            else:
                view = memoryview(piece)
                queue[0], piece = view[length:], view[:length]
            length -= len(piece)
            self.out.append(piece)

    def _finish(self, stream: AnyStream) -> None:
        if stream.ending:
            self._write_block(stream.id, stream.ending, END_STREAM)
        self._sent_end(stream)

    def _forget(self, stream: AnyStream) -> None:
        """Drop a stream and what it still had to send."""
        self.streams.pop(stream.id, None)
        if stream.queue is not None:
            self._ready.pop(stream.id, None)
            self.queued_bytes -= stream.queued_bytes
            self.queued_streams -= 1
            stream.queued_bytes = 0
            stream.queue = None

    def _forget_all(self) -> list[AnyStream]:
        """Drop all streams at once, thousands of them perhaps, and return them."""
        forgotten = list(self.streams.values())
        self.streams.clear()
        self._ready.clear()
        self.queued_bytes = self.queued_streams = 0
        for stream in forgotten:
            if stream.queue is not None:
                stream.queued_bytes = 0
                stream.queue = None
        return forgotten

    def _widen_connection(self, increment: int) -> None:
        window = grown(self.send_window, increment)
        if window is None:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is full")
        self.send_window = window
        self._pump()

    def _widen_stream(self, stream: AnyStream, increment: int) -> None:
        window = grown(stream.send_window, increment)
        if window is None:
            raise StreamFault(stream.id, ErrorCode.FLOW_CONTROL_ERROR, "its window is full")
        stream.send_window = window
        self._offer_turn(stream)
        self._pump()

    def _change_initial_window(self, change: int) -> None:
        """Move the window of every open stream, as a new INITIAL_WINDOW_SIZE asks."""
        for stream in self.streams.values():
            window = grown(stream.send_window, change)
            if window is None:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window is full")
            stream.send_window = window
            self._offer_turn(stream)
        self._pump()

    def _offer_turn(self, stream: AnyStream) -> None:
        if stream.queue is None or stream.send_window <= 0:
            self._ready.pop(stream.id, None)
        else:
            self._ready[stream.id] = stream

    def _drained(self, stream: AnyStream) -> None:
        """Everything given so far is sent, and the stream goes on."""

    def _sent_end(self, stream: AnyStream) -> None:
        """Our side of the stream has ended."""
