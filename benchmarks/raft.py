"""What agreeing costs: metadata writes through Raft, by one node and by three, and through etcd.

Run with `python -m benchmarks.raft`. Syncs are real. All Raft nodes share this one process and its
core; etcd, one server, has a process of its own, and is left out where it is not installed.
"""

import asyncio
import shutil
import socket
import tempfile
import time
from pathlib import Path

from pydanube.metadata.etcd_layout import EtcdLayout
from pydanube.metadata.etcd_store import EtcdMetadataStore
from pydanube.metadata.raft_store import RaftPlace, RaftStore
from pydanube.metadata.store import MetadataStore
from pydanube.metadata.transport import RAFT_LIMITS
from pydanube.runtime.machine import this_machine
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.etcd.client import EtcdClient
from pydanube.wire.http2.channel import Http2Channel
from pydanube.wire.http2.engine import Http2Engine
from tests.support.etcd_server import EtcdServer

WRITES = 3_000
ALONE = 300
IN_FLIGHT = 100
VALUE = b"x" * 256


def measure_raft(nodes: int, writes: int = WRITES) -> dict[str, float]:
    """Return the figures of a cluster of so many nodes."""
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(_measure(directory, nodes, writes))


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


async def open_cluster(directory: str, nodes: int, tasks: TaskScope) -> list[RaftStore]:
    """Open so many nodes and wait until they agree."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(nodes)]
    stores = []
    for number, address in enumerate(addresses):
        place = RaftPlace(
            directory=f"{directory}/{number}",
            host="127.0.0.1",
            port=int(address.partition(":")[2]),
            address=address,
            seed_nodes=tuple(addresses) if nodes > 1 else (),
        )
        machine = this_machine()
        stores.append(
            await RaftStore.open(
                machine,
                tasks,
                Http2Engine(clock=machine.clock, limits=RAFT_LIMITS),
                Http2Channel,
                place,
            )
        )
    for store in stores:
        await store.wait_until_ready()
    return stores


async def _measure(directory: str, nodes: int, writes: int) -> dict[str, float]:
    tasks = TaskScope(_report)
    started = time.perf_counter()
    stores = await open_cluster(directory, nodes, tasks)
    figures = {"open until ready, ms": (time.perf_counter() - started) * 1e3}
    leader = next(store for store in stores if store.is_leader)
    figures |= await _write(leader, "through the leader", writes)
    if nodes > 1:
        follower = next(store for store in stores if not store.is_leader)
        figures |= await _write(follower, "through a follower", writes)
        seconds = await _repeat(follower.read_barrier, ALONE)
        figures["linearizable read on a follower, p50 ms"] = seconds[len(seconds) // 2] * 1e3
    for store in stores:
        await store.close()
    await tasks.close()
    return figures


def measure_etcd(writes: int = WRITES) -> dict[str, float]:
    """Return the figures of a store in an etcd that is alone."""
    with tempfile.TemporaryDirectory() as directory:
        server = EtcdServer(Path(directory)).start()
        try:
            return asyncio.run(_measure_etcd(server.url, writes))
        finally:
            server.kill()


async def _measure_etcd(url: str, writes: int) -> dict[str, float]:
    started = time.perf_counter()
    store = await EtcdMetadataStore.open(
        EtcdClient([url], Http2Channel), this_machine().clock, EtcdLayout("/bench"), identity=b"x"
    )
    figures = {"open until ready, ms": (time.perf_counter() - started) * 1e3}
    figures |= await _write(store, "in etcd", writes)
    await store.close()
    return figures


async def _write(store: MetadataStore, way: str, writes: int) -> dict[str, float]:
    alone = await _repeat(lambda: store.put("/alone", VALUE), ALONE)
    numbers = iter(range(writes))
    seconds: list[float] = []

    async def write() -> None:
        for number in numbers:
            began = time.perf_counter()
            await store.put(f"/keys/{number}", VALUE)
            seconds.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(write() for _ in range(IN_FLIGHT)))
    total = time.perf_counter() - began
    seconds.sort()
    return {
        f"one at a time {way}, p50 ms": alone[len(alone) // 2] * 1e3,
        f"one at a time {way}, p99 ms": alone[int(len(alone) * 0.99)] * 1e3,
        f"{IN_FLIGHT} in flight {way}, writes per second": writes / total,
        f"{IN_FLIGHT} in flight {way}, p99 ms": seconds[int(len(seconds) * 0.99)] * 1e3,
    }


async def _repeat(work, count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        await work()
        seconds.append(time.perf_counter() - began)
    return sorted(seconds)


def _report(name: str, failure: BaseException) -> None:
    print(f"{name} failed: {failure!r}")


def print_raft_figures() -> None:
    """Print one figure a line."""
    for nodes in (1, 3):
        for name, figure in measure_raft(nodes).items():
            print(f"{nodes} node{'s' if nodes > 1 else ' '}  {name:58} {figure:12,.1f}")
    if shutil.which("etcd") is None:
        print("etcd is not installed")
        return
    for name, figure in measure_etcd().items():
        print(f"etcd     {name:58} {figure:12,.1f}")


if __name__ == "__main__":
    print_raft_figures()
