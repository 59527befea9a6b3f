"""How long to wait before the next attempt, and how many there are. Pure.

The constants are those of every Danube client: a broker that restarts within three seconds is not
noticed by applications.
"""

from msgspec import Struct

JITTER_MIN, JITTER_MAX = 0.5, 1.0


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """Linear back-off: the pause grows by `base_ms` with each attempt, up to `pause_ms_max`."""

    retries_max: int = 5
    base_ms: int = 200
    pause_ms_max: int = 5_000

    def pause_seconds(self, attempt: int, jitter: float) -> float:
        """Return the pause after attempt number `attempt`, counted from 0.

        `jitter` is drawn evenly from JITTER_MIN to JITTER_MAX, so that clients that lost their
        broker together do not come back together.
        """
        assert JITTER_MIN <= jitter <= JITTER_MAX, "jitter halves the pause at most"
        return min(self.base_ms * (attempt + 1), self.pause_ms_max) * jitter / 1_000

    def allows(self, attempt: int) -> bool:
        """Tell whether attempt number `attempt`, counted from 0, may be followed by another."""
        return attempt < self.retries_max
