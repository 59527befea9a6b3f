"""Real time that a test can set forward, so that nobody waits out a grace period of a minute."""

import asyncio
import time
from collections.abc import Callable

from typing_extensions import override

from pydanube.runtime.clock import Clock, Timer


class _Timer(Timer):
    def __init__(
        self, timers: "set[_Timer]", due_seconds: float, callback: Callable[[], None]
    ) -> None:
        self.due_seconds = due_seconds
        self.callback = callback
        self.handle: asyncio.TimerHandle | None = None
        self._timers = timers
        timers.add(self)

    @override
    def cancel(self) -> None:
        self._timers.discard(self)
        if self.handle is not None:
            self.handle.cancel()


class AdvancingClock(Clock):
    """Runs with the machine's clock, and ahead of it by all that `advance` was told."""

    def __init__(self) -> None:
        self._ahead_seconds = 0.0
        self._timers: set[_Timer] = set()

    def advance(self, seconds: float) -> None:
        """Let that much time have passed: what has become due runs in the loop's next turn."""
        self._ahead_seconds += seconds
        for timer in sorted(self._timers, key=lambda timer: timer.due_seconds):
            if timer.handle is not None:
                timer.handle.cancel()
            self._schedule(timer)

    @override
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + int(self._ahead_seconds * 1000)

    @override
    def monotonic_ms(self) -> int:
        return int(self.monotonic_seconds() * 1000)

    @override
    def monotonic_seconds(self) -> float:
        return time.monotonic() + self._ahead_seconds

    @override
    async def sleep(self, seconds: float) -> None:
        over = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: None if over.done() else over.set_result(None))
        try:
            await over
        finally:
            timer.cancel()

    @override
    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = _Timer(self._timers, self.monotonic_seconds() + seconds, callback)
        self._schedule(timer)
        return timer

    def _schedule(self, timer: _Timer) -> None:
        delay = max(0.0, timer.due_seconds - self.monotonic_seconds())
        timer.handle = asyncio.get_running_loop().call_later(delay, self._fire, timer)

    def _fire(self, timer: _Timer) -> None:
        self._timers.discard(timer)
        timer.callback()
