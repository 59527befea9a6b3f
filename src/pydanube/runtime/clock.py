"""Time, as the rest of PyDanube may know it."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from typing_extensions import override


class Timer(Protocol):
    """A callback that has not run yet."""

    def cancel(self) -> None:
        """Forget the callback; harmless when it has run."""


class Clock(Protocol):
    """Where time comes from. The event loop's own time is its source, so that it can be virtual."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970. It may jump."""

    def monotonic_ms(self) -> int:
        """Return milliseconds since some instant. It never goes backwards."""

    def monotonic_seconds(self) -> float:
        """Return the same in seconds, as finely as the machine can tell; for measuring."""

    async def sleep(self, seconds: float) -> None:
        """Wait that long."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Run `callback` on the event loop after that long."""


class SystemClock(Clock):
    """The machine's clocks."""

    @override
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    @override
    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    @override
    def monotonic_seconds(self) -> float:
        return time.monotonic()

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @override
    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)
