"""A producer of one topic in a client's process, whichever library it has."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from tests.chaos.history import Outcome, Scribe, Send, now

KEYS = 4
SEND_SECONDS_MAX = 12.0
AGAIN_SECONDS = 0.5

Publish = Callable[[bytes, str], Awaitable[int | None]]
"""Sends a payload under a key; returns its offset where that is told."""


class Refused(Exception):
    """The message was certainly not stored."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How many messages are sent at a time, and how long to wait after them."""

    together: int
    seconds: float


class Publisher:
    """Sends numbered messages for as long as it runs, and writes down how each ended."""

    def __init__(
        self,
        topic: str,
        name: str,
        open_producer: Callable[[], AbstractAsyncContextManager[Publish]],
        scribe: Scribe,
        pace: Pace,
        *,
        numbered: bool,
    ) -> None:
        self.topic = topic
        self.name = name
        self._open_producer = open_producer
        self._scribe = scribe
        self._pace = pace
        self._numbered = numbered
        self._count = 0

    async def run(self) -> None:
        """Publish for ever; a producer that failed is replaced by another one."""
        while True:
            try:
                async with self._open_producer() as publish:
                    while await self._send_some(publish):
                        await asyncio.sleep(self._pace.seconds)
            except Exception:  # Nobody serves the topic: try again.
                pass
            await asyncio.sleep(AGAIN_SECONDS)

    async def _send_some(self, publish: Publish) -> bool:
        """Return whether all went well."""
        numbers = range(self._count, self._count + self._pace.together)
        self._count += self._pace.together
        return all(await asyncio.gather(*(self._send(publish, number) for number in numbers)))

    async def _send(self, publish: Publish, number: int) -> bool:
        value, key = f"{self.name}-{number}", f"{self.name}-{number % KEYS}"
        began = now()
        outcome: Outcome = "unknown"
        offset: int | None = None
        try:
            async with asyncio.timeout(SEND_SECONDS_MAX):
                offset = await publish(value.encode(), key)
            outcome = "ok"
        except Refused:
            outcome = "failed"
        except Exception:  # It may be stored, or not.
            pass
        finally:
            self._scribe.write(
                Send(
                    *(began, now(), outcome, self.topic, self.name),
                    *(value, key, offset, self._numbered),
                )
            )
        return outcome == "ok"
