"""A whole broker inside the test: real engine, real files, any free ports."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from msgspec import structs

from pydanube.broker.config import standalone_config
from pydanube.broker.server import BrokerServer, engine_named
from pydanube.runtime.machine import this_machine
from pydanube.topics.manager import TopicManager
from pydanube.wire.calls import CallRefused
from pydanube.wire.danube.services import Method
from tests.support.advancing_clock import AdvancingClock
from tests.support.raw_client import RawClient

PATIENT = {"storage.sync_seconds_max": 60}
"""A disk that many tests share may take its time; only tests of hanging disks ask for less."""
_ANY_PORTS = {f"broker.ports.{name}": 0 for name in ("client", "admin", "prometheus")}


class RunningBroker:
    """Starts, stops and restarts one broker over one data directory, and lends clients."""

    def __init__(
        self,
        directory: Path,
        settings: dict[str, Any] | None = None,
        *,
        engine: str = "http2",
    ) -> None:
        self.directory = directory
        self._settings = {**_ANY_PORTS, **PATIENT, **(settings or {})}
        self._engine = engine
        self.clock = AdvancingClock()
        self._clients: list[RawClient] = []
        self._server: BrokerServer | None = None

    @property
    def server(self) -> BrokerServer:
        assert self._server is not None, "the broker is not running"
        return self._server

    async def start(self) -> None:
        config = standalone_config(str(self.directory), overrides=self._settings)
        machine = structs.replace(this_machine(), clock=self.clock)
        self._server = await BrokerServer.start(
            config, engine=engine_named(self._engine), machine=machine
        )

    async def stop(self) -> None:
        """Stop in order, with the clients still connected."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop()

    async def restart(self) -> None:
        """Come back on other ports; clients must be taken anew."""
        await self.stop()
        await self.start()

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        stopping = asyncio.create_task(self.stop())
        while not stopping.done():
            self.clock.advance(1)  # Nobody is connected whose last calls must be waited for.
            await asyncio.wait([stopping], timeout=0.01)
        await stopping

    def client(self) -> RawClient:
        """Return a client with a connection of its own."""
        client = RawClient(
            f"http://127.0.0.1:{self.server.client_port}",
            f"http://127.0.0.1:{self.server.admin_port}",
        )
        self._clients.append(client)
        return client

    @property
    def _serving(self) -> Any:
        serving = self.server._broker._serving  # No user needs this door; a test does.
        assert serving is not None
        return serving

    @property
    def topics(self) -> TopicManager:
        """The broker's topics themselves, to wait for what no call tells."""
        topics: TopicManager = self._serving.topics
        return topics

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something inside the broker."""
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)

    def metadata(self) -> dict[str, bytes]:
        """Return everything the broker would know after a restart, by key."""
        entries = self._serving.metadata.list("/")
        return {entry.key: entry.value for entry in entries if "/counters/" not in entry.key}

    async def refusal(
        self, client: RawClient, method: Method[Any, Any], request: Message
    ) -> CallRefused:
        """Make a call that must be refused and must change nothing."""
        before = self.metadata()
        with pytest.raises(CallRefused) as refused:
            await client.call(method, request)
        assert self.metadata() == before, "a refused call has changed something"
        return refused.value
