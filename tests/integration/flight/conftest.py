"""A broker per test, and stock Flight clients, over both engines."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.flight_peer import FlightPeer
from tests.support.running_broker import RunningBroker

StartBroker = Callable[..., Awaitable[RunningBroker]]


@pytest.fixture(params=["grpcio", "http2"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def start_broker(
    tmp_path: Path, engine: str, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[StartBroker]:
    """Start a broker with policies of its own. Nothing it meets may be an error in its log."""
    started: list[RunningBroker] = []

    async def start(**policies: Any) -> RunningBroker:
        settings = {f"policies.{name}": value for name, value in policies.items()}
        broker = RunningBroker(tmp_path / f"data-{len(started)}", settings, engine=engine)
        started.append(broker)
        await broker.start()
        return broker

    yield start
    for broker in started:
        await broker.close()
    errors = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert errors == [], "no request may surprise the broker"


@pytest.fixture
async def broker(start_broker: StartBroker) -> RunningBroker:
    return await start_broker()


@pytest.fixture
async def peers(broker: RunningBroker) -> AsyncIterator[Callable[[], FlightPeer]]:
    """Connect as often as the test likes."""
    connected: list[FlightPeer] = []

    def connect() -> FlightPeer:
        connected.append(FlightPeer(broker.server.client_port))
        return connected[-1]

    yield connect
    for peer in connected:
        peer.close()


@pytest.fixture
async def peer(peers: Callable[[], FlightPeer]) -> FlightPeer:
    return peers()
