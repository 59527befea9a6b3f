"""SETTINGS: what each end asks of the other, and how a change is read and checked."""

from struct import Struct
from typing import Final

from pydanube.wire.http2.errors import ConnectionFault, ErrorCode
from pydanube.wire.http2.frames import SETTINGS, frame

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

WINDOW_MAX: Final = 0x7FFF_FFFF
DEFAULT_WINDOW: Final = 65_535
FRAME_SIZE_MIN: Final = 16_384
FRAME_SIZE_LIMIT: Final = 0xFF_FFFF

_ENTRY: Final = Struct(">HI")


class PeerSettings:
    """What the peer asked for, or the values RFC 9113 starts with."""

    __slots__ = (
        "enable_push",
        "header_list_bytes_max",
        "header_table_size",
        "initial_window",
        "payload_bytes_max",
        "streams_max",
    )

    def __init__(self) -> None:
        self.header_table_size = 4096
        self.enable_push = 1
        self.streams_max: int | None = None
        self.initial_window = DEFAULT_WINDOW
        self.payload_bytes_max = FRAME_SIZE_MIN
        self.header_list_bytes_max: int | None = None

    def apply(self, data: bytes, start: int, end: int) -> None:
        """Take the entries of a SETTINGS payload, in order; unknown ones are ignored."""
        if (end - start) % _ENTRY.size:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS holds half an entry")
        for position in range(start, end, _ENTRY.size):
            name, value = _ENTRY.unpack_from(data, position)
            self._apply_entry(name, value)

    def _apply_entry(self, name: int, value: int) -> None:
        if name == HEADER_TABLE_SIZE:
            self.header_table_size = value
        elif name == ENABLE_PUSH:
            if value > 1:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")
            self.enable_push = value
        elif name == MAX_CONCURRENT_STREAMS:
            self.streams_max = value
        elif name == INITIAL_WINDOW_SIZE:
            if value > WINDOW_MAX:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the window is too large")
            self.initial_window = value
        elif name == MAX_FRAME_SIZE:
            if not FRAME_SIZE_MIN <= value <= FRAME_SIZE_LIMIT:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of range")
            self.payload_bytes_max = value
        elif name == MAX_HEADER_LIST_SIZE:
            self.header_list_bytes_max = value


def settings_frame(entries: dict[int, int]) -> bytes:
    """Return a SETTINGS frame with these entries."""
    payload = b"".join(_ENTRY.pack(name, value) for name, value in entries.items())
    return frame(SETTINGS, 0, 0, payload)
