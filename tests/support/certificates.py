"""Certificates for tests, signed by authorities of their own."""

import shutil
import subprocess
from pathlib import Path

from pydanube.runtime.system_files import SystemFiles
from pydanube.wire.http2.tls import TlsFiles, TlsPaths

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


class Authority:
    """Signs certificates for localhost."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.certificate = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        openssl(
            *[
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
            ],
            *("-subj", f"/CN={name}", "-keyout", self._key, "-out", self.certificate),
        )

    def sign(self, name: str) -> tuple[Path, Path]:
        """Return the paths of a new certificate and its key."""
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        request, extra = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extra.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        openssl(
            *("req", *NEW_KEY),
            *("-subj", f"/CN={name}", "-keyout", key, "-out", request),
        )
        openssl(
            *("x509", "-req", "-in", request, "-days", "2", "-extfile", extra),
            *("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial", "-out", certificate),
        )
        return certificate, key


class Installed:
    """The files a server reads, in a folder of their own."""

    def __init__(self, folder: Path, *, clients: Authority | None = None) -> None:
        self.certificate, self.key = folder / "server.pem", folder / "server.key"
        self.clients = folder / "clients.pem" if clients else None
        if clients and self.clients:
            shutil.copy(clients.certificate, self.clients)

    def put(self, certificate: Path, key: Path) -> None:
        shutil.copy(certificate, self.certificate)
        shutil.copy(key, self.key)

    def files(self) -> TlsFiles:
        paths = TlsPaths(
            certificate=str(self.certificate),
            key=str(self.key),
            client_authorities=None if self.clients is None else str(self.clients),
        )
        return TlsFiles(SystemFiles(), paths)
