"""Calls with a stream each way: their requests arrive one by one, as fast as they are taken."""

from functools import partial
from typing import Final, Protocol

from typing_extensions import override

from pydanube.wire.calls import Body, CallRefused, StatusCode, body_bytes
from pydanube.wire.http2.errors import ConnectionFault, ErrorCode, StreamFault
from pydanube.wire.http2.flow import LargeRequests
from pydanube.wire.http2.frames import window_update_frame
from pydanube.wire.http2.grpc_framing import PREFIX_BYTES, MessageReader
from pydanube.wire.http2.limits import Http2Limits
from pydanube.wire.http2.server_replies import Replies, ServerStream
from pydanube.wire.memory import allocate

IN_PLACE_MAX: Final = 16
"""Requests of one connection that may be received where they stay at a time: the length of one is
its caller's word, and address space for it is given before it comes."""


class ServerApplication(Protocol):
    """Whom the codec tells what happened."""

    def request_arrived(self, stream: ServerStream, message: bytes) -> None:
        """Take a whole request; it must be answered sooner or later, and may be at once."""

    def exchange_began(self, stream: ServerStream) -> None:
        """Take a call whose requests follow one by one."""

    def exchange_request(self, stream: ServerStream, message: Body) -> None:
        """Take one request of such a call; say `consumed` when it is out of the way."""

    def exchange_requests_ended(self, stream: ServerStream) -> None:
        """Take note that no more requests of such a call will come."""

    def caller_gone(self, stream: ServerStream, *, reset: bool = False) -> None:
        """Stop working for a call: nobody waits for the answer, maybe for its caller reset it."""

    def stream_drained(self, stream: ServerStream) -> None:
        """Go on with a call whose messages have all been sent."""

    def replies_read(self) -> None:
        """Go on with calls that wait because replies were not read."""

    def output_ready(self) -> None:
        """Write `out` soon: something has come into it outside of `receive`."""


class Exchanges(Replies):
    """Receives the requests of exchanges, and keeps account of what all requests hold.

    A caller may be ahead of its handler by a window, and further only to finish one message that
    is larger than that; those share the room of all large requests.
    """

    def __init__(self, limits: Http2Limits, application: ServerApplication, now_ms: int) -> None:
        super().__init__(limits, now_ms, application.output_ready)
        self.requests = 0
        """How many whole requests have arrived."""
        self._application = application
        self._large = LargeRequests(limits.large_request_bytes_max)
        self._held_bytes = 0
        self._ahead_bytes_left = limits.exchange_bytes_max
        self._in_place: set[int] = set()
        """Streams whose requests lie in memory of their own, as far as they are here."""

    def _begin_exchange(self, stream: ServerStream, end_stream: int) -> None:
        stream.simple = False
        self.requests += 1
        self._application.exchange_began(stream)
        if end_stream:
            self._end_requests(stream)
        elif not stream.local_closed:
            more = self.limits.exchange_window_bytes - stream.window_bytes
            if 0 < more <= self._ahead_bytes_left:
                self._ahead_bytes_left -= more
                stream.window_bytes += more
                self._widen(stream.id, more)

    def _exchange_data(self, stream: ServerStream, data: bytes, start: int, end: int) -> None:
        reader = stream.reader
        if reader is None:
            reader = stream.reader = MessageReader(
                stream.head.encoding,
                self.limits.message_bytes_max,
                self.limits.unpacked_ratio_max,
                partial(self._allocate, stream.id),
            )
        if not reader.held_bytes:
            stream.started_ms = self._now_ms
        try:
            messages = reader.feed(data, start, end)
            if not reader.is_within_long_message:
                self._in_place.discard(stream.id)
            for message in messages:
                stream.unread_bytes += body_bytes(message) + PREFIX_BYTES
                stream.started_ms = self._now_ms
                self._application.exchange_request(stream, message)
                if stream.local_closed:
                    return
        except CallRefused as refusal:
            self.refuse(stream, refusal.code, refusal.text)
            self._application.caller_gone(stream)
            return
        self._recount(stream)
        if self._held_bytes > self.limits.request_bytes_buffered_max:
            raise StreamFault(stream.id, ErrorCode.ENHANCE_YOUR_CALM, "requests pile up")
        if stream.remote_closed:
            self._end_requests(stream)
        else:
            self._top_up(stream)

    def _allocate(self, stream_id: int, length: int) -> memoryview | None:
        if len(self._in_place) >= IN_PLACE_MAX:
            return None
        self._in_place.add(stream_id)
        return allocate(length)

    def _end_requests(self, stream: ServerStream) -> None:
        if stream.reader is not None and stream.reader.held_bytes:
            self.refuse(stream, StatusCode.INTERNAL, "the last request is cut")
            self._application.caller_gone(stream)
        else:
            self._application.exchange_requests_ended(stream)

    def consumed(self, stream: ServerStream, message: Body) -> None:
        """Say that a request of an exchange is out of the way."""
        if self.streams.get(stream.id) is not stream:
            return
        stream.unread_bytes -= body_bytes(message) + PREFIX_BYTES
        self._recount(stream)
        self._large.end(stream.id)
        self._give_windows()
        if not stream.remote_closed:
            self._top_up(stream)

    def _recount(self, stream: ServerStream) -> None:
        held = stream.unread_bytes
        if stream.reader is not None:
            held += stream.reader.held_bytes
        self._held_bytes += held - stream.held_bytes
        stream.held_bytes = held

    def _top_up(self, stream: ServerStream) -> None:
        """Keep the window open for as much as the handler keeps up with."""
        room = stream.window_bytes - stream.held_bytes - stream.receive_left
        if room >= stream.window_bytes // 2:
            self._widen(stream.id, room)
        elif stream.reader is not None and not stream.unread_bytes:
            # Nothing that could be taken is here, so the message under way must get through.
            missing = stream.reader.missing_bytes - stream.receive_left
            if missing > 0:
                self._large.ask(stream.id, missing)
                self._give_windows()

    def _give_windows(self) -> None:
        for stream_id, count in self._large.give():
            self._widen(stream_id, count)

    def _widen(self, stream_id: int, count: int) -> None:
        stream = self.streams[stream_id]
        stream.receive_left += count
        if stream.head.exchange is not None:
            stream.started_ms = self._now_ms
        self._write(window_update_frame(stream_id, count))

    @override
    def _release_request(self, stream: ServerStream) -> None:
        if stream.reader is not None or stream.held_bytes:
            stream.reader = None
            self._in_place.discard(stream.id)
            self._held_bytes -= stream.held_bytes
            stream.held_bytes = 0
            self._large.end(stream.id)
            self._give_windows()
        if stream.head.exchange is not None:
            self._ahead_bytes_left += stream.window_bytes - self.limits.stream_window_bytes
            stream.window_bytes = self.limits.stream_window_bytes

    @override
    def _forget_all(self) -> list[ServerStream]:
        self._held_bytes = 0
        self._in_place.clear()
        return super()._forget_all()

    def _check_requests(self) -> None:
        """Give up on a peer that does not finish what it has begun, though it could."""
        started_ms_min = self._now_ms - self.limits.request_seconds_max * 1000
        for stream in self.streams.values():
            if stream.remote_closed or stream.started_ms >= started_ms_min:
                continue
            if stream.head.exchange is not None and not _is_within_message(stream):
                continue
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a request takes too long")


def _is_within_message(stream: ServerStream) -> bool:
    """Tell whether the rest of a message is due, and is not waiting for us."""
    reader = stream.reader
    return (
        reader is not None
        and reader.held_bytes > 0
        and stream.receive_left >= max(reader.missing_bytes, 1)
    )
