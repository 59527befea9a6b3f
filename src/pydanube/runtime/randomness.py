"""Randomness, as the rest of PyDanube may know it."""

import random
from typing import Protocol

from typing_extensions import override


class Randomness(Protocol):
    """Where random numbers come from."""

    def below(self, limit: int) -> int:
        """Return a number from 0 to limit - 1."""

    def uniform(self, low: float, high: float) -> float:
        """Return a number between the two."""


class SystemRandomness(Randomness):
    """The machine's own, fit for secrets."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    @override
    def below(self, limit: int) -> int:
        return self._random.randrange(limit)

    @override
    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


class SeededRandomness(Randomness):
    """The same numbers for the same seed."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    @override
    def below(self, limit: int) -> int:
        return self._random.randrange(limit)

    @override
    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)
