"""The server's end of a connection: requests in, replies out, no I/O."""

from collections import deque
from typing import Final

from typing_extensions import override

from pydanube.wire.calls import CallRefused, HandlerTable, StatusCode, whole
from pydanube.wire.http2.errors import ConnectionFault, ErrorCode, StreamFault
from pydanube.wire.http2.grpc_framing import PREFIX, PREFIX_BYTES, MessageReader
from pydanube.wire.http2.header_blocks import HeaderBlocks
from pydanube.wire.http2.incoming import STEP_FAVOURS
from pydanube.wire.http2.limits import KIB, Http2Limits
from pydanube.wire.http2.requests import MalformedHeaders, check_trailers
from pydanube.wire.http2.server_exchanges import Exchanges, ServerApplication
from pydanube.wire.http2.server_heads import Peer, ServerHead, head_builder
from pydanube.wire.http2.server_replies import ServerStream

SKIPPED_RANGES_MAX: Final = 16

UNREAD_BYTES: Final = 64 * KIB
UNREAD_REPLIES: Final = 16
"""Who leaves more than so much of so many replies unread is served with pauses. A few streams that
are not read at present are no reason: such are consumers who take their time."""
CROWDED_CALLS: Final = 5
"""How many more calls such a peer may begin at a time."""
STALL_MS: Final = 20
"""When it has left the transport full for so long, it may begin none."""
UNFINISHED: Final = 512
"""Who begins so many requests and ends none goes on with pauses, too."""


