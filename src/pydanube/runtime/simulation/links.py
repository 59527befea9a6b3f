"""Which simulated host reaches which, and how long that takes."""

import asyncio
from collections.abc import Collection
from itertools import permutations
from typing import Protocol

from pydanube.runtime.randomness import Randomness


class Traffic(Protocol):
    """What one host has on its way to another, over one connection."""

    @property
    def source(self) -> str:
        """The host that sends."""

    def resume(self) -> None:
        """Go on, in case a cut held it up."""

    def abandon(self) -> None:
        """Lose everything under way."""


class Links:
    """The ways between hosts; each direction can be cut and slowed by itself."""

    def __init__(self, randomness: Randomness, delay_seconds: tuple[float, float]) -> None:
        self.randomness = randomness
        self.delay_seconds = delay_seconds
        self._delays: dict[tuple[str, str], tuple[float, float]] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._off: set[str] = set()
        # Filled by the streams: those that have something under way.
        self.traffic: dict[Traffic, None] = {}

    def cut(self, source: str, target: str) -> None:
        """Let nothing pass from source to target."""
        self._cuts.add((source, target))

    def partition(self, groups: Collection[Collection[str]]) -> None:
        """Let nothing pass between hosts of different groups."""
        for here, there in permutations(groups, 2):
            self._cuts.update((source, target) for source in here for target in there)

    def mend(self, source: str, target: str) -> None:
        """Undo the cut from source to target."""
        self._cuts.discard((source, target))
        self._resume()

    def heal(self) -> None:
        """Undo all cuts."""
        self._cuts.clear()
        self._resume()

    def switch_off(self, host: str) -> None:
        """Let nothing reach or leave a host; what it was sending is gone."""
        self._off.add(host)
        for traffic in list(self.traffic):
            if traffic.source == host:
                traffic.abandon()

    def switch_on(self, host: str) -> None:
        """Let a host take part again."""
        if host in self._off:
            self._off.discard(host)
            self._resume()

    def slow(self, source: str, target: str, delay_seconds: tuple[float, float]) -> None:
        """Let what passes from source to target take between so and so long."""
        self._delays[source, target] = delay_seconds

    def blocked(self, source: str, target: str) -> bool:
        """Tell whether nothing passes from source to target."""
        return (source, target) in self._cuts or source in self._off or target in self._off

    def draw_delay(self, source: str, target: str) -> float:
        """Return how long something takes that leaves now."""
        return self.randomness.uniform(*self._delays.get((source, target), self.delay_seconds))

    async def travel(self, source: str, target: str) -> bool:
        """Take the time of one way; return whether one gets through."""
        await asyncio.sleep(self.draw_delay(source, target))
        return not self.blocked(source, target)

    def _resume(self) -> None:
        for traffic in list(self.traffic):
            traffic.resume()
