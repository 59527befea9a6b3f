"""A number that only grows, and tasks that wait until it has reached theirs."""

import asyncio
import heapq
from itertools import count


class Watermark:
    """How far something has come. One owner advances and closes it; any task may wait.

    Waiters wake in the order of the values they wait for. Once closed it stays where it is: what
    was reached stays reached, and everybody who waits for more is told why it will not come.
    """

    def __init__(self, value: int = 0) -> None:
        self._value = value
        self._error: Exception | None = None
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = count()
        self._given_up = 0

    @property
    def value(self) -> int:
        """The highest value reached so far."""
        return self._value

    def advance_to(self, value: int) -> None:
        """Reach `value` and wake who waits for it; a value reached before changes nothing."""
        if self._error is not None or value <= self._value:
            return
        self._value = value
        while self._waiters and self._waiters[0][0] <= value:
            _, _, waiter = heapq.heappop(self._waiters)
            if waiter.cancelled():
                self._given_up -= 1
            else:
                waiter.set_result(None)

    async def wait_for(self, value: int) -> int:
        """Return the value reached once it is at least `value`; raise what it was closed with."""
        if value > self._value:
            if self._error is not None:
                raise self._error.with_traceback(None)
            waiter = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiters, (value, next(self._arrivals), waiter))
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.cancelled():
                    self._forget_given_up()
                raise
        return self._value

    def close(self, error: Exception) -> None:
        """Tell all who wait, now and later, that no more will come. The first call counts."""
        if self._error is not None:
            return
        self._error = error
        for _, _, waiter in sorted(self._waiters, key=lambda entry: entry[:2]):
            if not waiter.cancelled():
                waiter.set_exception(error)
        self._waiters.clear()

    def _forget_given_up(self) -> None:
        """Keep those who gave up from piling up, at a constant cost each."""
        self._given_up += 1
        if self._given_up * 2 > len(self._waiters):
            self._waiters = [entry for entry in self._waiters if not entry[2].cancelled()]
            heapq.heapify(self._waiters)
            self._given_up = 0
