"""The brokers a client talks to: who serves a topic, and how to keep trying until one does."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from pydanube.client.connection import BrokerAddress, Connection, closed
from pydanube.client.retry import JITTER_MAX, JITTER_MIN, RetryPolicy
from pydanube.errors import DanubeError, NotFound, Overloaded
from pydanube.runtime.clock import Clock
from pydanube.runtime.randomness import Randomness
from pydanube.wire.calls import ExchangeChannel

Attached = TypeVar("Attached")

OpenChannel = Callable[[str], ExchangeChannel]
"""Returns a channel to a URL without connecting yet."""


class Surroundings(Struct, frozen=True, kw_only=True):
    """What a client takes from outside, so that tests and simulations can give their own."""

    open_channel: OpenChannel
    clock: Clock
    randomness: Randomness
    retry: RetryPolicy


class Brokers:
    """One connection per address, made when first needed and kept until `close`.

    Any broker of a cluster can tell about all: `service` is the one that is asked, at first the
    first that the client was given, and another one once that does not answer.
    """

    def __init__(self, service_urls: Sequence[str], surroundings: Surroundings) -> None:
        self.surroundings = surroundings
        self._channels: dict[str, ExchangeChannel] = {}
        self._connections: dict[BrokerAddress, Connection] = {}
        self._is_closed = False
        self.service, *_ = [self.at(BrokerAddress(url, url)) for url in service_urls]

    def at(self, address: BrokerAddress) -> Connection:
        """Return the connection to an address; broker lists are short, so none is evicted."""
        if self._is_closed:
            raise closed(address.connect_url)
        connection = self._connections.get(address)
        if connection is None:
            channel = self._channels.get(address.connect_url)
            if channel is None:
                channel = self.surroundings.open_channel(address.connect_url)
                self._channels[address.connect_url] = channel
            connection = self._connections[address] = Connection(channel, address)
        return connection

    async def serving(self, topic: str, last: Connection) -> Connection:
        """Return the connection to the broker that serves a topic, as far as anybody knows.

        Asks the broker used last, then all others that are known. When none can tell, one that
        answered is as good as any: it may create the topic, or say what is wrong.
        """
        answered = None
        for connection in self._known(last):
            try:
                address = await connection.look_up(topic)
            except NotFound:
                answered = answered or connection
                continue
            except DanubeError:
                continue
            self._reached(connection)
            return self.at(address)
        return answered or last

    async def partitions(self, topic: str) -> list[str]:
        """Return the topic itself, or its partitions, or nothing if there is no such topic."""
        refusal: DanubeError | None = None
        for connection in self._known(self.service):
            try:
                found = await connection.partitions(topic)
            except DanubeError as error:
                if not error.retryable:
                    raise
                refusal = refusal or error
            else:
                self._reached(connection)
                return found
        assert refusal is not None
        raise refusal

    def ask_another(self) -> None:
        """Take the next broker for what any of them can tell: the present one did not answer."""
        known = self._known(self.service)
        self.service = known[1 % len(known)]

    def _known(self, first: Connection) -> list[Connection]:
        """Return all brokers: that one first, then the one that is asked for everything.

        Those that did not answer lately come last, for a broker that is frozen takes its time.
        """
        known = dict.fromkeys((first, self.service, *self._connections.values()))
        return sorted(known, key=lambda connection: connection.is_troubled)

    def _reached(self, connection: Connection) -> None:
        # Through a proxy, one address stands for many brokers, and only by name for one of them.
        if not connection.address.proxy:
            self.service = connection

    async def attach(
        self,
        topic: str,
        last: Connection,
        call: Callable[[Connection], Awaitable[Attached]],
    ) -> tuple[Connection, Attached]:
        """Find the topic's broker and make `call` there, as often as the retry policy allows."""
        attempt = 0
        while True:
            connection = await self.serving(topic, last)
            try:
                return connection, await call(connection)
            except DanubeError as error:
                if not (error.retryable and self.surroundings.retry.allows(attempt)):
                    raise
            await self.pause(attempt)
            attempt += 1

    async def pause(self, attempt: int) -> None:
        """Wait as long as the retry policy asks after attempt number `attempt`, from 0."""
        jitter = self.surroundings.randomness.uniform(JITTER_MIN, JITTER_MAX)
        seconds = self.surroundings.retry.pause_seconds(attempt, jitter)
        await self.surroundings.clock.sleep(seconds)

    async def pause_after(self, lost: DanubeError | None, attempt: int) -> None:
        """Wait before attempt number `attempt`, from 0, to go on with what has worked before.

        None if a broker did not answer. One that has too much to do is left alone for longer.
        """
        if isinstance(lost, Overloaded):
            await self.pause(attempt)
            return
        jitter = self.surroundings.randomness.uniform(JITTER_MIN, JITTER_MAX)
        seconds = self.surroundings.retry.mend_pause_seconds(attempt, jitter)
        await self.surroundings.clock.sleep(seconds)

    async def close(self) -> None:
        """Cut running calls off and release every connection."""
        self._is_closed = True
        for connection in self._connections.values():
            connection.is_closed = True
        channels, self._channels = self._channels, {}
        self._connections = {}
        # All at once: each may wait for a while until its broker has let it go.
        await asyncio.gather(*(channel.close() for channel in channels.values()))
