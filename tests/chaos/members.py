"""A consumer of one subscription in a client's process, whichever library it has. It obeys orders.

It keeps the receipts of the first messages of each stay. When its topic or subscription has been
replaced it sends their acks once more, as a client does that repeats what it heard no answer to.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import NamedTuple, Protocol

from tests.chaos.history import Ack, Delivery, Outcome, Scribe, now

KEPT_MAX = 25
"""So many receipts of each stay are used once more."""
ACKS_AT_ONCE = 16
SETTLE_SECONDS_MAX = 12.0
LAST_ACKS_SECONDS_MAX = 5.0
AGAIN_SECONDS = 0.5


class Received(NamedTuple):
    """A message, and what settles it."""

    offset: int
    value: str
    key: str
    ack: Callable[[], Awaitable[None]]
    keeps: bool = True
    """Its ack can be sent after its consumer has closed."""


class Session(Protocol):
    """One consumer that is open. TimeoutError means that it is better opened anew."""

    def received(self) -> AsyncIterator[list[Received]]:
        """Iterate over what comes together, until the session is of no use any more."""


class Member:
    """Opens consumers one after the other, and acks what comes."""

    def __init__(
        self,
        topic: str,
        subscription: str,
        name: str,
        open_session: Callable[[], AbstractAsyncContextManager[Session]],
        scribe: Scribe,
    ) -> None:
        self.topic = topic
        self.subscription = subscription
        self._name = name
        self._open_session = open_session
        self._scribe = scribe
        self._kept: list[Received] = []
        self._task: asyncio.Task[None] | None = None
        self._room = asyncio.Semaphore(ACKS_AT_ONCE)
        self._acks: set[asyncio.Task[None]] = set()

    def join(self) -> None:
        """Consume, from now until told to leave."""
        if self._task is None:
            self._kept.clear()
            self._task = asyncio.create_task(self._run())

    async def leave(self) -> None:
        """Close the consumer, with its last acks answered if they can be."""
        task, self._task = self._task, None
        if task is not None:
            if self._acks:
                await asyncio.wait(self._acks, timeout=LAST_ACKS_SECONDS_MAX)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for each in self._acks:
            each.cancel()
        await asyncio.gather(*self._acks, return_exceptions=True)

    async def repeat_acks(self) -> None:
        """Send the first acks of this stay once more."""
        kept, self._kept = self._kept, []
        await asyncio.gather(*(self._ack(each, late=True) for each in kept if each.keeps))

    async def _run(self) -> None:
        while True:
            session = now()
            with suppress(Exception):  # Whatever a client raises, it is opened again.
                async with self._open_session() as opened:
                    async for received in opened.received():
                        for each in received:
                            self._take(each, session)
                            await self._start_ack(each)
            await asyncio.sleep(AGAIN_SECONDS)

    def _take(self, each: Received, session: float) -> None:
        self._scribe.write(
            Delivery(
                now(),
                self.topic,
                self.subscription,
                self._name,
                session,
                each.offset,
                each.value,
                each.key,
            )
        )
        if len(self._kept) < KEPT_MAX:
            self._kept.append(each)

    async def _start_ack(self, each: Received) -> None:
        await self._room.acquire()
        task = asyncio.create_task(self._ack(each))
        self._acks.add(task)
        task.add_done_callback(self._acked)

    def _acked(self, task: "asyncio.Task[None]") -> None:
        self._acks.discard(task)
        self._room.release()

    async def _ack(self, each: Received, *, late: bool = False) -> None:
        began, outcome = now(), "unknown"
        try:
            async with asyncio.timeout(SETTLE_SECONDS_MAX):
                await each.ack()
            outcome = "ok"
        except Exception:  # An ack that fails is made up for by the next one.
            pass
        finally:
            self._write(began, outcome, each, late)

    def _write(self, began: float, outcome: Outcome, each: Received, late: bool) -> None:
        self._scribe.write(
            Ack(
                began,
                now(),
                outcome,
                self.topic,
                self.subscription,
                self._name,
                each.offset,
                each.value,
                late,
            )
        )
