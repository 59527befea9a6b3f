"""The server's answers: a call's way back, and how replies become frames."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final

from typing_extensions import override

from pydanube.wire.calls import Body, Reply, StatusCode
from pydanube.wire.http2.codec import Codec
from pydanube.wire.http2.errors import ErrorCode
from pydanube.wire.http2.frames import (
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    goaway_frame,
)
from pydanube.wire.http2.grpc_framing import (
    OK_BLOCK,
    PREFIX_BYTES,
    RESPONSE_BLOCK,
    message_pieces,
    refusal_block,
    trailer_block,
)
from pydanube.wire.http2.header_blocks import encode_fields
from pydanube.wire.http2.limits import Http2Limits
from pydanube.wire.http2.server_heads import ServerHead
from pydanube.wire.http2.settings import (
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
)
from pydanube.wire.http2.streams import Stream

# A whole reply but for its body: HEADERS, the header of DATA with the message's prefix; trailers.
_REPLY_START: Final = Struct(f">IBI{len(RESPONSE_BLOCK)}sIBIBI")
_REPLY_HEADERS: Final = len(RESPONSE_BLOCK) << 8 | HEADERS
_REPLY_END: Final = Struct(f">IBI{len(OK_BLOCK)}s")
_REPLY_TRAILERS: Final = len(OK_BLOCK) << 8 | HEADERS

_NOT_GRPC_BLOCK: Final = encode_fields([(b":status", b"415"), (b"content-type", b"text/plain")])
_NOT_GRPC_TEXT: Final = b"This port speaks gRPC: please use a Danube client.\n"


class ServerStream(Stream, Reply):
    """One call. It is its own way back: `send` and `refuse` answer it, once."""

    __slots__ = (
        "codec",
        "drained",
        "head",
        "headers_sent",
        "held_bytes",
        "inbox",
        "length_left",
        "message",
        "replies",
        "simple",
        "started_ms",
        "unread_bytes",
        "window_bytes",
        "work",
    )

    def __init__(
        self, stream_id: int, send_window: int, receive_left: int, codec: "Replies"
    ) -> None:
        super().__init__(stream_id, send_window, receive_left)
        self.codec = codec
        self.head: ServerHead
        self.headers_sent = False
        self.started_ms = 0
        self.simple = True
        """All of the request that is there came in one piece."""
        self.message: bytes | None = None
        self.held_bytes = 0
        self.length_left: int | None = None
        """What content-length promised and DATA has not brought yet."""
        self.window_bytes = receive_left
        self.unread_bytes = 0
        """Of an exchange: how far its caller may be ahead, and by how much it is."""
        self.work: Any = None
        self.drained: Any = None
        self.inbox: Any = None
        self.replies: Any = None
        """The task that works for the call, what it waits for and what it sends: the driver's."""

    @override
    def send(self, response: bytes) -> None:
        if not self.local_closed:
            self.codec.respond(self, response)

    @override
    def refuse(self, code: StatusCode, text: str) -> None:
        if not self.local_closed:
            self.codec.refuse(self, code, text)


class Replies(Codec[ServerStream]):
    """The answering half of a server's connection.

    An answer is complete in `out`, or waits for the peer's windows; a call that is answered before
    its request has ended is reset behind the answer, and the rest of the request ignored.
    """

    def __init__(self, limits: Http2Limits, now_ms: int, output_ready: Callable[[], None]) -> None:
        super().__init__(
            limits,
            now_ms,
            output_ready,
            preface=PREFACE,
            local_settings={
                MAX_CONCURRENT_STREAMS: limits.streams_max,
                INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
                MAX_FRAME_SIZE: limits.payload_bytes_max,
                MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
            },
            connection_window_bytes=limits.connection_window_bytes,
        )
        self.leaving = False

    def respond(self, stream: ServerStream, body: bytes) -> None:
        """Answer a call with OK."""
        length = len(body) + PREFIX_BYTES
        if (
            length <= self._at_once_bytes_max
            and length <= self.send_window
            and length <= stream.send_window
            and stream.simple
        ):
            stream.local_closed = True
            self.send_window -= length
            stream_id = stream.id
            del self.streams[stream_id]
            out = self.out
            if not out and not self._receiving:
                self._output_ready()
            out.append(
                _REPLY_START.pack(
                    _REPLY_HEADERS,
                    END_HEADERS,
                    stream_id,
                    RESPONSE_BLOCK,
                    length << 8,
                    0,
                    stream_id,
                    0,
                    length - PREFIX_BYTES,
                )
            )
            out.append(body)
            out.append(
                _REPLY_END.pack(_REPLY_TRAILERS, END_HEADERS | END_STREAM, stream_id, OK_BLOCK)
            )
        else:
            self.start_reply(stream)
            self.send_messages(stream, [body])
            self.end_reply(stream)

    def start_reply(self, stream: ServerStream) -> None:
        """Send the headers of a reply; from now on it can only be refused within."""
        stream.headers_sent = True
        self._write_block(stream.id, RESPONSE_BLOCK, 0)

    def send_messages(self, stream: ServerStream, messages: Sequence[Body]) -> None:
        """Send messages; `stream.queue` tells whether some of it has to wait."""
        self._write_data(stream, message_pieces(messages))

    def end_reply(self, stream: ServerStream) -> None:
        """End a reply with OK, after what was given before."""
        self._end(stream, OK_BLOCK)

    def refuse(self, stream: ServerStream, code: StatusCode, text: str) -> None:
        """End a call with another status, after what was given before."""
        if stream.headers_sent:
            self._end(stream, trailer_block(code, text))
        else:
            self._answer_without_message(stream, refusal_block(code, text))

    def _answer_without_message(self, stream: ServerStream, block: bytes) -> None:
        self._end(stream, block)

    def _answer_not_grpc(self, stream: ServerStream) -> None:
        self._write_block(stream.id, _NOT_GRPC_BLOCK, 0)
        self._write_last_data(stream, [_NOT_GRPC_TEXT])

    @override
    def _sent_end(self, stream: ServerStream) -> None:
        if not stream.remote_closed:
            # The rest of the request is of no use; RFC 9113 section 8.1 gives it this ending.
            self._write_reset(stream.id, ErrorCode.NO_ERROR)
            stream.remote_closed = True
        self._forget(stream)

    @override
    def _forget(self, stream: ServerStream) -> None:
        super()._forget(stream)
        self._release_request(stream)
        if self.leaving and not self.streams:
            self.finished = self._step_is_over = True

    @override
    def _set_at_once_bytes_max(self) -> None:
        super()._set_at_once_bytes_max()
        if self.leaving:
            self._at_once_bytes_max = -1

    def leave(self, text: str) -> None:
        """Look at no new request, let the running ones end, and then finish."""
        if self.finished or self.leaving:
            return
        self.leaving = True
        self._set_at_once_bytes_max()
        self._write(goaway_frame(self._last_peer_stream_id(), ErrorCode.NO_ERROR, text))
        if not self.streams:
            self.finished = self._step_is_over = True

    @abstractmethod
    def _release_request(self, stream: ServerStream) -> None:
        """Give back what an unfinished request took."""
