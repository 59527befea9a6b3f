"""Where a broker is: the addresses a channel takes."""

from urllib.parse import urlsplit

from msgspec import Struct

from pydanube.errors import InvalidRequest


class Address(Struct, frozen=True):
    """A host and a port, and whether TLS is asked for."""

    host: str
    port: int
    tls: bool

    @property
    def authority(self) -> str:
        """Return host:port as headers and people write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(url: str) -> Address:
    """Return the address that http://host:port, https://host:port or host:port names."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme not in {"http", "https"} or not host or not port or parts.path not in {"", "/"}:
        raise InvalidRequest(
            f"broker address {url!r} must have the form http://host:port or https://host:port"
        )
    return Address(host=host, port=port, tls=parts.scheme == "https")
