"""A broker per test, over a real connection and real files."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.raw_client import RawClient
from tests.support.running_broker import RunningBroker

StartBroker = Callable[..., Awaitable[RunningBroker]]
BOTH_ENGINES = pytest.mark.parametrize("engine", ["http2", "grpcio"])
"""For modules about the wire itself. What happens behind it is the same for both."""


@pytest.fixture
def engine() -> str:
    """What carries the calls, unless a module asks for both."""
    return "http2"


@pytest.fixture
async def start_broker(
    engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
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
async def client(broker: RunningBroker) -> RawClient:
    return broker.client()
