"""A clock that moves only when a test says so."""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from typing_extensions import override

from pydanube.runtime.clock import Clock, Timer


class ManualTimer(Timer):
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    @override
    def cancel(self) -> None:
        self.callback = None


class ManualClock(Clock):
    """Timers run inside `advance`, in the order in which they are due."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._monotonic_ms = 5_000.0
        self._wall_offset_ms = now_ms - self._monotonic_ms
        self._timers: list[tuple[float, int, ManualTimer]] = []
        self._order = count()

    @override
    def now_ms(self) -> int:
        return int(self._monotonic_ms + self._wall_offset_ms)

    @override
    def monotonic_ms(self) -> int:
        return int(self._monotonic_ms)

    @override
    async def sleep(self, seconds: float) -> None:
        done = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: None if done.done() else done.set_result(None))
        try:
            await done
        finally:
            timer.cancel()

    @override
    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = ManualTimer(callback)
        due_ms = self._monotonic_ms + max(seconds, 0.0) * 1000
        heapq.heappush(self._timers, (due_ms, next(self._order), timer))
        return timer

    def advance(self, milliseconds: float) -> None:
        end_ms = self._monotonic_ms + milliseconds
        while self._timers and self._timers[0][0] <= end_ms:
            due_ms, _, timer = heapq.heappop(self._timers)
            self._monotonic_ms = max(self._monotonic_ms, due_ms)
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
        self._monotonic_ms = end_ms

    def jump_wall_clock(self, milliseconds: float) -> None:
        self._wall_offset_ms += milliseconds
