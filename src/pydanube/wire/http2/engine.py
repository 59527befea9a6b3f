"""The engine that carries calls over HTTP/2 by itself."""

import ssl

from typing_extensions import override

from pydanube.runtime.clock import Clock, SystemClock
from pydanube.wire.calls import ConnectionLimit, Engine, HandlerTable
from pydanube.wire.http2.limits import Http2Limits, with_connections
from pydanube.wire.http2.server import Http2Server
from pydanube.wire.http2.tls import TlsFiles


class Http2Engine(Engine):
    """Serves handler tables, each on its own port, all with the same limits and certificate."""

    def __init__(
        self,
        *,
        limits: Http2Limits | None = None,
        clock: Clock | None = None,
        tls: ssl.SSLContext | TlsFiles | None = None,
    ) -> None:
        self._limits = limits or Http2Limits()
        self._clock = clock or SystemClock()
        self._tls = tls

    @override
    async def serve(
        self,
        table: HandlerTable,
        host: str,
        port: int,
        connections: ConnectionLimit | None = None,
    ) -> Http2Server:
        limits = self._limits
        if connections is not None:
            limits = with_connections(limits, connections)
        server = Http2Server(table, limits, self._clock)
        if isinstance(self._tls, TlsFiles):
            await server.listen(host, port, await self._tls.load())
            server.keep_fresh(self._tls)
        else:
            if self._tls is not None:
                self._tls.set_alpn_protocols(["h2"])
            await server.listen(host, port, self._tls)
        return server
