"""What both drivers need of an asyncio transport."""

import asyncio
import contextlib
import socket
import struct
from typing import Any, Final

from pydanube.wire.http2.limits import KIB

TRANSPORT_BYTES_MAX: Final = 64 * KIB
"""When more waits for the kernel, no more is given to the transport."""
_JOINED_BYTES_MAX: Final = 64 * KIB
"""Up to here one copy is cheaper than handing the kernel many pieces."""
_PIECE_BYTES_MIN: Final = 4 * KIB
"""Pieces that are smaller on average are joined, however many there are."""

UNSENT_BYTES_MAX: Final = 128 * KIB
"""What the kernel may keep beyond what is under way: of a peer that does not read it would keep
megabytes, each the work of many calls."""
_NOTSENT_LOWAT: Final = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_TCP_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)
_LINGER_NOT: Final = struct.pack("ii", 1, 0)

_NAMES: Final = ("DNS", "URI")
"""The kinds of other names in a certificate that may stand for a caller; addresses may not."""


def configure(transport: asyncio.Transport) -> None:
    """Bound what waits to be sent. The socket has TCP_NODELAY from the event loop."""
    transport.set_write_buffer_limits(high=TRANSPORT_BYTES_MAX, low=TRANSPORT_BYTES_MAX)
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in _TCP_FAMILIES and _NOTSENT_LOWAT is not None:
        connection.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, UNSENT_BYTES_MAX)


def write_all(transport: asyncio.Transport, pieces: list[bytes | memoryview]) -> None:
    """Write the pieces in order."""
    size = sum(map(len, pieces))
    if size <= max(_JOINED_BYTES_MAX, len(pieces) * _PIECE_BYTES_MIN):
        transport.write(b"".join(pieces))
    else:
        transport.writelines(pieces)


def drop(transport: asyncio.Transport) -> None:
    """Close at once, and have the kernel forget what the peer has not read.

    Otherwise it would keep that for as long as the peer answers, which costs an attacker nothing.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):  # It may be closed already.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
    transport.abort()


def say_farewell(transport: asyncio.Transport) -> None:
    """Close our side; the other is left to the peer, until it has read why."""
    if transport.is_closing():
        return
    # Closing both at once would make the kernel drop what the peer has not read yet.
    if not transport.can_write_eof():
        transport.close()
        return
    try:
        transport.write_eof()
    except OSError:
        # The peer went away in this very moment, and the event loop has yet to say so.
        transport.abort()


def peer_name(transport: asyncio.Transport) -> tuple[str, str]:
    """Name the other end as gRPC does, and its address alone."""
    name = transport.get_extra_info("peername")
    if isinstance(name, tuple) and len(name) == 4:
        return f"ipv6:[{name[0]}]:{name[1]}", name[0]
    if isinstance(name, tuple):
        return f"ipv4:{name[0]}:{name[1]}", name[0]
    return "unknown", "unknown"


def speaks_http2(transport: asyncio.Transport) -> bool:
    """Tell whether both ends agreed on HTTP/2; without TLS there is nothing to agree on."""
    tls = transport.get_extra_info("ssl_object")
    return tls is None or tls.selected_alpn_protocol() == "h2"


def certificate_names(transport: asyncio.Transport) -> tuple[str, ...]:
    """Return whom the peer's verified certificate names, its subject first; nobody without one."""
    tls = transport.get_extra_info("ssl_object")
    certificate: dict[str, Any] = {} if tls is None else tls.getpeercert() or {}
    subject = [
        value
        for relative_name in certificate.get("subject", ())
        for kind, value in relative_name
        if kind == "commonName"
    ]
    others = [value for kind, value in certificate.get("subjectAltName", ()) if kind in _NAMES]
    return tuple(dict.fromkeys((*subject, *others)))
