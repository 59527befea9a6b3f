"""How long to wait before the next attempt, and how many there are. Pure.

The constants are those of every Danube client: a broker that restarts within three seconds is not
noticed by applications. What has worked before is mended sooner, for a cluster finds another
broker for a topic within a few seconds.
"""

from msgspec import Struct

JITTER_MIN, JITTER_MAX = 0.5, 1.0


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """Linear back-off: the pause grows by `base_ms` with each attempt, up to `pause_ms_max`."""

    retries_max: int = 5
    base_ms: int = 200
    pause_ms_max: int = 5_000
    mend_pause_ms_max: int = 400
    mends_soon: int = 16
    """So many attempts to mend are not further apart than that: some five seconds' worth."""

    def pause_seconds(self, attempt: int, jitter: float) -> float:
        """Return the pause after attempt number `attempt`, counted from 0.

        `jitter` is drawn evenly from JITTER_MIN to JITTER_MAX, so that clients that lost their
        broker together do not come back together.
        """
        assert JITTER_MIN <= jitter <= JITTER_MAX, "jitter halves the pause at most"
        return min(self.base_ms * (attempt + 1), self.pause_ms_max) * jitter / 1_000

    def mend_pause_seconds(self, attempt: int, jitter: float) -> float:
        """Return the pause before attempt number `attempt`, from 0, to go on elsewhere."""
        if attempt >= self.mends_soon:
            return self.pause_seconds(attempt - self.mends_soon + 1, jitter)
        return min(self.pause_seconds(attempt, jitter), self.mend_pause_ms_max * jitter / 1_000)

    def allows(self, attempt: int) -> bool:
        """Tell whether attempt number `attempt`, counted from 0, may be followed by another."""
        return attempt < self.retries_max
