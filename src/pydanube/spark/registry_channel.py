"""Calls to the registry with the credentials that the options of the data source name."""

import ssl
from collections.abc import AsyncIterator, Callable, Mapping

from typing_extensions import override

from pydanube.client.client import http2_channel, with_scheme
from pydanube.errors import InvalidRequest
from pydanube.spark.brokers import credentials_of
from pydanube.spark.options import Access
from pydanube.wire.calls import Body, ExchangeChannel
from pydanube.wire.flight.blocking import Credentials
from pydanube.wire.http2.channel import Http2Channel


def channels_of(access: Access) -> Callable[[str], ExchangeChannel]:
    """Return what opens channels: as plain as the address, or over TLS where options ask for it.

    Addresses that brokers name are called the same way, whatever they begin with.
    """
    credentials = credentials_of(access)
    if not credentials.need_tls:
        return http2_channel
    context = _context(access, credentials)

    def opened(url: str) -> ExchangeChannel:
        rest = with_scheme(url).partition("://")[2]
        channel = Http2Channel(f"https://{rest}", tls=context)
        return _Authorized(channel, credentials.token) if credentials.token else channel

    return opened


def _context(access: Access, credentials: Credentials) -> ssl.SSLContext:
    authorities = credentials.tls_ca.decode() if credentials.tls_ca is not None else None
    try:
        context = ssl.create_default_context(cadata=authorities)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if access.tls_cert is not None:
            context.load_cert_chain(access.tls_cert, access.tls_key)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidRequest(
            f"options tlsCa, tlsCert and tlsKey name no certificates that fit together: {error}"
        ) from None
    return context


class _Authorized(ExchangeChannel):
    """A channel whose calls carry a token."""

    def __init__(self, channel: ExchangeChannel, token: str) -> None:
        self._channel = channel
        self._shown = {"authorization": f"Bearer {token}"}

    @override
    async def unary(
        self,
        path: str,
        request: bytes,
        *,
        metadata: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> bytes:
        shown = {**(metadata or {}), **self._shown}
        return await self._channel.unary(
            path, request, metadata=shown, timeout_seconds=timeout_seconds
        )

    @override
    def stream(
        self, path: str, request: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> AsyncIterator[bytes]:
        return self._channel.stream(path, request, metadata={**(metadata or {}), **self._shown})

    @override
    def exchange(
        self,
        path: str,
        requests: AsyncIterator[Body],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[bytes]:
        return self._channel.exchange(path, requests, metadata={**(metadata or {}), **self._shown})

    @override
    async def close(self) -> None:
        await self._channel.close()
