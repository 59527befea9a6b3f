"""A cluster of three is restored from a backup, as docs/operations/recovery.md says."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from pydanube import connect
from tests.support.broker_process import BrokerProcess
from tests.support.cluster_processes import FAST, ClusterProcesses

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

DANUBE = str(Path(sys.executable).parent / "danube")
OLD, NEW = "/default/old", "/default/new"
SECONDS_MAX = 60.0
REFUSED = 9
"""The exit code of a broker that finds more on its disk than the metadata know."""


def danube(*arguments: str) -> str:
    done = subprocess.run(
        [DANUBE, *arguments], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def answer(*arguments: str) -> Any:
    return json.loads(danube(*arguments, "--output", "json"))


async def publish(urls: list[str], topic: str, first: int, count: int) -> None:
    async with connect(",".join(urls)) as client, client.producer(topic) as producer:
        for number in range(first, first + count):
            await producer.send(b"%d" % number)


async def stored(urls: list[str], topic: str) -> list[bytes]:
    async with connect(",".join(urls)) as client:
        table = await client.reader(topic).to_arrow()
    found: list[bytes] = table["payload"].to_pylist()
    return found


def founding(directory: Path, number: int, **metadata: Any) -> tuple[str, str]:
    """Let a broker's file say how it comes into the cluster; return that as a flag."""
    path = directory / f"broker-{number}.yml"
    config = yaml.safe_load(path.read_text())
    config["meta_store"] |= metadata
    path.write_text(yaml.safe_dump(config))
    return "--config-file", str(path)


def start_added(broker: BrokerProcess, config: tuple[str, str], first: BrokerProcess) -> None:
    """Start a broker, add it, and bring in what its journal has beyond the metadata."""
    broker.start(wait=False)
    deadline = time.monotonic() + SECONDS_MAX
    while not _is_added(broker, first):
        assert time.monotonic() < deadline, broker.log_tail()
        time.sleep(0.1)  # Another process tells nobody when it listens.
    while not broker.is_ready():
        assert time.monotonic() < deadline, broker.log_tail()
        assert broker.process is not None
        if (code := broker.process.poll()) is not None:
            assert code == REFUSED, broker.log_tail()
            broker.process = None
            danube("recover", *config, "--apply")
            broker.start()
        time.sleep(0.05)  # The same.


def _is_added(broker: BrokerProcess, first: BrokerProcess) -> bool:
    command = [DANUBE, "cluster", "add-node", "--node-addr", broker.admin_url]
    done = subprocess.run(
        [*command, "--endpoint", first.admin_url],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    return done.returncode == 0


async def test_a_cluster_is_restored_with_journals_newer_than_the_backup(tmp_path: Path) -> None:
    cluster = ClusterProcesses(tmp_path, 3, times=FAST, replicas=2)
    file = str(tmp_path / "metadata.backup")
    with cluster:
        await publish(cluster.urls, OLD, 0, 20)
        danube("backup", "create", file, "--endpoint", cluster.brokers[1].admin_url)
        await publish(cluster.urls, OLD, 20, 20)
        await publish(cluster.urls, NEW, 0, 50)
        for broker in cluster.brokers:
            broker.kill()
        danube("backup", "verify", file)
        own = founding(tmp_path, 0, seed_nodes=[cluster.raft_addresses[0]])
        joining = {n: founding(tmp_path, n, seed_nodes=[], join=True) for n in (1, 2)}
        for config in (own, *joining.values()):
            danube("backup", "restore", file, *config, "--replace")
        danube("recover", *own, "--apply")
        first = cluster.brokers[0]
        first.start()
        for number, config in joining.items():
            start_added(cluster.brokers[number], config, first)
        for node in answer("cluster", "status", "--endpoint", first.admin_url)["learners"]:
            danube("cluster", "promote-node", "--node-id", str(node), "--endpoint", first.admin_url)
        assert await stored(cluster.urls, OLD) == [b"%d" % number for number in range(40)]
        assert await stored(cluster.urls, NEW) == [b"%d" % number for number in range(50)]
        await publish(cluster.urls, OLD, 40, 1)
