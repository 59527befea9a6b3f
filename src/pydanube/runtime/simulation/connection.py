"""Both ends of a connection between simulated hosts."""

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from typing_extensions import override

from pydanube.runtime.network import Connection
from pydanube.runtime.simulation.links import Links
from pydanube.runtime.simulation.stream import Notice, Piece, SimulatedStream

_PIECES_PER_WRITE_MAX = 3


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How much one direction holds, and how long it waits for a cut to be mended."""

    buffer_bytes: int
    stall_seconds: float


class SimulatedConnection(Connection):
    """One end. Bytes arrive in order, cut into other pieces than they were written in.

    `write` waits while more bytes than the buffer holds have not been read at the other end. What
    is written to an end that has closed or failed breaks the connection, one round trip later.
    """

    def __init__(
        self,
        links: Links,
        limits: ConnectionLimits,
        way: tuple[str, str],
        peer: str,
        finished: Callable[["SimulatedConnection"], None],
    ) -> None:
        self._randomness = links.randomness
        self._limits = limits
        self._peer = peer
        self._finished = finished
        self._other = self
        self.host, self.peer_host = way
        self._outgoing = SimulatedStream(
            links, way, limits.stall_seconds, self._pass_on, lambda: self.fail("no answer")
        )
        self._received = bytearray()
        self._ended = False
        self._closed = False
        self._failure: str | None = None
        self._changed = asyncio.Event()

    def join(self, other: "SimulatedConnection") -> None:
        """Make the two the ends of one connection."""
        self._other = other
        other._other = self

    @property
    @override
    def peer(self) -> str:
        return self._peer

    @override
    async def read(self, length_max: int) -> bytes:
        self._require_open()
        while not self._received and not self._ended and not self._closed:
            await self._wait_for_change()
        data = bytes(self._received[:length_max])
        del self._received[:length_max]
        # The bytes read make room for whoever writes at the other end.
        self._other._changed.set()
        return data

    @override
    async def write(self, data: bytes) -> None:
        self._require_open()
        for piece in self._cut_up(data):
            self._outgoing.send(piece)
        while self._unread_bytes() > self._limits.buffer_bytes and not self._closed:
            await self._wait_for_change()

    @override
    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._failure is None:
            self._outgoing.send(Notice.END)
        self._finish()
        await asyncio.sleep(0)

    def fail(self, reason: str) -> None:
        """Break this end; the other learns of it when it writes."""
        if self._failure is None and not self._closed:
            self._failure = reason
            self._finish()

    def break_both(self) -> None:
        """Break both ends at once and lose what is under way."""
        for end in (self, self._other):
            end._outgoing.abandon()
            end.fail("connection dropped")

    def die(self, last: Notice | None) -> None:
        """Break this end because its host died; `last` is what the other end still hears."""
        if last is None:
            self._outgoing.abandon()
        elif self._failure is None and not self._closed:
            self._outgoing.send(last)
        self.fail("this host died")

    def _cut_up(self, data: bytes) -> list[bytes]:
        """Cut at random places, so that nobody relies on the pieces that were written."""
        count = self._randomness.below(_PIECES_PER_WRITE_MAX) + 1
        places = sorted(self._randomness.below(len(data) + 1) for _ in range(count - 1))
        pieces = (data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True))
        return [piece for piece in pieces if piece]

    def _unread_bytes(self) -> int:
        return self._outgoing.bytes_under_way + len(self._other._received)

    def _pass_on(self, piece: Piece) -> None:
        self._other._receive(piece)

    def _receive(self, piece: Piece) -> None:
        if self._closed or self._failure is not None:
            if isinstance(piece, bytes):
                self._outgoing.send(Notice.RESET)
            return
        match piece:
            case bytes():
                self._received += piece
            case Notice.END:
                self._ended = True
            case Notice.RESET:
                self.fail("reset by the other end")
            case _:
                assert_never(piece)
        self._changed.set()

    def _finish(self) -> None:
        self._received.clear()
        self._changed.set()
        self._other._changed.set()
        self._finished(self)

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
        if self._failure is not None:
            raise self._broken()

    def _require_open(self) -> None:
        if self._closed:
            raise ConnectionError(f"the connection to {self._peer} has been closed here")
        if self._failure is not None:
            raise self._broken()

    def _broken(self) -> ConnectionResetError:
        return ConnectionResetError(errno.ECONNRESET, f"{self._failure} ({self._peer})")
