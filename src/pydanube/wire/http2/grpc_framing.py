"""gRPC upon HTTP/2: messages within DATA, compression, and the status at a call's end."""

import zlib
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from pydanube.wire.calls import Body, CallRefused, StatusCode, body_bytes
from pydanube.wire.http2.errors import ErrorCode
from pydanube.wire.http2.header_blocks import Field, encode_fields
from pydanube.wire.http2.limits import KIB, MIB

PREFIX: Final = Struct(">BI")
"""Whether the message is compressed, and its length."""
PREFIX_BYTES: Final = 5

IDENTITY: Final = b"identity"
GZIP: Final = b"gzip"
ACCEPTED_ENCODINGS: Final = b"identity,gzip"

VIEW_OF_MANY_MAX: Final = 4
"""How many times its own length a piece of an unfinished message may keep in memory."""
NOT_COPIED_BYTES_MIN: Final = 16 * KIB
"""From here another piece for the kernel is cheaper than a copy."""

IN_PLACE_BYTES_MIN: Final = 256 * KIB
"""From here a message may get memory of its own, into which it is received."""

RATIO_IS_JUDGED_ABOVE_BYTES: Final = MIB
_UNPACK_STEP_BYTES: Final = 64 * 1024

# RFC 3986 would let more pass; the gRPC specification names exactly the printable ASCII but "%".
_PRINTABLE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if code != 0x25)
_STATUS_TEXT_BYTES_MAX: Final = 2048


def message_pieces(messages: Sequence[Body]) -> list[bytes | memoryview]:
    """Return the messages one after another, uncompressed, each behind its prefix.

    They come in pieces: small bytes are joined, large ones stay what they are.
    """
    pieces: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    for message in messages:
        small.append(PREFIX.pack(0, body_bytes(message)))
        for part in (message,) if isinstance(message, bytes) else message:
            if len(part) < NOT_COPIED_BYTES_MIN:
                small.append(part)
            else:
                if small:
                    pieces.append(b"".join(small))
                    small.clear()
                pieces.append(part)
    joined = b"".join(small)
    if joined:
        pieces.append(joined)
    return pieces


