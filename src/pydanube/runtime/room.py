"""Waits for descriptors, memory or space when there are none, and carries on when there are."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pydanube.runtime.clock import Clock
from pydanube.runtime.files import NoRoom

RETRY_SECONDS_MIN: Final = 0.05
RETRY_SECONDS_MAX: Final = 1.0

_Result = TypeVar("_Result")

_REMEDIES: Final = {
    errno.EMFILE: (
        "this process has used its descriptors up: raise its limit (ulimit -n, LimitNOFILE), or "
        "keep more of them back (broker.connections.reserved_descriptors)"
    ),
    errno.ENFILE: "all processes of this machine have used its descriptors up (fs.file-max)",
    errno.ENOMEM: "the machine has no memory for it: end what takes it",
    errno.EAGAIN: "no thread can be started: see to memory, and to the limit of tasks (ulimit -u)",
    errno.ENOSPC: "the file system is full: free space on it",
    errno.EDQUOT: "the quota is used up: raise it, or free space",
}


class WaitEnded(Exception):
    """Whoever waited for room is to stop; what was to be done has not been done."""


class Room:
    """Repeats what found no room until it has, for one owner who does one thing at a time.

    Pass it only what may be carried out again from its beginning after NoRoom. `on_wait` is called
    when a wait begins, `on_end` when it has ended well, with how many milliseconds it took.
    """

    def __init__(
        self, clock: Clock, on_wait: Callable[[str], None], on_end: Callable[[int], None]
    ) -> None:
        self._clock = clock
        self._on_wait = on_wait
        self._on_end = on_end
        self._ended = False
        self._wakeup = asyncio.Event()
        self.waiting_for: str | None = None
        """What there is none of and how to get some; None while there is enough."""

    async def carry_out(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Do it, as often as need be; WaitEnded once `end` was called while there is no room."""
        try:
            return await work()
        except NoRoom as error:
            lacking = error
        return await self._repeat(work, lacking)

    def end(self) -> None:
        """Wait no more, now or later."""
        self._ended = True
        self._wakeup.set()

    async def _repeat(self, work: Callable[[], Awaitable[_Result]], lacking: NoRoom) -> _Result:
        began_ms = self._clock.monotonic_ms()
        seconds = RETRY_SECONDS_MIN
        self.waiting_for = describe(lacking)
        self._on_wait(self.waiting_for)
        try:
            while True:
                await self._pause(seconds)
                seconds = min(2 * seconds, RETRY_SECONDS_MAX)
                try:
                    result = await work()
                except NoRoom as error:
                    self.waiting_for = describe(error)
                    continue
                self._on_end(self._clock.monotonic_ms() - began_ms)
                return result
        finally:
            self.waiting_for = None

    async def _pause(self, seconds: float) -> None:
        if not self._ended:
            self._wakeup.clear()
            timer = self._clock.call_later(seconds, self._wakeup.set)
            try:
                await self._wakeup.wait()
            finally:
                timer.cancel()
        if self._ended:
            raise WaitEnded(self.waiting_for)


def describe(error: OSError) -> str:
    """Say what failed; of what found no room, how to make some, too."""
    if not isinstance(error, NoRoom):
        return str(error)
    remedy = _REMEDIES.get(error.errno or 0, "see to descriptors, memory and space")
    return f"{error}; {remedy}"
