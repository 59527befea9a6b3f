"""Fairness between connections: who has sent a lot goes on in turns, and others come between."""

import asyncio
from collections import OrderedDict
from enum import Enum
from typing import Final, Protocol

from pydanube.runtime.clock import Clock

TURN_SECONDS: Final = 0.002
"""How long one connection may keep the event loop, give or take one step of its codec."""


class Pace(Enum):
    """How long all who go at the same pace wait between two turns that one of them gets."""

    STEADY = 0.0
    """The next turn is given when the event loop comes round."""
    PAUSING = 0.001
    """For those who cost others more than themselves: together they cost a part of a core."""
    TRICKLING = 0.005
    """For new calls of those who leave replies unread: just enough that nobody waits for ever."""


class Busy(Protocol):
    """Who has more to do than fits into a turn."""

    @property
    def pace(self) -> Pace:
        """Tell among whom it waits for its next turn."""

    def take_turn(self) -> bool:
        """Go on for a while; True when there is still more to do."""


class _Line:
    """Who waits at one pace, first come, first served."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.members: OrderedDict[Busy, None] = OrderedDict()
        self.is_due = False


class Turns:
    """Gives one of those who wait at a pace a turn, each time that pace allows.

    However many they are, whoever is not among them waits for one turn at most.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines = {pace: _Line(pace) for pace in Pace}
        self._places: dict[Busy, _Line] = {}

    def wait(self, busy: Busy) -> None:
        """Put somebody in line, if it is not in line at its present pace already."""
        line, place = self._lines[busy.pace], self._places.get(busy)
        if place is line:
            return
        if place is not None:
            del place.members[busy]
        line.members[busy] = None
        self._places[busy] = line
        self._come_round(line)

    def forget(self, busy: Busy) -> None:
        """Take somebody out of line who has nothing more to do."""
        line = self._places.pop(busy, None)
        if line is not None:
            del line.members[busy]

    def _come_round(self, line: _Line) -> None:
        if line.is_due or not line.members:
            return
        line.is_due = True
        if line.pace is Pace.STEADY:
            asyncio.get_running_loop().call_soon(self._give, line)
        else:
            self._clock.call_later(line.pace.value, lambda: self._give(line))

    def _give(self, line: _Line) -> None:
        line.is_due = False
        if line.members:
            busy, _ = line.members.popitem(last=False)
            del self._places[busy]
            if busy.take_turn():
                self.wait(busy)
        self._come_round(line)
