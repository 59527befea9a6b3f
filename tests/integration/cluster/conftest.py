"""A cluster of three brokers for every test: once on Raft, once on an etcd."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.broker_cluster import BrokerCluster
from tests.support.etcd_server import shared_etcd


@pytest.fixture(params=["raft", "etcd"])
def etcd_url(request: pytest.FixtureRequest) -> str | None:
    """Where the metadata are; None where the brokers keep them themselves."""
    return shared_etcd().url if request.param == "etcd" else None


@pytest.fixture
async def cluster(tmp_path: Path, etcd_url: str | None) -> AsyncIterator[BrokerCluster]:
    cluster = BrokerCluster(tmp_path, 3, etcd_url=etcd_url)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.close()
