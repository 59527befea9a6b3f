"""HTTP/2 as both roles speak it: every frame but header blocks checked and carried out.

What the frames mean to calls is decided by the codec of each role, upon this one.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

from typing_extensions import override

from pydanube.wire.http2.errors import ConnectionFault, ErrorCode, StreamFault
from pydanube.wire.http2.flow import ConnectionWindow
from pydanube.wire.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_STREAM,
    FRAME_HEADER,
    GOAWAY,
    HEADER_BYTES,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    STREAM_ID_MAX,
    UINT32,
    WINDOW_UPDATE,
    ping_frame,
    unpadded,
    window_update_frame,
)
from pydanube.wire.http2.grpc_framing import NOT_COPIED_BYTES_MIN, MessageReader
from pydanube.wire.http2.incoming import Incoming
from pydanube.wire.http2.limits import Allowance, Http2Limits
from pydanube.wire.http2.settings import settings_frame
from pydanube.wire.http2.streams import Stream

AnyStream = TypeVar("AnyStream", bound=Stream)
_PING_PAYLOAD = b"pydanube"


class Codec(Incoming[AnyStream]):
    """One end of an HTTP/2 connection."""

    def __init__(
        self,
        limits: Http2Limits,
        now_ms: int,
        output_ready: Callable[[], None],
        *,
        preface: bytes,
        local_settings: dict[int, int],
        connection_window_bytes: int,
    ) -> None:
        super().__init__(limits, now_ms, output_ready, preface)
        self._window = ConnectionWindow()
        self._connection_window_bytes = connection_window_bytes
        self._ping_sent_ms: int | None = None
        self._empty = Allowance(limits.empty_frames_burst, limits.empty_frames_per_second)
        self._pings = Allowance(limits.pings_burst, limits.pings_per_second)
        self._settings = Allowance(limits.settings_burst, limits.settings_per_second)
        self._idle = Allowance(limits.idle_frames_burst, limits.idle_frames_per_second)
        self._usual_handlers = {
            DATA: self._on_data,
            HEADERS: self._on_headers,
            PRIORITY: self._on_priority,
            RST_STREAM: self._on_reset,
            SETTINGS: self._on_settings,
            PUSH_PROMISE: self._on_push_promise,
            PING: self._on_ping,
            GOAWAY: self._on_goaway,
            WINDOW_UPDATE: self._on_window_update,
            CONTINUATION: self._on_lonely_continuation,
        }
        self._data_flags = self._data_stream_id = 0
        self.out.append(settings_frame(local_settings))

    @override
    def _on_settings(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS belongs to no stream")
        self._spend(self._settings, "too many SETTINGS")
        if flags & ACK:
            if start != end:
                raise ConnectionFault(
                    ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement has no content"
                )
            return
        window = self.peer.initial_window
        self.peer.apply(data, start, end)
        self._write(SETTINGS_ACK)
        self._set_at_once_bytes_max()
        increment = self._window.widen(self._connection_window_bytes)
        if increment:
            self._write(window_update_frame(0, increment))
        if self.peer.initial_window != window:
            self._change_initial_window(self.peer.initial_window - window)
        self._settings_changed()

    def _on_ping(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING belongs to no stream")
        if end - start != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "PING holds eight bytes")
        self._spend(self._pings, "too many PINGs")
        if flags & ACK:
            self._ping_sent_ms = None
        else:
            self._write(ping_frame(data[start:end], ack=True))

    def _on_goaway(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "GOAWAY belongs to no stream")
        if end - start < 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY is cut")
        self._spend(self._idle, "too many frames that change nothing")
        last_stream_id = UINT32.unpack_from(data, start)[0] & STREAM_ID_MAX
        self._peer_leaves(last_stream_id, UINT32.unpack_from(data, start + 4)[0])

    def _on_push_promise(
        self, flags: int, stream_id: int, data: bytes, start: int, end: int
    ) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "nobody asked for a push")

    @override
    def _on_unknown(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        self._spend(self._idle, "too many frames that change nothing")

    def _on_priority(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY names no stream")
        self._spend(self._idle, "too many frames that change nothing")
        if end - start != 5:
            raise self._fault_of(stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY is cut")
        if UINT32.unpack_from(data, start)[0] & STREAM_ID_MAX == stream_id:
            raise self._fault_of(stream_id, ErrorCode.PROTOCOL_ERROR, "it depends on itself")

    def _on_data(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        length = end - start
        window = self._window
        window.left -= length
        if window.left < window.low:
            self._refill_window()
        if flags & PADDED:
            start, end = unpadded(data, start, end)
        stream = self.streams.get(stream_id)
        if stream is None or stream.remote_closed:
            if not self._was_under_way(stream_id, length):
                self._check_late_frame(stream_id, ErrorCode.STREAM_CLOSED)
            return
        stream.receive_left -= length
        if stream.receive_left < 0:
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "it was not given the room")
        if flags & END_STREAM:
            stream.remote_closed = True
        elif start == end:
            self._spend(self._empty, "too many empty frames")
        self._data_arrived(stream, data, start, end)

    @override
    def _begin_data(self, data: bytes, position: int) -> bool:
        # Only what is sure to be in order: all else is judged as a whole frame.
        if self._handlers is not self._usual_handlers or len(data) - position <= HEADER_BYTES:
            return False
        length_and_kind, flags, stream_id = FRAME_HEADER.unpack_from(data, position)
        length = length_and_kind >> 8
        stream = self.streams.get(stream_id & STREAM_ID_MAX)
        if (
            length_and_kind & 0xFF != DATA
            or flags & PADDED
            or not NOT_COPIED_BYTES_MIN <= length <= self.limits.payload_bytes_max
            or stream is None
            or stream.remote_closed
            or length > min(stream.receive_left, self._window.left)
        ):
            return False
        self._data_left = length
        self._data_flags = flags
        self._data_stream_id = stream.id
        self._continue_data(data, position + HEADER_BYTES)
        return True

    @override
    def _continue_data(self, data: bytes, position: int) -> int:
        end = min(len(data), position + self._data_left)
        self._data_left -= end - position
        flags = 0 if self._data_left else self._data_flags
        try:
            self._on_data(flags, self._data_stream_id, data, position, end)
        except StreamFault as fault:
            self._answer_stream_fault(fault)
        return end

    @property
    def is_within_long_message(self) -> bool:
        """Tell whether what comes next is likely to have a `room`."""
        reader = self._reader_of_data()
        return reader is not None and reader.is_within_long_message

    def room(self) -> memoryview | None:
        """Return where what comes next belongs, if it is certain to be more of a long message.

        What is put there is received as anything else: as the view that it lies in.
        """
        if not self._data_left or self.unread or self.finished:
            return None
        reader = self._reader_of_data()
        return None if reader is None else reader.room(self._data_left)

    def _reader_of_data(self) -> MessageReader | None:
        stream = self.streams.get(self._data_stream_id)
        return None if stream is None else stream.reader

    def _refill_window(self) -> None:
        if self._window.left < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the peer was not given the room")
        self._write(window_update_frame(0, self._window.refill()))

    def _was_under_way(self, stream_id: int, length: int) -> bool:
        """Tell whether DATA may have been sent before its sender knew that we reset the stream."""
        left = self._reset_here.get(stream_id, 0) - max(length, 1)
        if left < 0:
            return False
        self._reset_here[stream_id] = left
        return True

    def _check_late_frame(self, stream_id: int, code: ErrorCode) -> None:
        """Decide on a frame for a stream that is not open to the peer."""
        if self._is_idle(stream_id):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a frame is ahead of its stream")
        if stream_id not in self._reset_here:
            raise StreamFault(stream_id, code, "the stream has ended")
        self._spend(self._idle, "too many frames that change nothing")

    def _on_reset(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if end - start != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM holds four bytes")
        if self._is_idle(stream_id):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a stream ends before it starts")
        self._spend(self._resets, "too many streams are reset")
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._forget(stream)
            stream.local_closed = stream.remote_closed = True
            self._gone(stream, UINT32.unpack_from(data, start)[0])

    def _on_window_update(
        self, flags: int, stream_id: int, data: bytes, start: int, end: int
    ) -> None:
        if end - start != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE holds four bytes")
        increment = UINT32.unpack_from(data, start)[0] & STREAM_ID_MAX
        if not stream_id:
            if not increment:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a window grows by nothing")
            self._widen_connection(increment)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if self._is_idle(stream_id):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a frame is ahead of its stream")
            self._spend(self._idle, "too many frames that change nothing")
        elif not increment:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "its window grows by nothing")
        else:
            self._widen_stream(stream, increment)

    def _check_alive(self) -> None:
        """Ask a silent peer for a sign of life, and give up on one that owes it for long."""
        now_ms = self._now_ms
        if self._ping_sent_ms is not None and self.heard_ms > self._ping_sent_ms:
            self._ping_sent_ms = None  # Whatever it said, it is there.
        if self._ping_sent_ms is not None:
            if now_ms - self._ping_sent_ms > self.limits.ping_seconds_max * 1000:
                raise ConnectionFault(ErrorCode.NO_ERROR, "the peer does not answer")
        elif now_ms - self.heard_ms > self.limits.idle_seconds_max * 1000:
            self._ping_sent_ms = now_ms
            self._write(ping_frame(_PING_PAYLOAD, ack=False))

    @abstractmethod
    def _data_arrived(self, stream: AnyStream, data: bytes, start: int, end: int) -> None:
        """Carry out the content of DATA."""

    @abstractmethod
    def _peer_leaves(self, last_stream_id: int, code: int) -> None:
        """Carry out GOAWAY."""

    def _settings_changed(self) -> None:
        """Carry out what new settings of the peer mean to the role."""
