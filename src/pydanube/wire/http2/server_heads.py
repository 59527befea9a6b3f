"""What a request asks for, decided once for all requests with the same header block."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from pydanube.wire.calls import (
    Call,
    DirectHandler,
    ExchangeHandler,
    HandlerTable,
    StatusCode,
    StreamHandler,
    UnaryHandler,
)
from pydanube.wire.http2.grpc_framing import ACCEPTED_ENCODINGS, GZIP, IDENTITY, refusal_block
from pydanube.wire.http2.header_blocks import Field, encode_fields
from pydanube.wire.http2.requests import RequestHead, read_request


class Peer(Struct, frozen=True):
    """Who is at the other end of a connection; the fields mean what they mean in a Call."""

    name: str
    certificate_names: tuple[str, ...] = ()


class ServerHead(Struct, frozen=True, kw_only=True):
    """A request's call and its handler, or the answer it gets instead."""

    call: Call
    is_grpc: bool
    timeout_ms: float | None
    encoding: bytes
    content_length: int | None
    direct: DirectHandler | None = None
    unary: UnaryHandler | None = None
    stream: StreamHandler | None = None
    exchange: ExchangeHandler | None = None
    refusal: bytes | None = None
    """The header block of the answer, when no handler can give one."""


def head_builder(table: HandlerTable, peer: Peer) -> Callable[[Sequence[Field]], ServerHead]:
    """Return the function that makes heads for one connection."""

    def build(fields: Sequence[Field]) -> ServerHead:
        request = read_request(fields)
        path = request.path
        return ServerHead(
            call=Call(
                path=path,
                peer=peer.name,
                metadata=request.metadata,
                certificate_names=peer.certificate_names,
            ),
            is_grpc=request.is_grpc,
            timeout_ms=request.timeout_ms,
            encoding=request.encoding,
            content_length=request.content_length,
            direct=table.direct.get(path),
            unary=table.unary.get(path),
            stream=table.streams.get(path),
            exchange=table.exchanges.get(path) if request.is_grpc else None,
            refusal=_refusal(table, request),
        )

    return build


def _refusal(table: HandlerTable, request: RequestHead) -> bytes | None:
    path = request.path
    if not request.is_grpc:
        return None
    if not table.serves(path):
        return refusal_block(StatusCode.UNIMPLEMENTED, f"there is no method {path}")
    if request.encoding not in (IDENTITY, GZIP):
        encoding = request.encoding.decode("latin-1")
        accepted = encode_fields([(b"grpc-accept-encoding", ACCEPTED_ENCODINGS)])
        text = f"messages compressed by {encoding} are not accepted"
        return refusal_block(StatusCode.UNIMPLEMENTED, text) + accepted
    if not request.timeout_is_readable:
        return refusal_block(StatusCode.INVALID_ARGUMENT, "grpc-timeout cannot be read")
    return None
