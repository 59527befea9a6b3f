"""Notices that a broker cannot write: a write has failed, or one does not come to its end."""

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct

from pydanube.errors import DanubeError, Unavailable
from pydanube.runtime.clock import Clock

LOOK_SECONDS = 0.2
_LOOK_MS_MAX = 400
"""A look that comes later than this says something of the process, not of its disk."""


class Disk(Struct, frozen=True, kw_only=True):
    """Something that this broker must be able to write."""

    name: str
    failure: Callable[[], DanubeError | None]
    """Why it takes nothing any more, until the broker is started again."""
    writing_since_ms: Callable[[], int | None]
    """Since when what is being written is under way; None while nothing is."""
    waiting_for: Callable[[], str | None] = lambda: None
    """What it has no room for, if that is why a write does not come to its end."""


class Trouble(Struct, frozen=True, kw_only=True):
    """Why a broker cannot write."""

    why: str
    is_final: bool
    """Whether only a restart can help: a write that hangs may still come to its end."""

    def error(self) -> Unavailable:
        """Return what callers and health checks are told."""
        return Unavailable(f"this broker cannot write: {self.why}")


class WritingTime:
    """Counts how long one write has been under way, in time that the process itself had. Pure.

    A process that was stopped, or had no processor, finds a write under way since long ago; that
    says nothing of the disk.
    """

    def __init__(self) -> None:
        self._since_ms: int | None = None
        self._looked_ms = 0
        self._counted_ms = 0

    def look(self, since_ms: int | None, now_ms: int) -> int:
        """Return how long what is under way now counts."""
        if since_ms is None:
            self._counted_ms = 0
        elif since_ms != self._since_ms:
            self._counted_ms = min(now_ms - since_ms, _LOOK_MS_MAX)
        else:
            self._counted_ms += min(now_ms - self._looked_ms, _LOOK_MS_MAX)
        self._since_ms, self._looked_ms = since_ms, now_ms
        return self._counted_ms


class DiskWatch:
    """Looks again and again, and at once when it is told to."""

    def __init__(self, clock: Clock, disks: Sequence[Disk], seconds_max: float | None) -> None:
        self._clock = clock
        self._disks = [(disk, WritingTime()) for disk in disks]
        self._seconds_max = seconds_max
        self._wakeup = asyncio.Event()
        self.trouble: Trouble | None = None
        """What the last look found."""

    def wake(self) -> None:
        """Look now."""
        self._wakeup.set()

    async def until(self, matters: Callable[[Trouble], bool]) -> Trouble:
        """Watch until there is trouble that matters; return it."""
        while True:
            self.trouble = self._look()
            if self.trouble is not None and matters(self.trouble):
                return self.trouble
            self._wakeup.clear()
            timer = self._clock.call_later(LOOK_SECONDS, self._wakeup.set)
            await self._wakeup.wait()
            timer.cancel()

    def _look(self) -> Trouble | None:
        now_ms = self._clock.monotonic_ms()
        found = None
        for disk, time in self._disks:
            counted_ms = time.look(disk.writing_since_ms(), now_ms)
            failure = disk.failure()
            if failure is not None:
                return Trouble(why=_first_sentence(str(failure)), is_final=True)
            if self._seconds_max is not None and counted_ms >= self._seconds_max * 1000:
                unsynced = (
                    f"no sync of {disk.name} has completed for {counted_ms // 1000} s "
                    "(storage.sync_seconds_max)"
                )
                found = Trouble(
                    why=f"{unsynced}; {disk.waiting_for() or 'see to the disk'}", is_final=False
                )
        return found


def of_disk(failure: DanubeError | None) -> DanubeError | None:
    """Return a failure whose cause is the disk: what a bug has stopped, a restart stops again."""
    if failure is not None and isinstance(failure.__cause__, OSError):
        return failure
    return None


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0]
