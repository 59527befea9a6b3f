"""Growing delays between attempts, with chance in them so that not everybody comes at once."""

from pydanube.runtime.randomness import Randomness

FIRST_SECONDS = 0.5
LAST_SECONDS = 60.0


class Backoff:
    """Doubles from half a second to a minute; each delay is half chance."""

    def __init__(self, randomness: Randomness) -> None:
        self._randomness = randomness
        self._failures = 0

    def next_seconds(self) -> float:
        """Return how long to wait after one more failure."""
        longest = min(FIRST_SECONDS * 2.0**self._failures, LAST_SECONDS)
        self._failures = min(self._failures + 1, 16)
        return self._randomness.uniform(longest / 2, longest)

    def reset(self) -> None:
        """Begin anew after a success."""
        self._failures = 0
