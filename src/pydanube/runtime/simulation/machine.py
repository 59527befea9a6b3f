"""What the files of one simulated machine share: the medium, its faults, and who is alive."""

import asyncio
from collections.abc import Callable

from pydanube.runtime.randomness import Randomness
from pydanube.runtime.simulation.disk_faults import DiskFaults, OperationName, SimulatedCrash
from pydanube.runtime.simulation.medium import Medium


class Machine:
    """A disk's state across the incarnations of the program that uses it."""

    def __init__(
        self,
        medium: Medium,
        randomness: Randomness,
        capacity_bytes: int | None,
        delay_seconds: tuple[float, float],
    ) -> None:
        self.medium = medium
        self.randomness = randomness
        self.capacity_bytes = capacity_bytes
        self.delay_seconds = delay_seconds
        self.faults = DiskFaults()
        self.incarnation = 1
        # Which file is locked, and by which incarnation.
        self.locks: dict[object, int] = {}

    def begin_incarnation(self) -> None:
        """Declare everything dead that runs, and start again without locks and planned faults."""
        self.incarnation += 1
        self.locks.clear()
        self.faults.start_again()

    def require(self, incarnation: int) -> None:
        """Refuse what was asked for by an incarnation that is gone."""
        if incarnation != self.incarnation:
            raise SimulatedCrash("the machine crashed while this was under way, or before")

    def after_delay(self, name: OperationName, happen: Callable[[], None], path: str = "") -> None:
        """Call back when such an operation takes effect: never at once, seldom in order."""
        if self.faults.holds(name, path, happen):
            return
        loop = asyncio.get_running_loop()
        seconds = self.randomness.uniform(*self.delay_seconds) + self.faults.extra_seconds(name)
        if seconds > 0:
            loop.call_later(seconds, happen)
        else:
            loop.call_soon(happen)

    def free_bytes(self) -> int | None:
        """Return the room that is left; None is without limit."""
        if self.capacity_bytes is None:
            return None
        return max(0, self.capacity_bytes - self.medium.used_bytes())
