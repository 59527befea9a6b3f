"""What a peer can do wrong, and which of its streams it costs."""

from enum import IntEnum


class ErrorCode(IntEnum):
    """The HTTP/2 error codes, by their numbers on the wire (RFC 9113 section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ConnectionFault(Exception):
    """The peer broke a rule, or a limit, that the whole connection rests on: it gets GOAWAY."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code = code
        self.text = text


class StreamFault(Exception):
    """The peer broke a rule that one stream rests on: that stream gets RST_STREAM."""

    def __init__(self, stream_id: int, code: ErrorCode, text: str) -> None:
        super().__init__(f"stream {stream_id}: {code.name}: {text}")
        self.stream_id = stream_id
        self.code = code
        self.text = text
