"""A cluster grows by the procedure of docs/operations/cluster.md, with real processes."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pydanube import connect
from tests.support.broker_process import BrokerProcess, free_ports

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

BIN = Path(sys.executable).parent
COMMAND_SECONDS_MAX = 30.0
TOPIC = "/default/orders"


def broker(directory: Path, name: str, *arguments: str, **metadata: Any) -> BrokerProcess:
    """A broker with a configuration file of its own, as the page says."""
    data = directory / name
    data.mkdir()
    config = {
        "cluster_name": "GROWING",
        "broker": {"host": "127.0.0.1", "ports": {"raft": free_ports(1)[0]}},
        "meta_store": {"data_dir": str(data / "raft"), **metadata},
        "bootstrap_namespaces": ["default"],
        "auth": {"mode": "none"},
        "storage": {
            "mode": "shared_fs",
            "local_wal_root": str(data / "wal"),
            "durable": {"root": str(directory / "segments")},
        },
        "policies": {},
    }
    path = directory / f"{name}.yml"
    path.write_text(yaml.safe_dump(config))
    return BrokerProcess(data, "--mode", "cluster", "--config-file", str(path), *arguments)


def run(command: str, endpoint: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / command), *arguments, "--endpoint", endpoint, "--output", "json"],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        check=False,
    )


def answer(command: str, endpoint: str, *arguments: str) -> Any:
    done = run(command, endpoint, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def start_joining(joining: BrokerProcess) -> None:
    """Start a broker that will not be ready before it is added, and wait until it listens."""
    joining.start(wait=False)
    deadline = time.monotonic() + COMMAND_SECONDS_MAX
    while True:
        try:
            joining.get("/readyz")
        except OSError:
            assert time.monotonic() < deadline, joining.log_tail()
            time.sleep(0.02)  # Another process tells nobody when it listens.
        else:
            return


@pytest.fixture
def first(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with a configuration file and no seeds."""
    with broker(tmp_path, "first") as running:
        yield running


@pytest.fixture
def joining(tmp_path: Path) -> Iterator[BrokerProcess]:
    running = broker(tmp_path, "joining", "--join")
    try:
        yield running
    finally:
        if running.process is not None:
            running.kill()


@pytest.mark.parametrize("command", ["danube", "danube-admin"])
async def test_a_broker_joins_one_that_has_a_configuration_file_and_no_seeds(
    first: BrokerProcess, joining: BrokerProcess, command: str
) -> None:
    async with connect(first.url) as client, client.producer(TOPIC) as producer:
        await producer.send(b"before")
    start_joining(joining)
    added = answer(
        command, first.admin_url, "cluster", "add-node", "--node-addr", joining.admin_url
    )
    joining.wait_ready()
    (node,) = answer(command, first.admin_url, "cluster", "status")["learners"]
    assert added["message"].endswith(f"danube cluster promote-node --node-id {node}")
    answer(command, first.admin_url, "cluster", "promote-node", "--node-id", str(node))
    for asked in (first, joining):
        status = answer(command, asked.admin_url, "cluster", "status")
        assert node in status["voters"]
        assert len(status["voters"]) == 2
        assert len(answer(command, asked.admin_url, "brokers", "list")) == 2
    # What was there before is served on, and can be had through the newcomer.
    async with connect(joining.url) as client:
        async with client.producer(TOPIC) as producer:
            assert (await producer.send(b"after")).offset == 1
        table = await client.reader(TOPIC).to_arrow()
    assert table["payload"].to_pylist() == [b"before", b"after"]


def test_a_broker_that_waits_to_be_added_says_so_and_what_to_type(
    first: BrokerProcess, joining: BrokerProcess
) -> None:
    start_joining(joining)
    status = answer("danube", joining.admin_url, "cluster", "status")
    assert status["voters"] == []
    refused = run("danube", joining.admin_url, "topics", "list", "--namespace", "default")
    assert refused.returncode != 0
    assert "waits to be added" in refused.stderr
    assert f"danube cluster add-node --node-addr {joining.admin_url}" in refused.stderr
    code, why = joining.get("/readyz")
    assert code == 503
    assert "waits to be added" in why
    assert joining.terminate() == 0
