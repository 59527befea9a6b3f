"""A cluster of three brokers for every test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.broker_cluster import BrokerCluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BrokerCluster]:
    cluster = BrokerCluster(tmp_path, 3)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.close()
