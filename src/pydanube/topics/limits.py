"""The limits of a topic: how fast it may be published to."""

from collections import deque
from collections.abc import Callable

from pydanube.errors import Overloaded
from pydanube.model.message import Message
from pydanube.runtime.clock import Clock
from pydanube.topics.gathering import Published

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

    def reserve(self, now_ms: int) -> int:
        """Take the next turn and return how many milliseconds from now it is."""
        turn = max(self._next_ms, now_ms - self._burst_ms)
        self._next_ms = turn + self._interval_ms
        return max(0, round(turn - now_ms))


Release = Callable[[Message, Published], None]


class Throttle:
    """Lets messages through at a rate, in the order they came; the rest waits its turn."""

    def __init__(self, topic: str, per_second: int, clock: Clock, release: Release) -> None:
        self._topic = topic
        self._per_second = per_second
        self._rate = RateLimit(per_second)
        self._clock = clock
        self._release = release
        self._waiting: deque[tuple[int, Message, Published]] = deque()

    def add(self, message: Message, answer: Published) -> None:
        """Release the message when its turn has come; Overloaded if too many wait."""
        if len(self._waiting) >= _WAITING_MAX:
            refusal = Overloaded(
                f"{len(self._waiting)} publishes already wait on topic {self._topic}, which takes "
                f"{self._per_second} messages a second (max_publish_rate)"
            )
            answer(None, refusal)
            return
        now_ms = self._clock.monotonic_ms()
        delay_ms = self._rate.reserve(now_ms)
        if not delay_ms and not self._waiting:
            self._release(message, answer)
            return
        self._waiting.append((now_ms + delay_ms, message, answer))
        if len(self._waiting) == 1:
            self._clock.call_later(delay_ms / 1000, self._take_turns)

    def _take_turns(self) -> None:
        now_ms = self._clock.monotonic_ms()
        while self._waiting and self._waiting[0][0] <= now_ms:
            _, message, answer = self._waiting.popleft()
            self._release(message, answer)
        if self._waiting:
            delay_ms = self._waiting[0][0] - now_ms
            self._clock.call_later(delay_ms / 1000, self._take_turns)
