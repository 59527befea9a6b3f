"""How many rows a consumer asks its broker for: as many as it takes in a moment. Pure."""

BYTES_MAX = 32 * 1024 * 1024
"""What may be on its way to a consumer, or wait for it unread, judged by the rows that came."""
QUICK_SECONDS, SLOW_SECONDS = 0.1, 1.0


class CreditWindow:
    """Doubles when a window was taken within QUICK_SECONDS; halves if that took SLOW_SECONDS.

    So a loop that is fast never waits for the line, and one that is slow keeps no messages that
    another consumer could have, or that would wait longer than their ack timeout.
    """

    def __init__(self, first: int, least: int, most: int) -> None:
        self._paced = first
        self._least = least
        self._most = most
        self._taken = 0
        self._since: float | None = None
        self._row_bytes = 0.0

    @property
    def rows(self) -> int:
        """How many rows may be on their way and unread together."""
        if self._row_bytes * self._paced <= BYTES_MAX:
            return self._paced
        return max(1, int(BYTES_MAX / self._row_bytes))

    @property
    def step(self) -> int:
        """How many are asked for at least: each time, the broker cuts a batch in two."""
        return max(1, self.rows // 4)

    def came(self, rows: int, size: int) -> None:
        """Take note of what rows weigh."""
        mean = size / rows
        self._row_bytes = max(mean, self._row_bytes * 0.75 + mean * 0.25)

    def took(self, rows: int, now_seconds: float) -> None:
        """Take note that the application has taken rows."""
        if self._since is None:
            self._since = now_seconds
            return
        self._taken += rows
        if self._taken < self._paced:
            return
        seconds = now_seconds - self._since
        if seconds < QUICK_SECONDS:
            self._paced = min(self._most, self._paced * 2)
        elif seconds > SLOW_SECONDS:
            self._paced = max(self._least, self._paced // 2)
        self._taken, self._since = 0, now_seconds
