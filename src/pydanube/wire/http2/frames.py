"""HTTP/2 frames: their numbers, how they are written, and how a cut one is put together again."""

from struct import Struct
from typing import Final

from pydanube.wire.http2.errors import ConnectionFault, ErrorCode

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES: Final = 9
STREAM_ID_MAX: Final = 0x7FFF_FFFF

FRAME_HEADER: Final = Struct(">IBI")
"""Length and type in one number (length << 8 | type), flags, stream id."""
UINT32: Final = Struct(">I")
_GOAWAY: Final = Struct(">II")

SETTINGS_ACK: Final = FRAME_HEADER.pack(SETTINGS, ACK, 0)


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """Return one whole frame."""
    return FRAME_HEADER.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def reset_frame(stream_id: int, code: ErrorCode) -> bytes:
    """Return the frame that ends one stream at once."""
    return frame(RST_STREAM, 0, stream_id, UINT32.pack(code))


def window_update_frame(stream_id: int, increment: int) -> bytes:
    """Return the frame that lets the peer send `increment` bytes more; stream 0 means all."""
    return frame(WINDOW_UPDATE, 0, stream_id, UINT32.pack(increment))


def ping_frame(payload: bytes, *, ack: bool) -> bytes:
    """Return a ping, or the answer to one."""
    return frame(PING, ACK if ack else 0, 0, payload)


def goaway_frame(last_stream_id: int, code: ErrorCode, text: str) -> bytes:
    """Return the frame that says which streams were looked at, and why no more will be."""
    return frame(GOAWAY, 0, 0, _GOAWAY.pack(last_stream_id, code) + text.encode())


def header_frames(stream_id: int, block: bytes, flags: int, payload_max: int) -> bytes:
    """Return a header block as one HEADERS frame and as many CONTINUATION frames as it needs."""
    if len(block) <= payload_max:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    written = [frame(HEADERS, flags, stream_id, block[:payload_max])]
    for start in range(payload_max, len(block), payload_max):
        last = start + payload_max >= len(block)
        piece = block[start : start + payload_max]
        written.append(frame(CONTINUATION, END_HEADERS if last else 0, stream_id, piece))
    return b"".join(written)


def unpadded(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Return where the content of a padded payload starts and ends."""
    if start == end:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a padded frame is empty")
    content_end = end - data[start]
    if content_end <= start:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the padding is longer than its frame")
    return start + 1, content_end


class CutFrame:
    """The beginning of a frame whose end has not arrived yet.

    It never holds more than one frame, and refuses a frame longer than `payload_bytes_max` as soon
    as its nine header bytes are there, so a peer cannot make it grow further than that.
    """

    def __init__(self, payload_bytes_max: int) -> None:
        self.payload_bytes_max = payload_bytes_max
        self._bytes = bytearray()
        self._needed = HEADER_BYTES

    def __len__(self) -> int:
        return len(self._bytes)

    def keep(self, data: bytes, position: int) -> None:
        """Remember what follows `position`, less than one frame."""
        assert not self._bytes, "one cut frame at a time"
        self.fill(data, position)

    def fill(self, data: bytes, position: int) -> int:
        """Take what is missing from `data` and return the position behind it."""
        while True:
            end = position + self._needed - len(self._bytes)
            self._bytes += data[position:end]
            position = min(end, len(data))
            if len(self._bytes) != HEADER_BYTES or self._needed != HEADER_BYTES:
                return position
            length = FRAME_HEADER.unpack_from(self._bytes)[0] >> 8
            if length == 0:
                return position
            self.check_length(length)
            self._needed += length

    def check_length(self, length: int) -> None:
        """Refuse a frame that is longer than allowed."""
        if length > self.payload_bytes_max:
            raise ConnectionFault(
                ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes is too long"
            )

    def take(self) -> bytes | None:
        """Return the frame once it is whole, and start afresh."""
        if len(self._bytes) < self._needed:
            return None
        whole = bytes(self._bytes)
        self._bytes = bytearray()
        self._needed = HEADER_BYTES
        return whole
