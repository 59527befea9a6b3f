"""When leases end: one timer that says so, whichever store carries it out."""

from collections.abc import Callable

from pydanube.metadata.state_machine import StateMachine
from pydanube.runtime.clock import Clock, Timer

# The clock counts whole milliseconds, so a timer may run a fraction before its instant.
_WAIT_MS_MIN = 1


class LeaseTimer:
    """Calls `expire` with the present instant once a lease's time is over.

    Its time starts at the wall clock's, or at the latest instant the state knows if that is
    later, and then follows the monotonic clock: a jump of the wall clock ends no lease, and none
    lives on through a restart because a clock was set back. With `start_ms` its time starts there
    instead. For `grace_ms` no lease ends, so that whoever could not renew meanwhile can. Call `arm`
    whenever commands have been applied.
    """

    def __init__(
        self,
        clock: Clock,
        machine: StateMachine,
        expire: Callable[[int], None],
        start_ms: int | None = None,
        grace_ms: int = 0,
    ) -> None:
        self._clock = clock
        self._machine = machine
        self._expire = expire
        start_ms = max(clock.now_ms(), machine.time_ms) if start_ms is None else start_ms
        self._start_ms = start_ms - clock.monotonic_ms()
        self._first_ms = start_ms + grace_ms
        """Nothing ends before this instant."""
        self._timer: Timer | None = None
        self._due_ms = 0
        self._closed = False

    def now_ms(self) -> int:
        """Return the instant to put into commands."""
        return self._start_ms + self._clock.monotonic_ms()

    def arm(self) -> None:
        """Wait for the first lease that expires."""
        due_ms = self._next_ms()
        if due_ms is None or self._closed:
            return
        if self._timer is not None:
            # A timer that runs too early, since its lease was renewed, looks again by itself.
            if self._due_ms <= due_ms:
                return
            self._timer.cancel()
        self._due_ms = due_ms
        wait_ms = max(due_ms - self.now_ms(), _WAIT_MS_MIN)
        self._timer = self._clock.call_later(wait_ms / 1000, self._run)

    def _run(self) -> None:
        self._timer = None
        due_ms = self._next_ms()
        now_ms = self.now_ms()
        if due_ms is not None and due_ms <= now_ms and not self._closed:
            self._expire(now_ms)
        else:
            self.arm()

    def _next_ms(self) -> int | None:
        due_ms = self._machine.next_expiry_ms()
        return max(due_ms, self._first_ms) if due_ms is not None else None

    def close(self) -> None:
        """Let no lease expire from here any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
