"""Turns instants of the wall clock, by which messages are due, into the dispatcher's own time."""

from pydanube.runtime.clock import Clock

_NOTICED_MS = 1_000


class DueTimes:
    """Messages are due by the wall clock, dispatchers wait by one that never jumps.

    A wall clock that is set back is noticed when a message is about to be sent, and the message
    waits again; one that is set forward must be looked at now and then.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = self._wall_ahead_ms()

    def monotonic_ms(self, due_ms: int) -> int:
        """Return when the dispatcher has to wake up for something that is not due yet."""
        wait_ms = max(1, due_ms - self._clock.now_ms())
        return self._clock.monotonic_ms() + wait_ms

    def take_move(self) -> int:
        """Return by how much the wall clock was set forward since the last call; else 0."""
        ahead_ms = self._wall_ahead_ms()
        moved_ms = ahead_ms - self._ahead_ms
        if abs(moved_ms) < _NOTICED_MS:
            return 0
        self._ahead_ms = ahead_ms
        return max(0, moved_ms)

    def _wall_ahead_ms(self) -> int:
        return self._clock.now_ms() - self._clock.monotonic_ms()
