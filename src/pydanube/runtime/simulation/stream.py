"""One direction of a simulated connection: pieces that arrive in order, or not at all."""

import asyncio
import enum
from collections import deque
from collections.abc import Callable

from typing_extensions import override

from pydanube.runtime.simulation.links import Links, Traffic


class Notice(enum.Enum):
    """What travels besides bytes."""

    END = enum.auto()
    RESET = enum.auto()


Piece = bytes | Notice


class SimulatedStream(Traffic):
    """Carries pieces over one way.

    Pieces held up by a cut go on when it is mended. If that takes more than `stall_seconds`, the
    sender gives up: it loses what is under way, and the receiver learns of it once it can.
    """

    def __init__(
        self,
        links: Links,
        way: tuple[str, str],
        stall_seconds: float,
        arrived: Callable[[Piece], None],
        given_up: Callable[[], None],
    ) -> None:
        self._links = links
        self._way = way
        self._stall_seconds = stall_seconds
        self._arrived = arrived
        self._given_up = given_up
        self._pieces: deque[tuple[float, Piece]] = deque()
        self._arrival: asyncio.TimerHandle | None = None
        self._giving_up: asyncio.TimerHandle | None = None
        self._stalled = False
        self._gave_up = False
        self.bytes_under_way = 0

    @property
    @override
    def source(self) -> str:
        return self._way[0]

    def send(self, piece: Piece) -> None:
        """Put a piece on its way, behind those that left before."""
        self._pieces.append((self._draw_due(), piece))
        if isinstance(piece, bytes):
            self.bytes_under_way += len(piece)
        self._links.traffic[self] = None
        self._await_arrival()

    @override
    def abandon(self) -> None:
        self._pieces.clear()
        self._links.traffic.pop(self, None)
        self.bytes_under_way = 0
        self._stalled = False
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None
        self._forget_giving_up()

    @override
    def resume(self) -> None:
        if not self._stalled:
            return
        self._stalled = False
        _, first = self._pieces.popleft()
        self._pieces.appendleft((self._draw_due(), first))
        self._await_arrival()

    def _draw_due(self) -> float:
        """Return when a piece arrives that leaves now, unless an earlier one holds it up."""
        return asyncio.get_running_loop().time() + self._links.draw_delay(*self._way)

    def _await_arrival(self) -> None:
        if self._arrival is None and not self._stalled:
            loop = asyncio.get_running_loop()
            self._arrival = loop.call_at(self._pieces[0][0], self._arrive)

    def _arrive(self) -> None:
        self._arrival = None
        if self._links.blocked(*self._way):
            self._stall()
            return
        self._forget_giving_up()
        _, piece = self._pieces.popleft()
        if isinstance(piece, bytes):
            self.bytes_under_way -= len(piece)
        if self._pieces:
            self._await_arrival()
        else:
            del self._links.traffic[self]
        self._arrived(piece)

    def _stall(self) -> None:
        self._stalled = True
        if self._giving_up is None and not self._gave_up:
            loop = asyncio.get_running_loop()
            self._giving_up = loop.call_later(self._stall_seconds, self._give_up)

    def _give_up(self) -> None:
        self._gave_up = True
        self.abandon()
        self.send(Notice.RESET)
        self._given_up()

    def _forget_giving_up(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
