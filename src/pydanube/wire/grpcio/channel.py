"""Calls a broker with `grpc.aio`, bytes in and bytes out."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from typing_extensions import override

from pydanube.errors import InvalidRequest, NotSupported
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.calls import Body, CallRefused, ExchangeChannel, StatusCode, whole

if TYPE_CHECKING:
    import grpc.aio

RESPONSE_BYTES_MAX = 64 * 1024 * 1024

_OPTIONS = (
    ("grpc.max_receive_message_length", RESPONSE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    # grpcio would share one connection among all channels to an address.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    # A restarted broker is found again within a second, not within two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A broker whose machine vanished is noticed within a minute.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
)

# How the texts begin that grpcio itself writes when there is no connection; it marks them by
# nothing else, and what a server wrote must stay as it is.
_NOT_REACHED = ("failed to connect", "errors resolving", "DNS resolution failed")


# What grpcio writes itself when the server ended a call that was being written to.
_WRITTEN_TOO_LATE = "Internal error from Core"


class GrpcioChannel(ExchangeChannel):
    """One connection to `url`, http://host:port or host:port, made by the first call.

    grpcio itself is loaded by the first call too.
    """

    def __init__(self, url: str) -> None:
        self._address = _address_of(url)
        self._channel: grpc.aio.Channel | None = None
        self._closed = False

    @override
    async def unary(
        self,
        path: str,
        request: bytes,
        *,
        metadata: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> bytes:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._open().unary_unary(path)
        with self._refusals():
            return await method(request, metadata=_pairs(metadata), timeout=timeout_seconds)

    @override
    async def stream(
        self, path: str, request: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> AsyncIterator[bytes]:
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._open().unary_stream(path)
        call = method(request, metadata=_pairs(metadata))
        try:
            with self._refusals():
                async for response in call:
                    yield response
        finally:
            call.cancel()

    @override
    async def exchange(
        self,
        path: str,
        requests: AsyncIterator[Body],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[bytes]:
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._open().stream_stream(path)
        call = method(metadata=_pairs(metadata))
        # grpcio itself would wait for the next request for ever once a call was refused.
        sending = TaskScope(lambda name, error: None)  # The call tells its reader what failed.
        sending.start(_send(call, requests), f"send to {path}")
        try:
            with self._refusals():
                async for response in call:
                    yield response
        finally:
            call.cancel()
            await sending.close()

    @override
    async def close(self) -> None:
        self._closed = True
        if self._channel is not None:
            await self._channel.close(grace=None)

    def _open(self) -> "grpc.aio.Channel":
        if self._closed:
            raise _closed_refusal()
        if self._channel is None:
            import grpc.aio  # Here, because loading it takes a tenth of a second.

            self._channel = grpc.aio.insecure_channel(self._address, options=_OPTIONS)
        return self._channel

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Turn what grpcio raises into CallRefused; the caller's own cancellation stays one."""
        from grpc.aio import AioRpcError

        from pydanube.wire.grpcio.codes import OUR_CODES

        try:
            yield
        except asyncio.CancelledError as error:
            if not self._closed or _is_cancelled():
                raise
            raise _closed_refusal() from error
        except AioRpcError as error:
            code, text = OUR_CODES[error.code()], error.details() or ""
            if code is StatusCode.INTERNAL and text == _WRITTEN_TOO_LATE:
                # The refusal itself is lost; whoever asks again hears it.
                code, text = StatusCode.UNAVAILABLE, "the call ended while it was written to"
            if code is StatusCode.UNAVAILABLE and text.startswith(_NOT_REACHED):
                text = f"cannot reach {self._address}: {text}"
            raise CallRefused(code, text) from error


async def _send(
    call: "grpc.aio.StreamStreamCall[bytes, bytes]", requests: AsyncIterator[Body]
) -> None:
    """Write requests until there are no more, or the call is over; its reader is told why."""
    from grpc.aio import AioRpcError

    try:
        async for request in requests:
            await call.write(whole(request))
        await call.done_writing()
    except (AioRpcError, asyncio.InvalidStateError):
        return
    except BaseException:
        call.cancel()
        raise


def _address_of(url: str) -> str:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme == "https":
        raise NotSupported(f"{url}: TLS is not supported yet, use http://")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme != "http" or not host or not port or parts.path not in {"", "/"}:
        raise InvalidRequest(f"broker address {url!r} must have the form http://host:port")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _pairs(metadata: Mapping[str, str] | None) -> list[tuple[str, str | bytes]]:
    return list(metadata.items()) if metadata else []


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _closed_refusal() -> CallRefused:
    return CallRefused(StatusCode.CANCELLED, "the channel was closed")