class ServerCodec(Exchanges):
    """Serves a handler table's calls to one peer.

    A request is handed over when it is whole. What a peer can make us hold is bounded by the
    limits: frames, header blocks, unfinished requests, and replies it does not read.
    """

    def __init__(
        self,
        limits: Http2Limits,
        table: HandlerTable,
        peer: Peer,
        application: ServerApplication,
        now_ms: int,
    ) -> None:
        super().__init__(limits, application, now_ms)
        self._opened_ms = now_ms
        self._slow_since_ms: int | None = None
        self._parked_since_ms: int | None = None
        self._held_since_ms: int | None = None
        self._last_stream_id = 0
        self._unfinished = 0
        """Requests that have begun since one came whole."""
        self._crowded_calls = 0
        self.parked = 0
        """Calls that have not begun because replies are unread."""
        self._skipped: deque[range] = deque(maxlen=SKIPPED_RANGES_MAX)
        """Streams the peer left out; they count as closed, but using one is another fault."""
        self._blocks = HeaderBlocks(limits.header_list_bytes_max, head_builder(table, peer))
        self._message_bytes_max = limits.message_bytes_max

    @property
    def buffered_bytes(self) -> int:
        """What is held of the last read, and of frames, header blocks, requests not whole yet."""
        return len(self._data) + len(self._cut) + len(self._block) + self._held_bytes

    @override
    def _block_arrived(self, stream_id: int, end_stream: int, block: bytes) -> None:
        if stream_id <= self._last_stream_id or not stream_id & 1:
            self._trailers_arrived(stream_id, end_stream, block)
            return
        if stream_id > self._last_stream_id + 2:
            self._skipped.append(range(self._last_stream_id + 1, stream_id))
        self._last_stream_id = stream_id
        head = self._blocks.known.get(block)
        if head is None:
            self._step_is_over = True  # To decode takes as long as many frames do.
            try:
                head = self._blocks.head(block)
            except MalformedHeaders as fault:
                raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, str(fault)) from None
        if self._depends_on_itself:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "it depends on itself")
        if self.leaving or len(self.streams) >= self.limits.streams_max or self._is_behind():
            self._refuse_stream(stream_id)
            return
        stream = ServerStream(
            stream_id, self.peer.initial_window, self.limits.stream_window_bytes, self
        )
        stream.head = head
        stream.started_ms = self._now_ms
        self.streams[stream_id] = stream
        stream.simple = head.is_grpc
        stream.length_left = head.content_length
        if end_stream:
            stream.remote_closed = True
        if head.refusal is not None:
            self._answer_without_message(stream, head.refusal)
        elif head.exchange is not None:
            self._begin_exchange(stream, end_stream)
        elif end_stream:
            self._request_ended(stream)
        else:
            self._unfinished += 1
        self._mind_others(head)

    def _mind_others(self, head: ServerHead) -> None:
        """End the step where calls have begun that will cost more than they have so far."""
        too_many = self._unfinished > UNFINISHED and not self._unfinished % STEP_FAVOURS
        if self.is_crowded or self.parked > UNREAD_REPLIES:
            self._crowded_calls += 1
            if self.held and self._is_held_for_long():
                self._step_is_over = self.gives_way = self.stalls = True
            elif not self._crowded_calls % CROWDED_CALLS:
                self._slow_down()
        elif too_many:
            self._slow_down()
        elif head.direct is None:
            # Its handler is a task, whose time counts for no turn.
            self._step_is_over = self.gives_way = True

    @property
    def is_crowded(self) -> bool:
        """Tell whether the peer lets replies pile up."""
        return self.queued_streams > UNREAD_REPLIES and self.queued_bytes > UNREAD_BYTES

    @property
    def is_choked(self) -> bool:
        """Tell whether the answer to a new call would only wait."""
        return self.held or self.is_crowded

    def _is_held_for_long(self) -> bool:
        if self._held_since_ms is None:
            self._held_since_ms = self._now_ms
        return self._now_ms - self._held_since_ms >= STALL_MS

    def _is_behind(self) -> bool:
        """Tell whether the peer leaves so much unread that it gets no new calls."""
        return self.queued_bytes > self.limits.outgoing_bytes_max

    def _refuse_stream(self, stream_id: int) -> None:
        """Say that a request was not looked at, so that the client may repeat it elsewhere."""
        allowance = self._idle if self.leaving else self._resets
        self._spend(allowance, "too many streams are refused")
        self._reset(stream_id, ErrorCode.REFUSED_STREAM)

    def _trailers_arrived(self, stream_id: int, end_stream: int, block: bytes) -> None:
        """Carry out a header block of a stream that has begun."""
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the stream is not the client's")
        self._step_is_over = True
        fields = self._blocks.fields(block)
        stream = self.streams.get(stream_id)
        if stream is None:
            if any(stream_id in skipped for skipped in self._skipped):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "streams start out of order")
            if stream_id not in self._reset_here:
                raise ConnectionFault(ErrorCode.STREAM_CLOSED, "the stream has ended")
            self._spend(self._idle, "too many frames that change nothing")
            return
        if stream.remote_closed:
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED, "the request has ended")
        try:
            check_trailers(fields)
        except MalformedHeaders as fault:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, str(fault)) from None
        if not end_stream or self._depends_on_itself:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "headers within a request")
        stream.remote_closed = True
        self._request_ended(stream)

    @override
    def _data_arrived(self, stream: ServerStream, data: bytes, start: int, end: int) -> None:
        if stream.simple and stream.remote_closed and end - start >= PREFIX_BYTES:
            compressed, length = PREFIX.unpack_from(data, start)
            if (
                not compressed
                and start + PREFIX_BYTES + length == end
                and length <= self._message_bytes_max
                and (stream.length_left is None or stream.length_left == end - start)
            ):
                self.requests += 1
                self._unfinished = 0
                self._application.request_arrived(stream, data[start + PREFIX_BYTES : end])
                return
        stream.simple = False
        if stream.length_left is not None:
            stream.length_left -= end - start
            if stream.length_left < 0:
                raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, "content-length is exceeded")
        if stream.head.exchange is not None:
            if not stream.local_closed:
                self._exchange_data(stream, data, start, end)
            return
        if stream.head.is_grpc:
            self._piece_arrived(stream, data, start, end)
        if stream.local_closed:
            return
        if stream.remote_closed:
            self._request_ended(stream)
        elif not stream.head.is_grpc and stream.receive_left < self.limits.stream_window_bytes // 2:
            self._answer_not_grpc(stream)

    def _piece_arrived(self, stream: ServerStream, data: bytes, start: int, end: int) -> None:
        """Take a piece of a message, or several messages where one is allowed."""
        reader = stream.reader
        if reader is None:
            reader = stream.reader = MessageReader(
                stream.head.encoding, self._message_bytes_max, self.limits.unpacked_ratio_max
            )
        try:
            for message in reader.feed(data, start, end):
                if stream.message is not None:
                    raise CallRefused(StatusCode.INTERNAL, "the request holds several messages")
                stream.message = whole(message)
        except CallRefused as refusal:
            self.refuse(stream, refusal.code, refusal.text)
            return
        held = reader.held_bytes + (0 if stream.message is None else len(stream.message))
        self._held_bytes += held - stream.held_bytes
        stream.held_bytes = held
        if self._held_bytes > self.limits.request_bytes_buffered_max:
            self._refuse_stream(stream.id)
        elif reader.missing_bytes > stream.receive_left:
            self._large.ask(stream.id, reader.missing_bytes - stream.receive_left)
            self._give_windows()

    def _request_ended(self, stream: ServerStream) -> None:
        if stream.length_left:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, "content-length is not reached")
        message, stream.message = stream.message, None
        if stream.head.exchange is not None:
            self._end_requests(stream)
        elif not stream.head.is_grpc:
            self._answer_not_grpc(stream)
        elif message is None or (stream.reader is not None and stream.reader.held_bytes):
            self.refuse(stream, StatusCode.INTERNAL, "the request holds no whole message")
        else:
            self._release_request(stream)
            self.requests += 1
            self._application.request_arrived(stream, message)

    @override
    def _gone(self, stream: ServerStream, code: int | None) -> None:
        self._application.caller_gone(stream, reset=code is not None)

    @override
    def _drained(self, stream: ServerStream) -> None:
        self._application.stream_drained(stream)

    @override
    def _is_idle(self, stream_id: int) -> bool:
        return stream_id > self._last_stream_id or not stream_id & 1

    @override
    def _last_peer_stream_id(self) -> int:
        return self._last_stream_id

    @override
    def _peer_leaves(self, last_stream_id: int, code: int) -> None:
        """Let its calls end; it has said that it starts no more."""

    @override
    def release(self) -> None:
        self._slow_since_ms = None
        self._held_since_ms = self._parked_since_ms = None
        self.stalls = False
        super().release()
        if self.parked:
            self._application.replies_read()

    @override
    def _pump(self) -> None:
        queued_bytes = self.queued_bytes
        super()._pump()
        if self.parked and self.queued_bytes < queued_bytes:
            self._parked_since_ms = None
            if not self.is_choked:
                self._application.replies_read()

    def tick(self, now_ms: int) -> None:
        """Find out who takes too long; about once a second."""
        if self.finished:
            return
        self._now_ms = now_ms
        try:
            self._check_handshake()
            self._check_requests()
            self._check_reader()
            self._check_alive()
        except ConnectionFault as fault:
            self.fail(fault)

    def _check_handshake(self) -> None:
        age = (self._now_ms - self._opened_ms) / 1000
        if not self.settings_seen and age > self.limits.handshake_seconds_max:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "the handshake takes too long")
        if not self.requests and age > self.limits.first_request_seconds_max:
            if self.streams:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a request takes too long")
            self.leave("nothing was asked for")

    def _check_reader(self) -> None:
        """Give up on a peer that has left replies unread for long: so that the transport is full,
        or so many of them, or none was read while more calls wait for that.
        """
        self._slow_since_ms = self._since_ms(self._slow_since_ms, self.held or self._is_behind())
        self._parked_since_ms = self._since_ms(self._parked_since_ms, self.parked > 0)

    def _since_ms(self, since_ms: int | None, is_slow: bool) -> int | None:
        """Return since when a peer has been slow to read; it must not be too long ago."""
        if not is_slow:
            return None
        if since_ms is None:
            return self._now_ms
        if self._now_ms - since_ms > self.limits.outgoing_seconds_max * 1000:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "replies are not read")
        return since_ms
