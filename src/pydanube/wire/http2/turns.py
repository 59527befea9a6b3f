"""Fairness between connections: who has sent a lot goes on in turns, and others come between."""

import asyncio
from collections import deque
from typing import Final, Protocol

TURN_SECONDS: Final = 0.002
"""How long one connection may keep the event loop, give or take one step of its codec."""


class Busy(Protocol):
    """Who has more to do than fits into a turn."""

    def take_turn(self) -> bool:
        """Go on for a while; True when there is still more to do."""


class Turns:
    """Gives one of those who wait a turn, each time the event loop comes round.

    However many they are, whoever is not among them waits for one turn at most.
    """

    def __init__(self) -> None:
        self._waiting: deque[Busy] = deque()
        self._is_due = False

    def wait(self, busy: Busy) -> None:
        """Put somebody in line who is not in it."""
        self._waiting.append(busy)
        self._come_round()

    def _come_round(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        self._is_due = False
        busy = self._waiting.popleft()
        if busy.take_turn():
            self._waiting.append(busy)
        self._come_round()
