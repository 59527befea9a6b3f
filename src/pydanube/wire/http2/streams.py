"""One stream of a connection: how far each end has come, and what waits for a window."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import deque

    from pydanube.wire.http2.grpc_framing import MessageReader


class Stream:
    """The state both roles share. The codec that owns it is the only one to change it."""

    __slots__ = (
        "ending",
        "id",
        "local_closed",
        "queue",
        "queued_bytes",
        "reader",
        "receive_left",
        "remote_closed",
        "send_window",
    )

    def __init__(self, stream_id: int, send_window: int, receive_left: int) -> None:
        self.id = stream_id
        self.send_window = send_window
        """What we may still send; SETTINGS of the peer may take it below zero."""
        self.receive_left = receive_left
        """What the peer may still send."""
        self.local_closed = False
        """We have sent END_STREAM or RST_STREAM, or decided to: nothing more can be said."""
        self.remote_closed = False
        """The peer has sent END_STREAM or RST_STREAM."""
        self.queue: deque[bytes | memoryview] | None = None
        """DATA that waits for a window, or for the transport."""
        self.queued_bytes = 0
        self.ending: bytes | None = None
        """The trailers that follow the queue; empty when its last frame ends the stream."""
        self.reader: MessageReader | None = None
        """Set once a message did not arrive in one piece."""
