"""Byte streams between processes, as the rest of PyDanube may know them."""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

LISTEN_BACKLOG: Final = 32
"""How many connections may wait to be accepted."""


class Connection(Protocol):
    """An ordered, reliable stream of bytes, until it breaks (ConnectionError)."""

    @property
    def peer(self) -> str:
        """Name the other end, host:port; unique among open connections."""

    async def read(self, length_max: int) -> bytes:
        """Wait for bytes and return some; empty once the other end has closed."""

    async def write(self, data: bytes) -> None:
        """Send; waits while the other end does not keep up."""

    async def close(self) -> None:
        """End the stream."""


class Listener(Protocol):
    """A port that accepts connections."""

    @property
    def port(self) -> int:
        """The port in use, also when 0 was asked for."""

    async def close(self) -> None:
        """Accept no more. Open connections stay."""


class Network(Protocol):
    """How processes reach each other."""

    async def listen(
        self, host: str, port: int, serve: Callable[[Connection], Awaitable[None]]
    ) -> Listener:
        """Accept connections and run `serve` for each until it returns."""

    async def connect(self, host: str, port: int) -> Connection:
        """Open a connection (ConnectionError when nobody listens)."""
