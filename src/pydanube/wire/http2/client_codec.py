"""The client's end of a connection: calls out, replies in, no I/O."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from typing_extensions import override

from pydanube.wire.calls import CallRefused, StatusCode, whole
from pydanube.wire.http2.client_heads import ReplyHead, read_reply
from pydanube.wire.http2.codec import Codec
from pydanube.wire.http2.errors import ConnectionFault, ErrorCode, StreamFault
from pydanube.wire.http2.frames import PREFACE, STREAM_ID_MAX, window_update_frame
from pydanube.wire.http2.grpc_framing import (
    PREFIX,
    PREFIX_BYTES,
    MessageReader,
    status_of_reset,
)
from pydanube.wire.http2.header_blocks import HeaderBlocks
from pydanube.wire.http2.limits import MIB, Http2Limits
from pydanube.wire.http2.outgoing import Buffer
from pydanube.wire.http2.requests import MalformedHeaders
from pydanube.wire.http2.settings import (
    ENABLE_PUSH,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
)
from pydanube.wire.http2.streams import Stream

STREAM_WINDOW_BYTES: Final = 4 * MIB
"""What a server may send on one call before the caller has taken it."""
CONNECTION_WINDOW_BYTES: Final = 64 * MIB


class CallEvents(Protocol):
    """Whom a call tells what came back."""

    def reply_arrived(self, message: bytes) -> None:
        """Take one message; say `consumed` when it is out of the way."""

    def requests_sent(self) -> None:
        """Take note that all requests given so far are sent; of calls with a stream of them."""

    def call_ended(self, code: StatusCode, text: str, *, repeatable: bool) -> None:
        """Take the end, the last thing told; `repeatable` when the server did not look at it."""


class ClientStream(Stream):
    """One call."""

    __slots__ = ("encoding", "events", "head_seen", "held_bytes")

    def __init__(
        self, stream_id: int, send_window: int, receive_left: int, events: CallEvents
    ) -> None:
        super().__init__(stream_id, send_window, receive_left)
        self.events = events
        self.head_seen = False
        self.encoding = b""
        self.held_bytes = 0
        """Bytes of messages the caller has been given and not consumed."""


class ClientCodec(Codec[ClientStream]):
    """Makes calls to one server.

    A call ends exactly once. What a server can make us hold for a call is one message and one
    window: room is given back as the caller consumes.
    """

    def __init__(self, limits: Http2Limits, now_ms: int, output_ready: Callable[[], None]) -> None:
        super().__init__(
            limits,
            now_ms,
            output_ready,
            preface=b"",
            local_settings={
                ENABLE_PUSH: 0,
                INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
                MAX_FRAME_SIZE: limits.payload_bytes_max,
                MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
            },
            connection_window_bytes=CONNECTION_WINDOW_BYTES,
        )
        self.out.insert(0, PREFACE)
        self.peer.enable_push = 0
        self.leaving = False
        """The server, or the last stream number, allows no further call here."""
        self._next_stream_id = 1
        self._blocks = HeaderBlocks(limits.header_list_bytes_max, read_reply)

    @property
    def has_room(self) -> bool:
        """Tell whether the server takes another call at once."""
        streams_max = self.peer.streams_max
        return streams_max is None or len(self.streams) < streams_max

    def open(self, block: bytes, payload: Sequence[Buffer], events: CallEvents) -> ClientStream:
        """Start a call: its header block, and its one message behind its prefix."""
        stream = self.open_exchange(block, events)
        self._write_last_data(stream, payload)
        return stream

    def open_exchange(self, block: bytes, events: CallEvents) -> ClientStream:
        """Start a call whose requests follow one by one."""
        assert not self.leaving, "no further call on this connection"
        assert not self.finished, "the connection has ended"
        stream_id = self._next_stream_id
        self._next_stream_id += 2
        self.leaving = self._next_stream_id > STREAM_ID_MAX
        stream = ClientStream(stream_id, self.peer.initial_window, STREAM_WINDOW_BYTES, events)
        self.streams[stream_id] = stream
        self._write_block(stream_id, block, 0)
        return stream

    def send_request(self, stream: ClientStream, payload: Sequence[Buffer]) -> bool:
        """Send one more request behind its prefix; False if some of it has to wait."""
        if not stream.local_closed:
            self._write_data(stream, payload)
        return stream.queue is None

    def end_requests(self, stream: ClientStream) -> None:
        """Say that no more requests follow; the replies go on."""
        if not stream.local_closed:
            self._close_local(stream)

    @override
    def _drained(self, stream: ClientStream) -> None:
        stream.events.requests_sent()

    def cancel(self, stream: ClientStream) -> None:
        """Give a call up without being told its end; harmless when it has ended."""
        if self.streams.get(stream.id) is stream:
            self._abandon(stream)

    def consumed(self, stream: ClientStream, message: bytes) -> None:
        """Say that a message is out of the way."""
        stream.held_bytes -= len(message) + PREFIX_BYTES
        if not stream.remote_closed:
            self._top_up(stream)

    def _top_up(self, stream: ClientStream) -> None:
        """Keep the window open for a whole message, and for as much as the caller keeps up with."""
        held, missing = stream.held_bytes, 0
        if stream.reader is not None:
            held += stream.reader.held_bytes
            missing = stream.reader.missing_bytes - stream.receive_left
        room = STREAM_WINDOW_BYTES - held - stream.receive_left
        increment = max(missing, room if room >= STREAM_WINDOW_BYTES // 2 else 0)
        if increment > 0:
            stream.receive_left += increment
            self._write(window_update_frame(stream.id, increment))

    @override
    def _block_arrived(self, stream_id: int, end_stream: int, block: bytes) -> None:
        if self._is_idle(stream_id):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "an answer to no call")
        try:
            head = self._blocks.head(block)
        except MalformedHeaders as fault:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, str(fault)) from None
        stream = self.streams.get(stream_id)
        if stream is None or stream.remote_closed:
            self._check_late_frame(stream_id, ErrorCode.STREAM_CLOSED)
        elif stream.head_seen:
            self._trailers_arrived(stream, end_stream, head)
        else:
            self._head_arrived(stream, end_stream, head)

    def _head_arrived(self, stream: ClientStream, end_stream: int, head: ReplyHead) -> None:
        if head.http_status is None or (head.is_interim and end_stream):
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, "a reply without :status")
        if head.is_interim:
            return
        stream.head_seen = True
        stream.encoding = head.encoding
        if end_stream:
            stream.remote_closed = True
        if head.code is not None:
            self._end_call(stream, head.code, head.text)
        elif end_stream:
            self._end_call(stream, StatusCode.UNKNOWN, "the reply ended without a status")

    def _trailers_arrived(self, stream: ClientStream, end_stream: int, head: ReplyHead) -> None:
        if head.http_status is not None or not end_stream:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, "headers within a reply")
        stream.remote_closed = True
        if head.code is None:
            self._end_call(stream, StatusCode.UNKNOWN, "the reply ended without a status")
        elif stream.reader is not None and stream.reader.held_bytes and head.code is StatusCode.OK:
            self._end_call(stream, StatusCode.INTERNAL, "the last message of the reply is cut")
        else:
            self._end_call(stream, head.code, head.text)

    @override
    def _data_arrived(self, stream: ClientStream, data: bytes, start: int, end: int) -> None:
        if not stream.head_seen:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, "DATA before HEADERS")
        if stream.reader is None and end - start >= PREFIX_BYTES:
            compressed, length = PREFIX.unpack_from(data, start)
            if (
                not compressed
                and start + PREFIX_BYTES + length == end
                and length <= self.limits.message_bytes_max
            ):
                self._reply_arrived(stream, data[start + PREFIX_BYTES : end])
                start = end
        if start < end:
            self._piece_arrived(stream, data, start, end)
        if self.streams.get(stream.id) is not stream:
            return
        if stream.remote_closed:
            self._end_call(stream, StatusCode.UNKNOWN, "the reply ended without a status")
        else:
            self._top_up(stream)

    def _piece_arrived(self, stream: ClientStream, data: bytes, start: int, end: int) -> None:
        if stream.reader is None:
            stream.reader = MessageReader(
                stream.encoding, self.limits.message_bytes_max, self.limits.unpacked_ratio_max
            )
        try:
            for message in stream.reader.feed(data, start, end):
                if self.streams.get(stream.id) is not stream:
                    return  # The caller gave up when it saw the one before.
                self._reply_arrived(stream, whole(message))
        except CallRefused as refusal:
            self._end_call(stream, refusal.code, refusal.text)

    def _reply_arrived(self, stream: ClientStream, message: bytes) -> None:
        stream.held_bytes += len(message) + PREFIX_BYTES
        stream.events.reply_arrived(message)

    def _end_call(self, stream: ClientStream, code: StatusCode, text: str) -> None:
        if stream.remote_closed and stream.local_closed and stream.queue is None:
            self._forget(stream)
        else:
            # One end has more to say, which nobody would hear.
            self._abandon(stream)
        stream.events.call_ended(code, text, repeatable=False)

    def _abandon(self, stream: ClientStream) -> None:
        self._write_reset(stream.id, ErrorCode.CANCEL)
        self._forget(stream)
        stream.local_closed = stream.remote_closed = True

    @override
    def _sent_end(self, stream: ClientStream) -> None:
        """Wait for the reply: a call is over when the server has ended it."""

    @override
    def _gone(self, stream: ClientStream, code: int | None) -> None:
        if code is None:
            text = "the connection was lost"
            if self.fault is not None:
                text = f"the connection was given up: {self.fault.text}"
            stream.events.call_ended(StatusCode.UNAVAILABLE, text, repeatable=False)
        else:
            stream.events.call_ended(
                status_of_reset(code),
                f"the call was reset with code {code}",
                repeatable=code == ErrorCode.REFUSED_STREAM,
            )

    @override
    def _settings_changed(self) -> None:
        if self.peer.enable_push:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a server cannot ask for pushes")

    @override
    def _is_idle(self, stream_id: int) -> bool:
        return stream_id >= self._next_stream_id or not stream_id & 1

    @override
    def _last_peer_stream_id(self) -> int:
        return 0

    @override
    def _peer_leaves(self, last_stream_id: int, code: int) -> None:
        self.leaving = True
        for stream in [s for s in self.streams.values() if s.id > last_stream_id]:
            self._forget(stream)
            stream.local_closed = stream.remote_closed = True
            text = f"the server is leaving with code {code}"
            stream.events.call_ended(StatusCode.UNAVAILABLE, text, repeatable=True)

    def tick(self, now_ms: int) -> None:
        """Find out whether the server is still there; every few seconds."""
        if self.finished:
            return
        self._now_ms = now_ms
        try:
            self._check_alive()
        except ConnectionFault as fault:
            self.fail(fault)

    def leave(self) -> None:
        """Say good-bye and finish; running calls end as with a lost connection."""
        self.fail(ConnectionFault(ErrorCode.NO_ERROR, "the client leaves"))
