"""TLS for servers: certificates that are renewed while the server runs."""

import ssl
from typing import Final

from msgspec import Struct

from pydanube.observability.logging import get_logger
from pydanube.runtime.files import Files, read_whole

REFRESH_SECONDS: Final = 10.0

_log = get_logger(__name__)


class TlsPaths(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the PEM files are."""

    certificate: str
    key: str
    client_authorities: str | None = None
    """Who signs client certificates; with it a client without one is turned away."""


class TlsFiles:
    """A server's TLS context, made of files and made anew when they change.

    A connection is served with what the files held when it began. Files that do not fit together,
    as between the writing of a certificate and of its key, leave the context as it was.
    """

    def __init__(self, files: Files, paths: TlsPaths) -> None:
        self._files = files
        self._paths = paths
        self._contents: list[bytes] = []
        self._current: ssl.SSLContext

    async def load(self) -> ssl.SSLContext:
        """Return the context to listen with (OSError or ssl.SSLError when that cannot be)."""
        self._contents = await self._read()
        self._current = self._build()
        front = self._build()
        front.sni_callback = self._serve_with_current
        return front

    async def refresh(self) -> bool:
        """Take changed files into use; False when nothing changed or they are not usable yet."""
        try:
            contents = await self._read()
            if contents == self._contents:
                return False
            self._current = self._build()
        except OSError as error:
            _log.warning("the TLS files cannot be used yet", reason=str(error))
            return False
        self._contents = contents
        _log.info("the TLS files have been renewed", certificate=self._paths.certificate)
        return True

    async def _read(self) -> list[bytes]:
        paths = [self._paths.certificate, self._paths.key, self._paths.client_authorities]
        return [await read_whole(self._files, path) for path in paths if path is not None]

    def _build(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._paths.certificate, self._paths.key)
        if self._paths.client_authorities is not None:
            context.load_verify_locations(self._paths.client_authorities)
            context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["h2"])
        return context

    def _serve_with_current(
        self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, front: ssl.SSLContext
    ) -> None:
        # Called for every handshake, with a name or without. It is the one moment at which a
        # listener that knows a single context can be given another.
        connection.context = self._current