class MessageReader:
    """Puts the messages of one direction of a call together from pieces of any size.

    It holds at most one message, never longer than `message_bytes_max`, and gives each away as
    soon as it is whole. A message that is too long, or cannot be unpacked, raises CallRefused.

    With `allocate`, a long message lies in memory of its own from its first byte on, if it is given
    some. `room` tells where its next bytes belong: whoever puts them there saves a copy.
    """

    __slots__ = (
        "_allocate",
        "_body",
        "_body_bytes",
        "_compressed",
        "_encoding",
        "_limits",
        "_memory",
        "_missing",
        "_prefix",
    )

    def __init__(
        self,
        encoding: bytes,
        message_bytes_max: int,
        unpacked_ratio_max: int,
        allocate: Callable[[int], memoryview | None] | None = None,
    ) -> None:
        self._encoding = encoding
        self._limits = message_bytes_max, unpacked_ratio_max
        self._allocate = allocate
        self._memory: memoryview | None = None
        self._prefix = bytearray()
        self._body: list[bytearray | memoryview] = []
        self._body_bytes = 0
        self._missing: int | None = None
        self._compressed = False

    @property
    def held_bytes(self) -> int:
        """How much of an unfinished message is here."""
        return len(self._prefix) + self._body_bytes

    @property
    def missing_bytes(self) -> int:
        """How much of the message that has begun is known to be missing."""
        return self._missing or 0

    @property
    def is_within_long_message(self) -> bool:
        """Tell whether the message that has begun lies in memory of its own."""
        return self._memory is not None

    def room(self, count: int) -> memoryview | None:
        """Return where the next `count` bytes belong, as far as they are of this message."""
        if self._memory is None:
            return None
        return self._memory[self._body_bytes : self._body_bytes + count]

    def feed(self, data: bytes, start: int, end: int) -> list[Body]:
        """Take one piece and return the messages it completes, long ones in their pieces."""
        messages: list[Body] = []
        view = memoryview(data)
        while start < end:
            if self._missing is None:
                start = self._feed_prefix(data, start, end)
            elif self._missing <= end - start and not self._body_bytes:
                # All of it is here: it need not be gathered first.
                messages.append(self._unpacked(data[start : start + self._missing]))
                start += self._missing
                self._missing = None
            else:
                taken = min(self._missing, end - start)
                self._keep(view, start, start + taken)
                self._missing -= taken
                start += taken
            if self._missing == 0:
                messages.append(self._take())
        return messages

    def _feed_prefix(self, data: bytes, start: int, end: int) -> int:
        taken = min(PREFIX_BYTES - len(self._prefix), end - start)
        self._prefix += data[start : start + taken]
        if len(self._prefix) == PREFIX_BYTES:
            flag, length = PREFIX.unpack(self._prefix)
            self._prefix.clear()
            if flag > 1:
                raise CallRefused(StatusCode.INTERNAL, f"a message has the unknown flag {flag}")
            if length > self._limits[0]:
                raise too_long(length, self._limits[0])
            self._compressed = flag == 1
            self._missing = length
            is_whole = length <= end - start - taken
            if self._allocate and length >= IN_PLACE_BYTES_MIN and not (flag or is_whole):
                self._memory = self._allocate(length)
        return start + taken

    def _keep(self, view: memoryview, start: int, end: int) -> None:
        piece = view[start:end]
        at = self._body_bytes
        self._body_bytes += len(piece)
        if self._memory is not None:
            if view.obj is not self._memory.obj:  # Otherwise it is there already.
                self._memory[at : self._body_bytes] = piece
            return
        # A view keeps all of what was read in memory, so it must be a good part of that.
        if len(piece) >= max(NOT_COPIED_BYTES_MIN, len(view) // VIEW_OF_MANY_MAX):
            self._body.append(piece)
        elif self._body and isinstance(self._body[-1], bytearray):
            self._body[-1] += piece
        else:
            self._body.append(bytearray(piece))

    def _take(self) -> Body:
        body, self._body = self._body, []
        memory, self._memory = self._memory, None
        self._body_bytes = 0
        self._missing = None
        if memory is not None:
            return (memory,)
        if self._compressed or len(body) < 2:
            return self._unpacked(b"".join(body))
        return tuple(bytes(part) if isinstance(part, bytearray) else part for part in body)

    def _unpacked(self, body: bytes) -> bytes:
        if not self._compressed:
            return body
        if self._encoding != GZIP:
            raise CallRefused(StatusCode.INTERNAL, "a compressed message names no grpc-encoding")
        return unpack(body, *self._limits)


def too_long(length: int, length_max: int) -> CallRefused:
    """Return the refusal of a message by its size.

    It is INVALID_ARGUMENT, because existing clients repeat RESOURCE_EXHAUSTED for ever.
    """
    return CallRefused(
        StatusCode.INVALID_ARGUMENT,
        f"a message of {length} bytes is too long; the limit is {length_max}",
    )


def unpack(packed: bytes | bytearray, length_max: int, ratio_max: int) -> bytes:
    """Return what a gzip member holds, stopping as soon as it exceeds either limit."""
    budget = min(length_max, max(RATIO_IS_JUDGED_ABOVE_BYTES, len(packed) * ratio_max))
    machine = zlib.decompressobj(wbits=31)
    unpacked = bytearray()
    rest: bytes | bytearray = packed
    try:
        while not machine.eof:
            piece = machine.decompress(rest, _UNPACK_STEP_BYTES)
            rest = machine.unconsumed_tail
            unpacked += piece
            if len(unpacked) > budget:
                raise CallRefused(
                    StatusCode.INVALID_ARGUMENT,
                    f"a compressed message expands beyond {budget} bytes",
                )
            if not piece and not rest:
                break
    except zlib.error:
        raise CallRefused(StatusCode.INTERNAL, "a message cannot be decompressed") from None
    if not machine.eof or machine.unused_data:
        raise CallRefused(StatusCode.INTERNAL, "a compressed message is cut or continued")
    return bytes(unpacked)


def status_fields(code: StatusCode, text: str) -> list[Field]:
    """Return the trailers that end a call."""
    fields: list[Field] = [(b"grpc-status", b"%d" % code)]
    if text:
        fields.append((b"grpc-message", write_status_text(text)))
    return fields


def write_status_text(text: str) -> bytes:
    """Return `text` percent-encoded as gRPC asks, shortened if it is very long."""
    data = text.encode("utf-8", "replace")[:_STATUS_TEXT_BYTES_MAX]
    data = data.decode("utf-8", "ignore").encode()  # A character cut in half is left out.
    written = quote_from_bytes(data, safe=_PRINTABLE)
    # A header value neither begins nor ends with a space.
    if written.startswith(" "):
        written = "%20" + written[1:]
    if written.endswith(" "):
        written = written[:-1] + "%20"
    return written.encode("ascii")


def read_status_text(value: bytes) -> str:
    """Return the text of a grpc-message, whatever it holds."""
    return unquote_to_bytes(value).decode("utf-8", "replace")


def read_status_code(value: bytes) -> StatusCode:
    """Return the code of a grpc-status; UNKNOWN when it is not one."""
    try:
        return StatusCode(int(value))
    except ValueError:
        return StatusCode.UNKNOWN


def status_of_http(http_status: int) -> StatusCode:
    """Return what an HTTP status without grpc-status means to a caller."""
    match http_status:
        case 400:
            return StatusCode.INTERNAL
        case 401:
            return StatusCode.UNAUTHENTICATED
        case 403:
            return StatusCode.PERMISSION_DENIED
        case 404:
            return StatusCode.UNIMPLEMENTED
        case 429 | 502 | 503 | 504:
            return StatusCode.UNAVAILABLE
        case _:
            return StatusCode.UNKNOWN


def status_of_reset(code: int) -> StatusCode:
    """Return what a reset stream means to a caller."""
    match code:
        case ErrorCode.REFUSED_STREAM:
            return StatusCode.UNAVAILABLE
        case ErrorCode.CANCEL:
            return StatusCode.CANCELLED
        case ErrorCode.ENHANCE_YOUR_CALM:
            return StatusCode.RESOURCE_EXHAUSTED
        case ErrorCode.INADEQUATE_SECURITY:
            return StatusCode.PERMISSION_DENIED
        case _:
            return StatusCode.INTERNAL


RESPONSE_BLOCK: Final = encode_fields(
    [(b":status", b"200"), (b"content-type", b"application/grpc")]
)
OK_BLOCK: Final = encode_fields([(b"grpc-status", b"0")])


def refusal_block(code: StatusCode, text: str) -> bytes:
    """Return the block of an answer that is a refusal and nothing else (trailers-only)."""
    return RESPONSE_BLOCK + encode_fields(status_fields(code, text))


def trailer_block(code: StatusCode, text: str) -> bytes:
    """Return the block that ends an answer that has begun."""
    return encode_fields(status_fields(code, text)) if code or text else OK_BLOCK
