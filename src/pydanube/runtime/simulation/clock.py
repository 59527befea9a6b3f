"""The clock of one simulated machine: virtual, possibly wrong."""

import asyncio
from collections.abc import Callable

from typing_extensions import override

from pydanube.runtime.clock import Clock, Timer

_START_MS = 1_893_456_000_000  # 1 January 2030, UTC.
# A timer may fire a rounding error early; the millisecond it was set for has come all the same.
_ROUNDING_MS = 0.001


class SimulatedClock(Clock):
    """Follows the event loop's time, `rate` times as fast, so a rate above 1 wakes sleepers early.

    The wall clock is off by `skew_ms`, and jumps when a test says so; monotonic time never does.
    """

    def __init__(self, *, skew_ms: int = 0, rate: float = 1.0) -> None:
        if rate <= 0:
            raise ValueError("a clock's rate must be above 0")
        self._skew_ms = skew_ms
        self._rate = rate

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock forward, or back when negative."""
        self._skew_ms += milliseconds

    @override
    def now_ms(self) -> int:
        return _START_MS + self._skew_ms + self.monotonic_ms()

    @override
    def monotonic_ms(self) -> int:
        return int(self.monotonic_seconds() * 1000 + _ROUNDING_MS)

    @override
    def monotonic_seconds(self) -> float:
        return asyncio.get_running_loop().time() * self._rate

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._rate)

    @override
    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds / self._rate, callback)
