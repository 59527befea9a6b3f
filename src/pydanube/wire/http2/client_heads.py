"""What the header blocks of a reply mean: its beginning, its end, or both at once."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from pydanube.wire.calls import StatusCode
from pydanube.wire.http2.grpc_framing import (
    GZIP,
    IDENTITY,
    read_status_code,
    read_status_text,
    status_of_http,
)
from pydanube.wire.http2.header_blocks import Field
from pydanube.wire.http2.requests import MalformedHeaders, is_grpc_content, split_fields

_REPLY_PSEUDO: Final = frozenset([b":status"])


class ReplyHead(Struct, frozen=True, kw_only=True):
    """One header block of a reply."""

    http_status: int | None
    """None in trailers."""
    encoding: bytes
    code: StatusCode | None
    """How the call ended, if the block says so, or if what it says can only mean its end."""
    text: str

    @property
    def is_interim(self) -> bool:
        """Tell a 1xx answer, after which the real one follows."""
        return self.http_status is not None and self.http_status < 200


def read_reply(fields: Sequence[Field]) -> ReplyHead:
    """Return what a block says, or raise MalformedHeaders."""
    pseudo, regular = split_fields(fields, _REPLY_PSEUDO)
    status = pseudo.get(b":status")
    if status is not None and not (status.isdigit() and len(status) == 3):
        raise MalformedHeaders(":status is not a status")
    known = dict(regular)
    http_status = None if status is None else int(status)
    code, text = _ending(http_status, known)
    return ReplyHead(
        http_status=http_status,
        encoding=known.get(b"grpc-encoding", IDENTITY),
        code=code,
        text=text,
    )


def _ending(http_status: int | None, known: dict[bytes, bytes]) -> tuple[StatusCode | None, str]:
    if b"grpc-status" in known:
        text = read_status_text(known.get(b"grpc-message", b""))
        return read_status_code(known[b"grpc-status"]), text
    if http_status is None or http_status < 200:
        return None, ""
    if http_status != 200:
        return status_of_http(http_status), f"the server answered with HTTP status {http_status}"
    if not is_grpc_content(known.get(b"content-type", b"")):
        return StatusCode.UNKNOWN, "the server does not speak gRPC"
    if known.get(b"grpc-encoding", IDENTITY) not in (IDENTITY, GZIP):
        return StatusCode.INTERNAL, "the reply is compressed in an unknown way"
    return None, ""
