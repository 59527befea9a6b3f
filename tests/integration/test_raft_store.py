"""Raft stores over real files and real calls on loopback."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.raft import measure_etcd, measure_raft, open_cluster
from pydanube.errors import Conflict
from pydanube.metadata.commands import MIB
from pydanube.metadata.local_store import LocalMetadataStore
from pydanube.metadata.raft_store import RaftPlace, RaftStore
from pydanube.metadata.store import Expect, Put
from pydanube.runtime.machine import this_machine
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.http2.channel import Http2Channel
from pydanube.wire.http2.engine import Http2Engine


@pytest.fixture
async def tasks() -> AsyncIterator[TaskScope]:
    failures: list[BaseException] = []
    scope = TaskScope(lambda _, failure: failures.append(failure))
    yield scope
    await scope.close()
    assert not failures


async def open_alone(directory: str, tasks: TaskScope) -> RaftStore:
    machine = this_machine()
    place = RaftPlace(directory=directory, host="127.0.0.1", port=0, address="127.0.0.1:7650")
    store = await RaftStore.open(
        machine, tasks, Http2Engine(clock=machine.clock), Http2Channel, place
    )
    await store.wait_until_ready()
    return store


async def test_a_node_alone_keeps_what_was_written(tmp_path: Path, tasks: TaskScope) -> None:
    store = await open_alone(str(tmp_path), tasks)
    node = store.node
    for number in range(10):
        await store.put(f"/{number}", b"x")
    with pytest.raises(Conflict, match="in use by another process"):
        await open_alone(str(tmp_path), tasks)
    await store.close()
    store = await open_alone(str(tmp_path), tasks)
    assert (store.node, store.revision, len(store.list("/"))) == (node, 10, 10)
    assert (tmp_path / "node_id").read_text() == f"{node}\n"
    await store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "small"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def fill(ballast: Path) -> None:
    """Write until nothing is left."""
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4_096))


async def test_a_node_goes_on_though_something_else_has_filled_the_disk(
    small_disk: Path, tasks: TaskScope
) -> None:
    store = await open_alone(str(small_disk / "raft"), tasks)
    fill(small_disk / "ballast")
    for number in range(50):
        await store.put(f"/{number}", b"x" * 10_000)
    assert store.failure is None
    await store.close()
    (small_disk / "ballast").unlink()
    store = await open_alone(str(small_disk / "raft"), tasks)
    assert len(store.list("/")) == 50
    await store.close()


async def test_what_a_broker_alone_had_is_taken_over(tmp_path: Path, tasks: TaskScope) -> None:
    machine = this_machine()
    local = await LocalMetadataStore.open(machine.files, machine.clock, tasks, str(tmp_path))
    await local.put("/a", b"1")
    await local.next_id("/ids")
    await local.close()
    (tmp_path / "node_id").write_text("77\n")
    store = await open_alone(str(tmp_path), tasks)
    entry = store.get("/a")
    assert entry is not None
    assert (store.node, entry.value, await store.next_id("/ids")) == (77, b"1", 2)
    await store.close()


async def test_three_nodes_agree(tmp_path: Path, tasks: TaskScope) -> None:
    stores = await open_cluster(str(tmp_path), 3, tasks)
    for number, store in enumerate(stores):
        await store.put(f"/{number}", b"x" * 100_000)
    for store in stores:
        await store.read_barrier()
        assert len(store.list("/")) == 3
    for store in stores:
        await store.close()


async def test_the_largest_transaction_passes_through_a_follower(
    tmp_path: Path, tasks: TaskScope
) -> None:
    stores = await open_cluster(str(tmp_path), 3, tasks)
    follower = next(store for store in stores if not store.is_leader)
    values = [Put(f"/large/{number}", b"x" * (MIB - 100)) for number in range(8)]
    absent = [Expect("/" + f"{number:04}" * 2_000, 0) for number in range(1_000)]
    assert await follower.transact(absent, values) == 1
    for store in stores:
        await store.read_barrier()
        assert len(store.list("/large/")) == 8
    for store in stores:
        await store.close()


def test_the_benchmark_runs() -> None:
    figures = measure_raft(3, writes=50)
    assert all(figure > 0 for figure in figures.values())


def test_the_benchmark_of_etcd_runs() -> None:
    assert all(figure > 0 for figure in measure_etcd(writes=50).values())
