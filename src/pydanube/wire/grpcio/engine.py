"""Serves a handler table with `grpc.aio`, bytes in and bytes out."""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio
from typing_extensions import override

from pydanube.wire.calls import (
    Body,
    Call,
    CallRefused,
    ConnectionLimit,
    DirectHandler,
    Engine,
    ExchangeHandler,
    HandlerTable,
    Reply,
    Server,
    StatusCode,
    StreamHandler,
    UnaryHandler,
    whole,
)
from pydanube.wire.grpcio.codes import GRPC_CODES

# Far above every policy: a message that is too large must reach the policy and be refused there,
# because clients repeat for ever what grpc itself refuses. Still a bound on what one call can hold.
REQUEST_BYTES_MAX = 64 * 1024 * 1024
STREAMS_PER_CONNECTION_MAX = 10_000
CALLS_MAX = 50_000
# Percent-encoding makes twelve bytes of a character at worst, and clients drop 8 KiB of trailers.
TEXT_CHARACTERS_MAX = 600
UNEXPECTED = "the broker failed to carry out the call; its log says why"

_OPTIONS = (
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    # With it a second server could share the port in silence.
    ("grpc.so_reuseport", 0),
    # Clients may ping as often as they like.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    # A caller whose machine vanished is noticed within a minute.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)

_log = logging.getLogger(__name__)

# grpcio's classes are generic for the type checker only.
_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
_MethodHandler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"


class GrpcioEngine(Engine):
    """Carries calls with grpcio. A handler that fails unexpectedly fails its own call only."""

    @override
    async def serve(
        self,
        table: HandlerTable,
        host: str,
        port: int,
        connections: ConnectionLimit | None = None,
    ) -> "GrpcioServer":
        options = [*_OPTIONS]
        if connections is not None:
            options.append(("grpc.max_allowed_incoming_connections", connections.connections_max))
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=CALLS_MAX)
        server.add_generic_rpc_handlers((_TableHandler(table),))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound_port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(
                errno.EADDRINUSE, f"cannot listen on {address}: it is taken or not of this machine"
            ) from error
        await server.start()
        return GrpcioServer(server, bound_port)


class GrpcioServer(Server):
    """A started `grpc.aio` server."""

    def __init__(self, server: grpc.aio.Server, port: int) -> None:
        self._server = server
        self._port = port

    @property
    @override
    def port(self) -> int:
        return self._port

    @override
    async def stop(self, grace_seconds: float) -> None:
        await self._server.stop(grace_seconds)


class _TableHandler(grpc.GenericRpcHandler):
    """Finds the handler of a path; grpc answers UNIMPLEMENTED where there is none."""

    def __init__(self, table: HandlerTable) -> None:
        self._handlers: dict[str, _MethodHandler] = {
            **{path: _serve_unary(path, handler) for path, handler in table.unary.items()},
            **{path: _serve_direct(path, handler) for path, handler in table.direct.items()},
            **{path: _serve_stream(path, handler) for path, handler in table.streams.items()},
            **{path: _serve_exchange(path, handler) for path, handler in table.exchanges.items()},
        }

    @override
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "_MethodHandler | None":
        return self._handlers.get(handler_call_details.method)


def _serve_unary(path: str, handler: UnaryHandler) -> _MethodHandler:
    async def serve(request: bytes, context: _Context) -> bytes:
        try:
            return await handler(request, _call(path, context))
        except BaseException as error:  # noqa: BLE001 - The outermost frame of a call.
            refused = _refusal(path, error)
        return await _abort(context, refused)

    return grpc.unary_unary_rpc_method_handler(serve)


def _serve_direct(path: str, handler: DirectHandler) -> _MethodHandler:
    async def answer(request: bytes, call: Call) -> bytes:
        reply = _FutureReply()
        handler(request, call, reply)
        return await reply.answer

    return _serve_unary(path, answer)


def _serve_stream(path: str, handler: StreamHandler) -> _MethodHandler:
    async def serve(request: bytes, context: _Context) -> None:
        try:
            groups = await handler(request, _call(path, context))
            await _send_all(groups, context)
        except BaseException as error:  # noqa: BLE001 - The outermost frame of a call.
            refused = _refusal(path, error)
        else:
            return
        await _abort(context, refused)

    return grpc.unary_stream_rpc_method_handler(serve)


def _serve_exchange(path: str, handler: ExchangeHandler) -> _MethodHandler:
    async def serve(requests: AsyncIterator[bytes], context: _Context) -> None:
        try:
            groups = await handler(requests, _call(path, context))
            await _send_all(groups, context)
        except BaseException as error:  # noqa: BLE001 - The outermost frame of a call.
            refused = _refusal(path, error)
        else:
            return
        await _abort(context, refused)

    return grpc.stream_stream_rpc_method_handler(serve)


async def _send_all(groups: AsyncIterator[Sequence[Body]], context: _Context) -> None:
    try:
        # Some clients wait for headers before they do anything else.
        await context.send_initial_metadata(())
        async for group in groups:
            for response in group:
                await context.write(whole(response))
    except grpc.aio.InternalError as error:
        # All it ever means here is that the caller's connection broke while something was sent.
        raise CallRefused(StatusCode.CANCELLED, "the caller has gone away") from error
    finally:
        # An iterator need not be a generator; only one that can be closed is.
        close: Callable[[], Awaitable[None]] | None = getattr(groups, "aclose", None)
        if close is not None:
            await close()


class _FutureReply(Reply):
    """Turns the answer of a direct handler into something to wait for."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    @override
    def send(self, response: bytes) -> None:
        if not self.answer.done():
            self.answer.set_result(response)

    @override
    def refuse(self, code: StatusCode, text: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(CallRefused(code, text))


def _call(path: str, context: _Context) -> Call:
    metadata: Any = context.invocation_metadata() or ()  # The published types are too narrow.
    return Call(
        path=path,
        peer=context.peer(),
        metadata={name: value for name, value in metadata if isinstance(value, str)},
    )


def _refusal(path: str, error: BaseException) -> CallRefused:
    """Return how the call ends; raises `error` again when there is nobody left to tell."""
    match error:
        case CallRefused():
            return error
        case asyncio.CancelledError() if not _is_cancelled():
            # What the handler waited for was cancelled; the caller still waits for an answer.
            return CallRefused(StatusCode.UNAVAILABLE, "the broker gave the call up")
        case Exception():
            _log.error("unexpected error in %s", path, exc_info=error)
            return CallRefused(StatusCode.INTERNAL, UNEXPECTED)
        case _:
            raise error


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _abort(context: _Context, refused: CallRefused) -> NoReturn:
    await context.abort(GRPC_CODES[refused.code], refused.text[:TEXT_CHARACTERS_MAX])
