"""Raft nodes that show each other certificates, and nodes that should not meet: real sockets."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pydanube.metadata.raft_calls import NODE_INFO, NodeInfo, decode, envelope
from pydanube.metadata.raft_store import RaftPlace, RaftStore
from pydanube.runtime.machine import this_machine
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.calls import CallRefused, StatusCode
from pydanube.wire.http2.channel import Http2Channel
from pydanube.wire.http2.engine import Http2Engine
from pydanube.wire.http2.tls import TlsFiles
from tests.support.broker_process import free_ports
from tests.support.certificates import Authority, Installed

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")

PATIENCE = 30.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture
async def tasks() -> AsyncIterator[TaskScope]:
    failures: list[BaseException] = []
    scope = TaskScope(lambda _, failure: failures.append(failure))
    yield scope
    await scope.close()
    assert not failures


class Node:
    """A node with certificate files of its own."""

    def __init__(self, folder: Path, name: str, port: int, seeds: list[str]) -> None:
        folder.mkdir()
        self._folder = folder
        self.name = name
        self.address = f"127.0.0.1:{port}"
        self._seeds = seeds
        self.installed: Installed
        self.files: TlsFiles
        self.store: RaftStore

    def certify(self, authority: Authority, trusted: Authority | None = None) -> None:
        self.installed = Installed(self._folder, clients=trusted or authority)
        self.installed.put(*authority.sign(self.name))

    async def open(self, tasks: TaskScope, cluster_name: str = "orders") -> RaftStore:
        machine = this_machine()
        self.files = self.installed.files()
        self.store = await RaftStore.open(
            machine,
            tasks,
            Http2Engine(clock=machine.clock, tls=self.files),
            lambda address: Http2Channel(f"https://{address}", tls=self.files.calling),
            RaftPlace(
                directory=str(self._folder / "raft"),
                host="127.0.0.1",
                port=int(self.address.partition(":")[2]),
                address=self.address,
                seed_nodes=tuple(self._seeds),
                cluster_name=cluster_name,
            ),
        )
        return self.store


def nodes_in(folder: Path, count: int) -> list[Node]:
    ports = free_ports(count)
    seeds = [f"127.0.0.1:{port}" for port in ports]
    return [
        Node(folder / f"node{number}", f"node{number}", port, seeds if count > 1 else [])
        for number, port in enumerate(ports, 1)
    ]


async def test_nodes_with_certificates_agree(
    tmp_path: Path, tasks: TaskScope, authority: Authority
) -> None:
    nodes = nodes_in(tmp_path, 3)
    for node in nodes:
        node.certify(authority)
        await node.open(tasks)
    async with asyncio.timeout(PATIENCE):
        for node in nodes:
            await node.store.wait_until_ready()
            await node.store.put(f"/{node.name}", b"x" * 100_000)
        for node in nodes:
            await node.store.read_barrier()
            assert len(node.store.list("/")) == 3
    for node in nodes:
        await node.store.close()


async def info_of(channel: Http2Channel) -> NodeInfo:
    try:
        reply = await channel.unary(NODE_INFO, envelope("orders", b""), timeout_seconds=PATIENCE)
    finally:
        await channel.close()
    return decode(reply, NodeInfo)


async def test_a_caller_without_a_known_certificate_is_refused_and_the_log_says_why(
    tmp_path: Path,
    tasks: TaskScope,
    authority: Authority,
    stranger: Authority,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (node,) = nodes_in(tmp_path, 1)
    node.certify(authority)
    store = await node.open(tasks)
    await store.wait_until_ready()
    url = f"https://{node.address}"
    assert (await info_of(Http2Channel(url, tls=node.files.calling))).node == store.node

    calling = node.files.calling()
    without = type(calling)(calling.protocol)
    without.load_verify_locations(authority.certificate)
    other = type(calling)(calling.protocol)
    other.load_verify_locations(authority.certificate)
    other.load_cert_chain(*stranger.sign("elsewhere"))
    for channel, reason in (
        (Http2Channel(url, tls=without), "peer did not return a certificate"),
        (Http2Channel(url, tls=other), "certificate verify failed"),
        (Http2Channel(f"http://{node.address}"), "http request|wrong version number"),
    ):
        caplog.clear()
        with pytest.raises(CallRefused) as refused:
            await info_of(channel)
        assert refused.value.code is StatusCode.UNAVAILABLE
        assert "TLS handshake failed" in caplog.text
        assert any(part in caplog.text for part in reason.split("|")), caplog.text
    await store.close()


async def test_a_node_that_another_authority_signed_does_not_join(
    tmp_path: Path, tasks: TaskScope, authority: Authority, stranger: Authority
) -> None:
    nodes = nodes_in(tmp_path, 2)
    nodes[0].certify(authority)
    nodes[1].certify(stranger)
    for node in nodes:
        await node.open(tasks)
    await asyncio.sleep(0.5)  # Time enough for what must not happen.
    assert [node.store.status().leader for node in nodes] == [0, 0]
    for node in nodes:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(node.store.wait_until_ready(), 0.1)
        await node.store.close()


async def test_a_renewed_certificate_is_used_for_new_connections_both_ways(
    tmp_path: Path, tasks: TaskScope, authority: Authority, stranger: Authority
) -> None:
    nodes = nodes_in(tmp_path, 2)
    for node in nodes:
        node.certify(authority)
        await node.open(tasks)
    async with asyncio.timeout(PATIENCE):
        for node in nodes:
            await node.store.wait_until_ready()
    # Both move to another authority; connections that exist go on.
    for node in nodes:
        node.certify(stranger)
        assert await node.files.refresh()
    await nodes[0].store.put("/a", b"1")
    # New connections are made with the new files, by either side.
    for node, other in (nodes, reversed(nodes)):
        channel = Http2Channel(f"https://{other.address}", tls=node.files.calling)
        assert (await info_of(channel)).address == other.address
    for node in nodes:
        await node.store.close()


async def test_a_node_of_another_cluster_is_refused_with_both_names(
    tmp_path: Path, tasks: TaskScope, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = nodes_in(tmp_path, 2)
    for node in (one, other):
        node.certify(authority)
    await one.open(tasks, "orders")
    await other.open(tasks, "invoices")
    async with asyncio.timeout(PATIENCE):
        while "refused a call from outside the cluster" not in caplog.text:
            await asyncio.sleep(0.01)
        while "a founder refuses this node" not in caplog.text:
            await asyncio.sleep(0.01)
    assert "'orders'" in caplog.text
    assert "'invoices'" in caplog.text
    assert [node.store.status().membership.voters for node in (one, other)] == [{}, {}]
    for node in (one, other):
        await node.store.close()
