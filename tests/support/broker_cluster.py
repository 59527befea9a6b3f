"""Several brokers inside the test that form a cluster: real engine, real files, free ports."""

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydanube.broker.clustering import Clustering
from pydanube.broker.config import standalone_config
from pydanube.broker.server import BrokerServer
from pydanube.cluster.planning import ask_for
from pydanube.errors import Unavailable
from pydanube.model.ids import BrokerId
from pydanube.topics.manager import TopicManager
from tests.support.broker_process import free_ports
from tests.support.raw_client import RawClient
from tests.support.running_broker import PATIENT

WAIT_SECONDS_MAX = 30.0


class ClusterBroker:
    """One broker of a cluster, started and stopped over one directory."""

    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        self.directory = directory
        self.settings = settings
        self._server: BrokerServer | None = None

    @property
    def server(self) -> BrokerServer:
        assert self._server is not None, "the broker is not running"
        return self._server

    @property
    def is_running(self) -> bool:
        return self._server is not None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.client_port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.server.admin_port}"

    @property
    def peer_address(self) -> str:
        """Where other brokers reach it."""
        return f"127.0.0.1:{self.settings['broker.ports.raft']}"

    @property
    def _serving(self) -> Any:
        serving = self.server._broker._serving  # No user needs this door; a test does.
        assert serving is not None
        return serving

    @property
    def id(self) -> BrokerId:
        broker: BrokerId = self._serving.broker_id
        return broker

    @property
    def topics(self) -> TopicManager:
        topics: TopicManager = self._serving.topics
        return topics

    @property
    def clustering(self) -> Clustering:
        clustering: Clustering = self._serving.clustering
        return clustering

    @property
    def store(self) -> Any:
        return self._serving.metadata

    async def start(self) -> None:
        config = standalone_config(str(self.directory), overrides={**PATIENT, **self.settings})
        self._server = await BrokerServer.start(config)

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop()

    async def vanish(self) -> None:
        """End without a word: nothing is handed over, and the lease runs out by itself."""
        server, self._server = self.server, None
        broker = server._broker
        serving = broker._serving
        assert serving is not None
        # Neither leadership nor leases are given up: nothing more reaches the metadata.
        if serving.opened.raft is not None:
            serving.opened.raft._node.failure = Unavailable("vanished")
        if serving.opened.etcd is not None:
            serving.opened.etcd._failure = Unavailable("vanished")
        await server._close()


def _among_brokers(ports: list[int]) -> dict[str, Any]:
    return {"meta_store.seed_nodes": [f"127.0.0.1:{port}" for port in ports]}


def _in_etcd(url: str) -> dict[str, Any]:
    """Return settings for a cluster of its own: tests share a server."""
    return {
        "meta_store.backend": "etcd",
        "meta_store.etcd.endpoints": [url],
        "meta_store.etcd.prefix": f"/test/{uuid.uuid4()}",
    }


class BrokerCluster:
    """Brokers that know each other. Segments lie in one directory that all of them read."""

    def __init__(
        self,
        directory: Path,
        count: int,
        settings: dict[str, Any] | None = None,
        *,
        etcd_url: str | None = None,
    ) -> None:
        ports = free_ports(count)
        shared = {
            "cluster_name": "TEST",
            **{f"broker.ports.{name}": 0 for name in ("client", "admin", "prometheus")},
            **(_among_brokers(ports) if etcd_url is None else _in_etcd(etcd_url)),
            "storage.mode": "shared_fs",
            "storage.durable.root": str(directory / "shared"),
            **(settings or {}),
        }
        self.brokers = [
            ClusterBroker(directory / f"broker-{port}", {**shared, "broker.ports.raft": port})
            for port in ports
        ]
        self._clients: list[RawClient] = []

    async def start(self) -> None:
        await asyncio.gather(*(broker.start() for broker in self.brokers))
        count = len(self.brokers)
        await self.until(
            lambda: all(
                len(each.clustering.directory.view.brokers) == count for each in self.brokers
            )
        )

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        await asyncio.gather(*(broker.stop() for broker in self.brokers))

    def client(self, broker: ClusterBroker) -> RawClient:
        """Return a client that talks to one broker alone."""
        client = RawClient(broker.url, broker.admin_url)
        self._clients.append(client)
        return client

    def owner(self, topic: str) -> ClusterBroker | None:
        """Return the broker that serves a topic now."""
        serving = [
            each for each in self.brokers if each.is_running and each.topics.find(topic) is not None
        ]
        assert len(serving) <= 1, f"{topic} is served by {len(serving)} brokers"
        return serving[0] if serving else None

    async def owned(self, topic: str) -> ClusterBroker:
        """Wait until a topic is served, and return by whom."""
        await self.until(lambda: self.owner(topic) is not None)
        owner = self.owner(topic)
        assert owner is not None
        return owner

    async def leading(self) -> ClusterBroker:
        """Wait until a broker leads the cluster, and return which."""

        def leaders() -> list[ClusterBroker]:
            running = [each for each in self.brokers if each.is_running]
            return [each for each in running if each.clustering.reading().leads]

        await self.until(lambda: bool(leaders()))
        return leaders()[0]

    async def move(self, topic: str, to: ClusterBroker) -> None:
        """Ask the owner to hand a topic over, and wait until the other one serves it."""
        owner = await self.owned(topic)
        if owner is to:
            return
        await self.until(lambda: topic not in owner.clustering.directory.read().markers)
        step = ask_for(owner.clustering.directory.read(), topic, "unload", 0, to=to.id)
        await owner.store.transact(step.conditions, step.operations)
        await self.until(lambda: self.owner(topic) is to)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something that no call tells."""
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not is_so():
                await asyncio.sleep(0.01)
