"""The brokers a client talks to: who serves a topic, and how to keep trying until one does."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from pydanube.client.connection import BrokerAddress, Connection
from pydanube.client.retry import JITTER_MAX, JITTER_MIN, RetryPolicy
from pydanube.errors import DanubeError
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
    """One connection per address, made when first needed and kept until `close`."""

    def __init__(self, service_url: str, surroundings: Surroundings) -> None:
        self.surroundings = surroundings
        self._channels: dict[str, ExchangeChannel] = {}
        self._connections: dict[BrokerAddress, Connection] = {}
        self.service = self.at(BrokerAddress(service_url, service_url))

    def at(self, address: BrokerAddress) -> Connection:
        """Return the connection to an address; broker lists are short, so none is evicted."""
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

        Asks the broker used last, then the one the client was given. When neither can tell, the
        one used last is as good as any: it may create the topic, or say what is wrong.
        """
        for connection in dict.fromkeys((last, self.service)):
            try:
                address = await connection.look_up(topic)
            except DanubeError:
                continue
            return self.at(address)
        return last

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

    async def close(self) -> None:
        """Cut running calls off and release every connection."""
        channels, self._channels = self._channels, {}
        self._connections = {}
        for channel in channels.values():
            await channel.close()
