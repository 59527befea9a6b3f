"""Sees to it that an answer means something: what was acknowledged anywhere can be used here.

A broker follows the metadata a moment behind, and a topic is given to an owner a moment before that
one has opened it. Operators and tools make their next call in that moment.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from pydanube.cluster.directory import Directory
from pydanube.errors import DanubeError
from pydanube.model.ids import BrokerId
from pydanube.runtime.clock import Clock
from pydanube.topics.manager import TopicManager

Barrier = Callable[[], Awaitable[None]]
"""Returns once reads from here see everything that was acknowledged before the call."""

CATCH_UP_SECONDS = 1.0
"""Without a majority nothing can be confirmed; calls go on with what this broker knows."""
SETTLE_SECONDS = 8.0
"""How long a topic that changes hands is waited for; less than a forwarded call may take."""
LOOK_SECONDS = 0.02


class Readiness:
    """Waits for what is about to be true, and never for ever: then the call itself says why not."""

    def __init__(
        self,
        barrier: Barrier,
        directory: Directory,
        topics: TopicManager,
        me: BrokerId,
        clock: Clock,
    ) -> None:
        self._barrier = barrier
        self._directory = directory
        self._topics = topics
        self._me = me
        self.clock = clock
        self._turn = asyncio.Lock()
        self._begun = self._passed = 0
        """How many barriers were begun, and the number of the last one that was passed."""

    async def catch_up(self) -> bool:
        """See all that was acknowledged before, through whatever broker, if that is possible soon.

        Whoever asks while a barrier is under way shares the next one. False if it was not possible:
        then what this broker does not know may be there all the same.
        """
        asked = self._begun
        with suppress(DanubeError, TimeoutError):
            async with asyncio.timeout(CATCH_UP_SECONDS), self._turn:
                if self._passed <= asked:
                    self._begun += 1
                    await self._barrier()
                    self._passed = self._begun
            return True
        return False

    async def until_settled(self, topics: Sequence[str]) -> bool:
        """Return once each topic is open here, is another broker's, or is not there.

        False if that took too long.
        """
        deadline_ms = self.clock.monotonic_ms() + int(SETTLE_SECONDS * 1000)
        while not all(self._is_settled(topic) for topic in topics):
            if self.clock.monotonic_ms() >= deadline_ms:
                return False
            await self.clock.sleep(LOOK_SECONDS)
        return True

    def _is_settled(self, topic: str) -> bool:
        if self._topics.find(topic) is not None:
            return True
        record = self._topics.catalog.topic(topic)
        if record is None or record.deleting:
            return True
        owner = self._directory.owner_now(topic)
        # The topic of a broker that is gone may wait for it for long.
        return owner is not None and owner != self._me
