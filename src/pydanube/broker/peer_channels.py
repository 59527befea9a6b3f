"""Connections to other brokers of a cluster, one to an address."""

from collections.abc import Callable

from pydanube.wire.calls import Channel

Connect = Callable[[str], Channel]
"""Makes a channel to an address, host:port."""


class PeerChannels:
    """Makes a channel when an address is first asked for, and keeps it."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._channels: dict[str, Channel] = {}

    def to(self, address: str) -> Channel:
        """Return the channel to an address; nothing is sent yet."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._connect(address)
        return channel

    async def close(self) -> None:
        """Release all connections."""
        for channel in self._channels.values():
            await channel.close()
