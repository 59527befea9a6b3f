"""The limits of a topic: how fast it may be published to."""

from collections import deque
from collections.abc import Callable

from pydanube.errors import Overloaded
from pydanube.runtime.clock import Clock

_WAITING_MAX = 10_000


class RateLimit:
    """Spaces messages out to a rate, with bursts of one second's worth. Pure: time comes in.

    Reservations are handed out in order and never go backwards, so whoever waits for its turn
    is served first come, first served.
    """

    def __init__(self, per_second: int) -> None:
        self._interval_ms = 1000 / per_second
        self._burst_ms = 1000.0 - self._interval_ms
        self._next_ms = float("-inf")

    def reserve(self, now_ms: int, count: int = 1) -> int:
        """Take the next turns and return how many milliseconds from now the first one is."""
        turn = max(self._next_ms, now_ms - self._burst_ms)
        self._next_ms = turn + count * self._interval_ms
        return max(0, round(turn - now_ms))


class Throttle:
    """Lets messages through at a rate, in the order they came; the rest waits its turn."""

    def __init__(self, topic: str, per_second: int, clock: Clock) -> None:
        self._topic = topic
        self._per_second = per_second
        self._rate = RateLimit(per_second)
        self._clock = clock
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def add(self, count: int, release: Callable[[], None]) -> None:
        """Call `release` when the turn of the first of `count` messages has come.

        A batch goes as a whole, and what follows waits for all its turns. Raises Overloaded if
        too many wait.
        """
        if len(self._waiting) >= _WAITING_MAX:
            raise Overloaded(
                f"{len(self._waiting)} publishes already wait on topic {self._topic}, which takes "
                f"{self._per_second} messages a second (max_publish_rate)"
            )
        now_ms = self._clock.monotonic_ms()
        delay_ms = self._rate.reserve(now_ms, count)
        if not delay_ms and not self._waiting:
            release()
            return
        self._waiting.append((now_ms + delay_ms, release))
        if len(self._waiting) == 1:
            self._clock.call_later(delay_ms / 1000, self._take_turns)

    def _take_turns(self) -> None:
        now_ms = self._clock.monotonic_ms()
        while self._waiting and self._waiting[0][0] <= now_ms:
            _, release = self._waiting.popleft()
            release()
        if self._waiting:
            delay_ms = self._waiting[0][0] - now_ms
            self._clock.call_later(delay_ms / 1000, self._take_turns)
