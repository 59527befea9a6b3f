"""Fairness between connections: who has sent a lot goes on in turns, and others come between."""

import asyncio
from collections import deque
from typing import Final, Protocol

from pydanube.runtime.clock import Clock

TURN_SECONDS: Final = 0.002
"""How long one connection may keep the event loop, give or take one step of its codec."""
PAUSE_SECONDS: Final = 0.001
"""Between two turns of those who impose, so that all of them together cost a part of a core."""


class Busy(Protocol):
    """Who has more to do than fits into a turn."""

    @property
    def imposes(self) -> bool:
        """Tell whether what it does costs others more than itself."""

    def take_turn(self) -> bool:
        """Go on for a while; True when there is still more to do."""


class Turns:
    """Gives one of those who wait a turn, each time the event loop comes round.

    However many they are, whoever is not among them waits for one turn at most. Those who impose
    wait in a line of their own, from which one is taken after each pause.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[Busy] = deque()
        self._imposing: deque[Busy] = deque()
        self._is_due = False
        self._is_pausing = False

    def wait(self, busy: Busy) -> None:
        """Put somebody in line who is not in it."""
        if busy.imposes:
            self._imposing.append(busy)
        else:
            self._waiting.append(busy)
        self._come_round()

    def _come_round(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._go_round)
        if self._imposing and not self._is_pausing:
            self._is_pausing = True
            self._clock.call_later(PAUSE_SECONDS, self._end_pause)

    def _go_round(self) -> None:
        self._is_due = False
        self._give(self._waiting.popleft())

    def _end_pause(self) -> None:
        self._is_pausing = False
        self._give(self._imposing.popleft())

    def _give(self, busy: Busy) -> None:
        if busy.take_turn():
            self.wait(busy)
        else:
            self._come_round()
