"""The receiving half of a connection: bytes become whole frames and header blocks, or faults.

No I/O happens here: `receive` takes bytes and the time, and what must be written collects in `out`.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Final, TypeVar

from pydanube.wire.http2.errors import ConnectionFault, ErrorCode, StreamFault
from pydanube.wire.http2.frames import (
    ACK,
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    HAS_PRIORITY,
    HEADER_BYTES,
    PADDED,
    PREFACE,
    SETTINGS,
    STREAM_ID_MAX,
    UINT32,
    CutFrame,
    goaway_frame,
    reset_frame,
    unpadded,
)
from pydanube.wire.http2.limits import HANDSHAKE_BYTES_MAX, KIB, Allowance, Http2Limits
from pydanube.wire.http2.outgoing import Outgoing
from pydanube.wire.http2.streams import Stream

AnyStream = TypeVar("AnyStream", bound=Stream)
FrameHandler = Callable[[int, int, bytes, int, int], None]
"""Takes flags, stream id, the bytes read, and where in them the payload starts and ends."""

RESETS_REMEMBERED_MAX: Final = 4_096
"""Streams we have reset, whose late frames are no fault of the peer."""

STEP_BYTES: Final = 8 * KIB
"""Frames that begin within so much of a read are carried out at a stretch."""
STEP_FAVOURS: Final = 32
"""Fewer of them, if so many draw on an allowance: those are cheap to send."""


class Incoming(Outgoing[AnyStream]):
    """Reads frames, and decides what a fault costs.

    Whatever the bytes, `receive` raises nothing: a fault of the peer ends in RST_STREAM, or in
    GOAWAY and `finished`, after which the driver writes `out` and closes the transport. No more
    than one frame and one header block are held, and before the peer's SETTINGS 8 KiB at most.

    A driver with other connections to serve says `receive_step` instead, and `next_step` while
    there is something `unread`: no step takes long, whatever the peer has sent.
    """

    def __init__(
        self, limits: Http2Limits, now_ms: int, output_ready: Callable[[], None], preface: bytes
    ) -> None:
        super().__init__(output_ready)
        self.limits = limits
        self.finished = False
        """Nothing more is read; what is in `out` is the last word."""
        self.fault: ConnectionFault | None = None
        """Why we gave the connection up."""
        self.settings_seen = False
        self.heard_ms = self._now_ms = now_ms
        self._data = b""
        """What is being read, and from where on it is left for the next step."""
        self._unread_from: int | None = None
        self._step_is_over = False
        self.gives_way = False
        """The last step began so much that others should come next."""
        self.imposes = False
        """The last step was full of what costs us more than the peer: it should have a pause."""
        self.stalls = False
        """The last step began a call of a peer that does not read: the next one is of no use."""
        self._favours = 0
        self._preface = preface
        self._cut = CutFrame(HANDSHAKE_BYTES_MAX - len(PREFACE) - HEADER_BYTES)
        self._is_cut = False
        self._data_left = 0
        """What is missing of a DATA frame whose beginning has been carried out already."""
        self._reset_here: dict[int, int] = {}
        """Streams we have reset, and what their peers may have sent before they knew."""
        self._block_stream_id = 0
        self._block_flags = 0
        self._block = bytearray()
        self._block_frames = 0
        self._depends_on_itself = False
        self._resets = Allowance(limits.resets_burst, limits.resets_per_second)
        self._usual_handlers: dict[int, FrameHandler] = {}
        self._handlers: dict[int, FrameHandler] = {SETTINGS: self._on_first_settings}
        self._otherwise: FrameHandler = self._on_anything_before_settings

    @property
    def unread(self) -> bool:
        """Tell whether the next step is due."""
        return self._unread_from is not None

    def receive(self, data: bytes, now_ms: int) -> None:
        """Carry out everything that `data` completes; `now_ms` never goes backwards."""
        self.receive_step(data, now_ms)
        while self._unread_from is not None:
            self.next_step(now_ms)

    def receive_step(self, data: bytes, now_ms: int) -> None:
        """Begin to carry out what `data` completes, or keep it while something is unread."""
        self.heard_ms = now_ms
        if self._unread_from is not None:
            self._data += data
        elif not self.finished:
            self._data = data
            self._take_step(now_ms, self._begin)

    def next_step(self, now_ms: int) -> None:
        """Go on with what is unread."""
        self._take_step(now_ms, self._go_on)

    def _take_step(self, now_ms: int, step: Callable[[], None]) -> None:
        self._now_ms = now_ms
        self._receiving = True
        self._step_is_over = self.gives_way = self.imposes = self.stalls = False
        try:
            step()
        except ConnectionFault as fault:
            self.fail(fault)
        finally:
            self._receiving = False
            if self._unread_from is None:
                self._data = b""

    def _begin(self) -> None:
        data = self._data
        position = self._read_preface(data) if self._preface else 0
        if self._is_cut:
            position = self._cut.fill(data, position)
            whole = self._cut.take()
            if whole is None:
                return
            self._is_cut = False
            self._read_frames(whole, 0)
        elif self._data_left and data:
            position = self._continue_data(data, position)
        self._read_on(position)

    def _go_on(self) -> None:
        position, self._unread_from = self._unread_from, None
        if position is not None and not self.finished:
            self._read_on(position)

    def _read_on(self, position: int) -> None:
        data = self._data
        position = self._read_frames(data, position)
        if position >= len(data) or self.finished:
            return
        if self._step_is_over:
            self._unread_from = position
        elif not self._begin_data(data, position):
            self._cut.keep(data, position)
            self._is_cut = True

    def _read_preface(self, data: bytes) -> int:
        """Compare with what is left of the preface; return the position behind it."""
        expected = self._preface
        if not expected.startswith(data[: len(expected)]):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2")
        self._preface = expected[len(data) :]
        return min(len(data), len(expected))

    def _read_frames(self, data: bytes, position: int) -> int:
        """Carry out whole frames from `position` until the step is over, or the next one is cut."""
        size = len(data)
        last = min(size - HEADER_BYTES, position + STEP_BYTES)
        unpack = FRAME_HEADER.unpack_from
        while True:
            try:
                while position <= last and not self._step_is_over:
                    length_and_kind, flags, stream_id = unpack(data, position)
                    start = position + HEADER_BYTES
                    end = start + (length_and_kind >> 8)
                    if end > size:
                        return position
                    if end - start > self._cut.payload_bytes_max:
                        self._cut.check_length(end - start)
                    position = end
                    handle = self._handlers.get(length_and_kind & 0xFF, self._otherwise)
                    handle(flags, stream_id & STREAM_ID_MAX, data, start, end)
            except StreamFault as fault:
                self._answer_stream_fault(fault)
            else:
                if size - position >= HEADER_BYTES:
                    self._step_is_over = True
                return position

    def _answer_stream_fault(self, fault: StreamFault) -> None:
        # A peer can provoke resets as well as send them; both cost us the same.
        self._spend(self._resets, "too many streams are reset")
        self._reset(fault.stream_id, fault.code)

    def _reset(self, stream_id: int, code: ErrorCode) -> None:
        """End a stream from our side, at once."""
        self._write_reset(stream_id, code)
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._forget(stream)
            stream.local_closed = stream.remote_closed = True
            self._gone(stream, code)

    def _write_reset(self, stream_id: int, code: ErrorCode) -> None:
        """Send RST_STREAM, and from now on put up with what is still under way to the stream."""
        self._write(reset_frame(stream_id, code))
        if len(self._reset_here) >= RESETS_REMEMBERED_MAX:
            del self._reset_here[next(iter(self._reset_here))]
        stream = self.streams.get(stream_id)
        self._reset_here[stream_id] = 0 if stream is None else stream.receive_left

    def fail(self, fault: ConnectionFault) -> None:
        """Give the connection up: GOAWAY, and not a byte more is read."""
        if self.finished:
            return
        self.fault = fault
        self._write(goaway_frame(self._last_peer_stream_id(), fault.code, fault.text))
        self._finish_connection()

    def connection_lost(self) -> None:
        """Give the connection up without a word: there is nobody to hear it."""
        if not self.finished:
            self._finish_connection()

    def _finish_connection(self) -> None:
        self.finished = self._step_is_over = True
        self._unread_from = None
        self._handlers = self._usual_handlers = {}
        for stream in self._forget_all():
            stream.local_closed = stream.remote_closed = True
            self._gone(stream, None)

    def _spend(self, allowance: Allowance, reproach: str) -> None:
        if not allowance.take(self._now_ms):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, reproach)
        self._favours += 1
        if not self._favours % STEP_FAVOURS:
            self._slow_down()

    def _slow_down(self) -> None:
        self._step_is_over = self.gives_way = self.imposes = True

    def _fault_of(self, stream_id: int, code: ErrorCode, text: str) -> Exception:
        """Return a fault of one stream; of the connection if the stream does not exist yet."""
        if self._is_idle(stream_id):
            return ConnectionFault(code, text)
        return StreamFault(stream_id, code, text)

    def _on_anything_before_settings(
        self, flags: int, stream_id: int, data: bytes, start: int, end: int
    ) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")

    def _on_first_settings(
        self, flags: int, stream_id: int, data: bytes, start: int, end: int
    ) -> None:
        if flags & ACK:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        self._handlers = self._usual_handlers
        self._otherwise = self._on_unknown
        self._cut.payload_bytes_max = self.limits.payload_bytes_max
        self.settings_seen = True
        self._on_settings(flags, stream_id, data, start, end)

    def _on_headers(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS names no stream")
        self._depends_on_itself = False
        if flags & PADDED:
            start, end = unpadded(data, start, end)
        if flags & HAS_PRIORITY:
            if end - start < 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS is cut")
            dependency = UINT32.unpack_from(data, start)[0] & STREAM_ID_MAX
            self._depends_on_itself = dependency == stream_id
            start += 5
        if end - start > self.limits.header_block_bytes_max:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too long")
        if flags & END_HEADERS:
            self._block_arrived(stream_id, flags & END_STREAM, data[start:end])
            return
        self._block_stream_id = stream_id
        self._block_flags = flags
        self._block = bytearray(data[start:end])
        self._block_frames = 0
        self._handlers = {CONTINUATION: self._on_continuation}
        self._otherwise = self._on_interrupted_block

    def _on_continuation(
        self, flags: int, stream_id: int, data: bytes, start: int, end: int
    ) -> None:
        if stream_id != self._block_stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
        self._block_frames += 1
        self._block += data[start:end]
        if (
            self._block_frames > self.limits.continuations_max
            or len(self._block) > self.limits.header_block_bytes_max
        ):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too long")
        if flags & END_HEADERS:
            self._handlers = self._usual_handlers
            self._otherwise = self._on_unknown
            block, self._block = bytes(self._block), bytearray()
            self._block_arrived(stream_id, self._block_flags & END_STREAM, block)

    def _on_interrupted_block(
        self, flags: int, stream_id: int, data: bytes, start: int, end: int
    ) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")

    def _on_lonely_continuation(
        self, flags: int, stream_id: int, data: bytes, start: int, end: int
    ) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION continues nothing")

    @abstractmethod
    def _begin_data(self, data: bytes, position: int) -> bool:
        """Carry out the beginning of a long DATA frame; False leaves it until it is whole."""

    @abstractmethod
    def _continue_data(self, data: bytes, position: int) -> int:
        """Carry out more of that frame; return the position behind it."""

    @abstractmethod
    def _on_settings(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        """Carry out SETTINGS."""

    @abstractmethod
    def _on_unknown(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        """Carry out a frame of a kind that RFC 9113 does not know."""

    @abstractmethod
    def _block_arrived(self, stream_id: int, end_stream: int, block: bytes) -> None:
        """Carry out a whole header block."""

    @abstractmethod
    def _is_idle(self, stream_id: int) -> bool:
        """Tell whether neither end has opened the stream yet; 0 never is."""

    @abstractmethod
    def _last_peer_stream_id(self) -> int:
        """Return the last stream of the peer that was looked at."""

    @abstractmethod
    def _gone(self, stream: AnyStream, code: int | None) -> None:
        """Tell the application that a stream was reset, or (None) its connection ended."""
