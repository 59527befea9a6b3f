"""What a network does to calls between brokers: loses them or their answers, brings them twice,
or so late that later ones overtake them.

A simulated connection keeps the order of its bytes, as TCP does. Calls know more than that: their
connection may break on either side of the work, and what a sender gave up, or a dead one had sent,
may still arrive.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from enum import Enum, auto

from typing_extensions import override

from pydanube.metadata.raft_calls import WRITE
from pydanube.runtime.network import Network
from pydanube.runtime.randomness import Randomness
from pydanube.wire.calls import Body, CallRefused, ExchangeChannel, StatusCode
from tests.support.plain_engine import PlainChannel

COURIER = "courier"
"""The host from which calls come that have left their sender already."""
LATE_SECONDS_MAX = 2.0
_ON_THE_WAY_MAX = 500

# A write that was forwarded carries no number: no transport brings it twice.
_ONCE = frozenset({WRITE})


class _Fate(Enum):
    LOST = auto()
    UNANSWERED = auto()
    TWICE = auto()
    LATE = auto()


class RoughWire:
    """Decides what becomes of each call; `trouble_percent` of them have trouble."""

    def __init__(self, courier: Network, randomness: Randomness) -> None:
        self.courier = courier
        self.trouble_percent = 0
        self.counts = dict.fromkeys((each.name.lower() for each in _Fate), 0)
        self._randomness = randomness
        self._on_the_way: dict[asyncio.Task[bytes], None] = {}

    def draw(self, path: str) -> _Fate | None:
        if not self.trouble_percent or self._randomness.below(100) >= self.trouble_percent:
            return None
        fates = list(_Fate)
        fate = fates[self._randomness.below(len(fates))]
        if fate is _Fate.TWICE and path in _ONCE:
            return None
        self.counts[fate.name.lower()] += 1
        return fate

    def told(self) -> dict[str, int]:
        """Return how many calls had which trouble."""
        return {f"calls {name}": count for name, count in self.counts.items() if count}

    def draw_seconds(self, longest: float = LATE_SECONDS_MAX) -> float:
        return self._randomness.uniform(0.0, longest)

    def carry(self, host: str, port: int, path: str, request: bytes) -> asyncio.Task[bytes]:
        """Bring a call to its target some time from now, whatever becomes of its sender."""
        work = self._carry(host, port, path, request, self.draw_seconds())
        task = asyncio.create_task(work, name=f"late {path}")
        self._on_the_way[task] = None
        task.add_done_callback(self._arrived)
        assert len(self._on_the_way) < _ON_THE_WAY_MAX, "calls are bounded by who makes them"
        return task

    def _arrived(self, task: asyncio.Task[bytes]) -> None:
        self._on_the_way.pop(task, None)
        if not task.cancelled():
            task.exception()  # Its sender may not wait for it any more.

    async def _carry(
        self, host: str, port: int, path: str, request: bytes, seconds: float
    ) -> bytes:
        await asyncio.sleep(seconds)
        channel = PlainChannel(self.courier, host, port)
        try:
            return await channel.unary(path, request, timeout_seconds=LATE_SECONDS_MAX)
        finally:
            await channel.close()

    async def close(self) -> None:
        tasks = list(self._on_the_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class RoughChannel(ExchangeChannel):
    """A channel from one broker to another over a rough wire."""

    def __init__(self, wire: RoughWire, network: Network, host: str, port: int) -> None:
        self._wire = wire
        self._host, self._port = host, port
        self._channel = PlainChannel(network, host, port)

    @override
    async def unary(
        self,
        path: str,
        request: bytes,
        *,
        metadata: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> bytes:
        async def call() -> bytes:
            return await self._channel.unary(
                path, request, metadata=metadata, timeout_seconds=timeout_seconds
            )

        wire = self._wire
        match wire.draw(path):
            case None:
                return await call()
            case _Fate.LOST:
                await asyncio.sleep(wire.draw_seconds(timeout_seconds or LATE_SECONDS_MAX))
            case _Fate.UNANSWERED:
                await call()
            case _Fate.TWICE:
                wire.carry(self._host, self._port, path, request)
                return await call()
            case _Fate.LATE:
                late = wire.carry(self._host, self._port, path, request)
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout_seconds):
                        return await asyncio.shield(late)
        raise CallRefused(StatusCode.UNAVAILABLE, "connection lost")

    @override
    def stream(
        self, path: str, request: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        return self._channel.stream(path, request, metadata=metadata)

    @override
    def exchange(
        self,
        path: str,
        requests: AsyncIterator[Body],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[bytes]:
        return self._channel.exchange(path, requests, metadata=metadata)

    @override
    async def close(self) -> None:
        await self._channel.close()
