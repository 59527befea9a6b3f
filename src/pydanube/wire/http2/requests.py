"""What the headers of a call mean: a request's head, or the reason it is malformed."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from pydanube.wire.http2.header_blocks import Field, encode_fields

_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE: Final = re.compile(rb"(?:[^\x00-\x20\x7f](?:[^\x00-\x08\x0a-\x1f\x7f]*[^\x00-\x20\x7f])?)?")
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_TIMEOUT_UNIT_MS: Final = {
    b"H": 3_600_000.0,
    b"M": 60_000.0,
    b"S": 1_000.0,
    b"m": 1.0,
    b"u": 1e-3,
    b"n": 1e-6,
}
_OF_THE_CONNECTION: Final = frozenset(
    [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"]
)
_REQUEST_PSEUDO: Final = frozenset([b":method", b":scheme", b":path", b":authority"])
_NOT_METADATA: Final = frozenset([b"te", b"content-type", b"content-length", b"host"])


class MalformedHeaders(Exception):
    """The headers break RFC 9113 section 8; the stream that brought them is reset."""


class RequestHead(Struct, frozen=True, kw_only=True):
    """What a request says before its message."""

    path: str
    is_grpc: bool
    """A POST of application/grpc. Anything else gets an answer for browsers, and nothing more."""
    metadata: Mapping[str, str]
    timeout_ms: float | None
    timeout_is_readable: bool
    encoding: bytes
    content_length: int | None


def read_request(fields: Sequence[Field]) -> RequestHead:
    """Return the head of a request, or raise MalformedHeaders."""
    pseudo, regular = split_fields(fields, _REQUEST_PSEUDO)
    method, path = pseudo.get(b":method"), pseudo.get(b":path")
    if not method or not path or not pseudo.get(b":scheme"):
        raise MalformedHeaders("a request needs :method, :scheme and :path")
    metadata: dict[str, str] = {}
    known: dict[bytes, bytes] = {}
    for name, value in regular:
        if name == b"te" and value != b"trailers":
            raise MalformedHeaders("te allows nothing but trailers")
        if name in _NOT_METADATA or name.startswith(b"grpc-"):
            if name == b"content-length" and known.get(name, value) != value:
                raise MalformedHeaders("content-length is given twice")
            known[name] = value
        elif not name.endswith(b"-bin"):
            key, text = name.decode("ascii"), value.decode("latin-1")
            metadata[key] = f"{metadata[key]},{text}" if key in metadata else text
    timeout = known.get(b"grpc-timeout")
    timeout_ms = None if timeout is None else read_timeout(timeout)
    return RequestHead(
        path=path.decode("latin-1"),
        is_grpc=method == b"POST" and is_grpc_content(known.get(b"content-type", b"")),
        metadata=metadata,
        timeout_ms=timeout_ms,
        timeout_is_readable=timeout is None or timeout_ms is not None,
        encoding=known.get(b"grpc-encoding", b"identity"),
        content_length=read_content_length(known.get(b"content-length")),
    )


def split_fields(
    fields: Sequence[Field], pseudo_names: frozenset[bytes]
) -> tuple[dict[bytes, bytes], list[Field]]:
    """Check every field; return the pseudo-headers and the others."""
    pseudo: dict[bytes, bytes] = {}
    regular: list[Field] = []
    for name, value in fields:
        if name.startswith(b":"):
            if regular or name in pseudo or name not in pseudo_names:
                raise MalformedHeaders("a pseudo-header is unknown, repeated or late")
            pseudo[name] = value
        elif _NAME.fullmatch(name) is None:
            raise MalformedHeaders("a header name holds what it must not")
        elif name in _OF_THE_CONNECTION:
            raise MalformedHeaders("a header concerns the connection")
        else:
            regular.append((name, value))
        if _VALUE.fullmatch(value) is None:
            raise MalformedHeaders("a header value holds what it must not")
    return pseudo, regular


def check_trailers(fields: Sequence[Field]) -> None:
    """Raise MalformedHeaders unless the fields may end a stream."""
    split_fields(fields, frozenset())


def is_grpc_content(content_type: bytes) -> bool:
    """Tell gRPC, in whatever message format, from anything else."""
    name = content_type.lower()
    return name == b"application/grpc" or name.startswith(
        (b"application/grpc+", b"application/grpc;")
    )


def read_content_length(value: bytes | None) -> int | None:
    """Return the number, or raise MalformedHeaders."""
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18:
        raise MalformedHeaders("content-length is not a number")
    return int(value)


def read_timeout(value: bytes) -> float | None:
    """Return a grpc-timeout in milliseconds; None when it cannot be read."""
    match = _TIMEOUT.fullmatch(value)
    return None if match is None else int(match[1]) * _TIMEOUT_UNIT_MS[match[2]]


def write_timeout(seconds: float) -> bytes:
    """Return a grpc-timeout of at least one unit, rounded up, in the finest unit that fits."""
    microseconds = max(1, math.ceil(seconds * 1_000_000))
    for unit, size in ((b"u", 1), (b"m", 1_000), (b"S", 1_000_000), (b"M", 60_000_000)):
        count = -(-microseconds // size)
        if count < 100_000_000:
            return b"%d%b" % (count, unit)
    return b"99999999H"


def request_block(
    *,
    scheme: bytes,
    authority: bytes,
    path: str,
    metadata: Mapping[str, str],
    timeout: bytes | None,
) -> bytes:
    """Return the header block of a call."""
    fields: list[Field] = [
        (b":method", b"POST"),
        (b":scheme", scheme),
        (b":path", path.encode("latin-1")),
        (b":authority", authority),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"pydanube"),
        (b"grpc-accept-encoding", b"identity,gzip"),
    ]
    if timeout is not None:
        fields.append((b"grpc-timeout", timeout))
    for name, value in metadata.items():
        field = name.lower().encode("ascii"), value.encode("latin-1")
        if _NAME.fullmatch(field[0]) is None or _VALUE.fullmatch(field[1]) is None:
            raise ValueError(f"metadata {name!r} cannot be sent")
        fields.append(field)
    return encode_fields(fields)
