"""Real brokers whose metadata are in a real etcd: brokers are killed, and so is etcd."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from pydanube import connect
from tests.e2e.test_cluster import TOPICS, Publishing, check_all_is_there, live_through
from tests.support.cluster_processes import FAST, ClusterProcesses
from tests.support.etcd_server import EtcdServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path / "etcd").start()
    yield server
    server.kill()


@pytest.fixture
def cluster(tmp_path: Path, etcd: EtcdServer) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path, 3, times=FAST, etcd_url=etcd.url) as cluster:
        yield cluster


async def test_clients_carry_on_while_brokers_are_killed(cluster: ClusterProcesses) -> None:
    try:
        assert await live_through(cluster, "kill", turns=2) > 50
    except BaseException:
        print(cluster.logs())
        raise


async def test_clients_carry_on_when_etcd_is_back(
    cluster: ClusterProcesses, etcd: EtcdServer
) -> None:
    try:
        async with connect(cluster.urls[0]) as client, client.producer(TOPICS[0]) as producer:
            work = Publishing(producer)
            task = asyncio.create_task(work.run())
            for _ in range(2):
                await work.goes_on()
                etcd.kill()
                await asyncio.to_thread(etcd.start)
                await work.goes_on()
            work.stopping = True
            await task
        await check_all_is_there(cluster.urls[1], TOPICS[0], work)
    except BaseException:
        print(cluster.logs())
        raise
