"""What waits for an application, in the order it came."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class ItemQueue(Generic[Item]):
    """Messages or batches, until it ends.

    Those that come unasked wait for room; those that were asked for are there by right.
    """

    def __init__(self, items_max: int) -> None:
        self._items_max = items_max
        self._items: deque[Item] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()
        self._putters: deque[asyncio.Future[None]] = deque()
        self._ended = False

    async def put(self, item: Item, /) -> None:
        """Append an item; waits while there is no room."""
        while len(self._items) >= self._items_max:
            await _turn(self._putters)
        self.put_nowait(item)

    def put_nowait(self, item: Item, /) -> None:
        """Append an item."""
        self._items.append(item)
        if self._takers:
            _wake_one(self._takers)

    def first(self) -> Item | None:
        """Return the first item and leave it there; None if none waits."""
        return self._items[0] if self._items else None

    def take(self) -> Item | None:
        """Remove the first item; None if none waits."""
        if not self._items:
            return None
        item = self._items.popleft()
        if self._putters:
            _wake_one(self._putters)
        return item

    async def wait(self) -> Item | None:
        """Wait for an item and remove it; None once there will be no more."""
        while not self._items:
            if self._ended:
                return None
            try:
                await _turn(self._takers)
            except asyncio.CancelledError:
                if self._items:
                    _wake_one(self._takers)  # Its turn is another's.
                raise
        return self.take()

    def end(self) -> None:
        """Let those who wait go, once nothing waits for them."""
        self._ended = True
        while self._takers:
            _wake_one(self._takers)


async def _turn(waiting: "deque[asyncio.Future[None]]") -> None:
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting.append(turn)
    await turn


def _wake_one(waiting: "deque[asyncio.Future[None]]") -> None:
    while waiting:
        turn = waiting.popleft()
        if not turn.done():
            turn.set_result(None)
            return
