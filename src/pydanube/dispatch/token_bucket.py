"""A rate that delays."""

_PARTS = 1000
"""One message is this many parts, so that a rate per second is that many parts per millisecond."""


class TokenBucket:
    """Allows `rate` messages a second, and a second's worth at once after a pause."""

    def __init__(self, rate: int, now_ms: int) -> None:
        assert rate > 0, "an unlimited rate has no bucket"
        self._rate = rate
        self._parts = rate * _PARTS
        self._filled_at_ms = now_ms

    def allowance(self, now_ms: int) -> int:
        """Return how many messages may go out now."""
        grown = self._parts + (now_ms - self._filled_at_ms) * self._rate
        self._parts = min(grown, self._rate * _PARTS)
        self._filled_at_ms = now_ms
        return self._parts // _PARTS

    def spend(self, count: int) -> None:
        """Take note that messages went out."""
        self._parts -= count * _PARTS
        assert self._parts >= 0, "more messages went out than the rate allows"

    def next_at_ms(self) -> int:
        """Return when there is an allowance of at least one, given there is none now."""
        missing = _PARTS - self._parts
        return self._filled_at_ms - (-missing // self._rate)

    def change_rate(self, rate: int, now_ms: int) -> None:
        """Go on with another rate; what has been saved up is kept as far as it fits."""
        self.allowance(now_ms)
        self._rate = rate
        self._parts = min(self._parts, rate * _PARTS)
