"""A real broker that serves what the original Danube serves, and nothing of PyDanube's own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from typing_extensions import override

from pydanube.broker.config import standalone_config
from pydanube.broker.server import BrokerServer, engine_named
from pydanube.wire.calls import ConnectionLimit, Engine, HandlerTable, Server
from pydanube.wire.danube import services
from pydanube.wire.flight import service as flight

OWN_SERVICES = (
    flight.SERVICE,
    services.SUBSCRIPTION_CONTROL,
    services.TOPIC_CONTROL,
    services.SCHEMA_CONTROL,
)
_ANY_PORTS = {f"broker.ports.{name}": 0 for name in ("client", "admin", "prometheus")}


class OldEngine(Engine):
    """Serves a table without the paths that the original does not know."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @override
    async def serve(
        self,
        table: HandlerTable,
        host: str,
        port: int,
        connections: ConnectionLimit | None = None,
    ) -> Server:
        return await self._engine.serve(_without_own(table), host, port, connections)


def _without_own(table: HandlerTable) -> HandlerTable:
    left = HandlerTable()
    left.unary = {path: each for path, each in table.unary.items() if _is_old(path)}
    left.direct = {path: each for path, each in table.direct.items() if _is_old(path)}
    left.streams = {path: each for path, each in table.streams.items() if _is_old(path)}
    left.exchanges = {path: each for path, each in table.exchanges.items() if _is_old(path)}
    return left


def _is_old(path: str) -> bool:
    return path.split("/")[1] not in OWN_SERVICES


@asynccontextmanager
async def flightless_broker(directory: Path, engine: str) -> AsyncIterator[str]:
    """Run one over a directory; gives its URL."""
    config = standalone_config(str(directory), overrides=_ANY_PORTS)
    server = await BrokerServer.start(config, engine=OldEngine(engine_named(engine)))
    try:
        yield f"http://127.0.0.1:{server.client_port}"
    finally:
        await server.stop()
