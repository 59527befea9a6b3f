"""How much may be under way at once."""

import asyncio
from collections import deque

from pydanube.errors import Overloaded


class Room:
    """Counts what waits for an answer, by number and by bytes, and lets senders wait for less.

    Whoever finds room may take as much as it needs, and those that wait are woken together, so it
    may be exceeded a little: by one message of each task that sends.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self.taken = 0
        self._bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._empty: asyncio.Future[None] | None = None

    @property
    def has_room(self) -> bool:
        """Tell whether another message may be sent now."""
        return self.taken < self._messages_max and self._bytes < self._bytes_max

    def take(self, size: int) -> None:
        """Count a message until it leaves; Overloaded if there is no room."""
        if self.taken >= self._messages_max or self._bytes >= self._bytes_max:
            raise Overloaded(
                f"{self.taken} messages with {self._bytes} bytes are unacknowledged, and "
                "the producer takes no more; wait for some of them, or use send"
            )
        self.taken += 1
        self._bytes += size

    def leave(self, messages: int, size: int) -> None:
        """Make room: so many messages of so many bytes together are answered."""
        self.taken -= messages
        self._bytes -= size
        while self._waiting and self.has_room:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
        if not self.taken and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    async def wait(self) -> None:
        """Return once there is room, in the order of asking."""
        while not self.has_room:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    async def wait_until_empty(self) -> None:
        """Return once everything is answered; nobody may add more."""
        if self.taken:
            self._empty = asyncio.get_running_loop().create_future()
            await self._empty
