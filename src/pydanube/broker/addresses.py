"""Where the broker listens, and the URLs under which it tells clients to find it."""

from ipaddress import ip_address
from urllib.parse import urlsplit

from msgspec import Struct
from typing_extensions import override

from pydanube.broker.errors import InvalidConfig

_SCHEMES = ("http", "https")


class Address(Struct, frozen=True):
    """An IP address and a port to listen on; port 0 takes any free one."""

    host: str
    port: int

    @override
    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return ip_address(self.host).is_loopback


class AdvertisedUrls(Struct, frozen=True):
    """What a topic lookup answers with."""

    broker_url: str
    """Names this broker among brokers."""
    connect_url: str
    """Where clients connect to."""

    @property
    def proxy(self) -> bool:
        """Whether clients reach the broker through something that routes by its `broker_url`."""
        return self.broker_url != self.connect_url


def check_bind_host(host: str, setting: str) -> str:
    """Return `host` if it is an IP address; names are not resolved, for they may change."""
    try:
        ip_address(host)
    except ValueError:
        raise InvalidConfig(
            f"{setting} must be an IP address such as 127.0.0.1, not {host!r}"
        ) from None
    return host


def parse_address(text: str, setting: str) -> Address:
    """Read `127.0.0.1:6650` or `[::1]:6650`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidConfig(f"{setting} must have the form 127.0.0.1:6650, not {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return Address(check_bind_host(host, setting), int(port))


def check_url(text: str, setting: str) -> str:
    """Return a URL every Danube client can use: with scheme, reachable host and port.

    Wildcard addresses reach nothing from elsewhere, and a host with an underscore is no host to
    Java's URI parser.
    """
    malformed = InvalidConfig(f"{setting} must have the form http://host:6650, not {text!r}")
    try:
        url = urlsplit(text if "://" in text else f"http://{text}")
        host, port = url.hostname or "", url.port
    except ValueError:
        raise malformed from None
    if url.scheme not in _SCHEMES or not host or not port or url.path.strip("/") or url.query:
        raise malformed
    if _is_wildcard(host):
        raise InvalidConfig(
            f"{setting} cannot be {text!r}: clients cannot connect to a wildcard address; name a "
            "host or address they can reach"
        )
    if "_" in host:
        raise InvalidConfig(
            f"{setting} cannot be {text!r}: Java clients do not accept a host name with '_'"
        )
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"


def default_url(address: Address) -> str:
    """Derive the URL to advertise from the address the broker listens on."""
    if _is_wildcard(address.host):
        raise InvalidConfig(
            f"the broker listens on {address}, a wildcard address that clients cannot connect to; "
            "set broker.advertised_listeners.broker_url (or --advertised-addr) to an address they "
            "can reach"
        )
    return f"http://{address}"


def url_beside(address: Address, broker_url: str) -> str:
    """Return the URL of another port of the broker, reachable under the host of its first one."""
    if not _is_wildcard(address.host):
        return f"http://{address}"
    return f"http://{Address(urlsplit(broker_url).hostname or '', address.port)}"


def _is_wildcard(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
