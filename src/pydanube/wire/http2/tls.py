"""TLS for servers, and for peers that are both: certificates renewed while they run."""

import ssl
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from typing_extensions import override

from pydanube.observability.logging import get_logger
from pydanube.runtime.files import Files, read_whole

REFRESH_SECONDS: Final = 10.0
FAILURES_TOLD_MAX: Final = 5
"""Handshakes that failed and are logged, between two looks at the files."""

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
        self._calling: ssl.SSLContext
        self._failures_told = 0

    async def load(self) -> ssl.SSLContext:
        """Return the context to listen with (OSError or ssl.SSLError when that cannot be)."""
        self._contents = await self._read()
        self._current = self._build()
        self._calling = self._build_calling()
        front = self._build()
        front.sni_callback = self._serve_with_current
        return front

    async def refresh(self) -> bool:
        """Take changed files into use; False when nothing changed or they are not usable yet."""
        self._failures_told = 0
        try:
            contents = await self._read()
            if contents == self._contents:
                return False
            current, calling = self._build(), self._build_calling()
            self._current, self._calling = current, calling
        except OSError as error:
            _log.warning("the TLS files cannot be used yet", reason=str(error))
            return False
        self._contents = contents
        _log.info("the TLS files have been renewed", certificate=self._paths.certificate)
        return True

    def calling(self) -> ssl.SSLContext:
        """Return the context to call others of its kind with, as the files are now.

        It shows the same certificate, and trusts those whom `client_authorities` signed.
        """
        return self._calling

    def _tell_failure(self, error: ssl.SSLError) -> None:
        self._failures_told += 1
        if self._failures_told <= FAILURES_TOLD_MAX:
            _log.warning("a connection was refused, as its TLS handshake failed", reason=str(error))

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
        context.sslobject_class = _told_handshake(self._tell_failure)
        return context

    def _build_calling(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._paths.client_authorities)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._paths.certificate, self._paths.key)
        return context

    def _serve_with_current(
        self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, front: ssl.SSLContext
    ) -> None:
        # Called for every handshake, with a name or without. It is the one moment at which a
        # listener that knows a single context can be given another.
        connection.context = self._current


def _told_handshake(tell: Callable[[ssl.SSLError], None]) -> type[ssl.SSLObject]:
    """Return a kind of TLS connection that says why its handshake failed; event loops do not."""

    class ToldHandshake(ssl.SSLObject):
        @override
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                tell(error)
                raise

    return ToldHandshake
