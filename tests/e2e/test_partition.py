"""An owner that nobody reaches any more: it goes silent, another serves, and nothing is lost."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.test_wheel import ROOT
from tests.support.namespaces import Machines

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TOPIC = "/default/orders"
WAIT_SECONDS_MAX = 60.0


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, f"{what} has not happened"
        time.sleep(0.01)  # Other processes tell nobody.


class Cluster:
    """A broker on each of three machines; segments lie in a directory of all."""

    def __init__(self, machines: Machines, directory: Path) -> None:
        self.machines = machines
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._urls: dict[str, str] = {}

    def url(self, number: int) -> str:
        return f"http://{self.machines.address(number)}:6650"

    def start(self) -> None:
        for number in range(3):
            config = self._directory / f"broker-{number}.yml"
            config.write_text(yaml.safe_dump(self._config(number)))
            program = str(Path(sys.executable).parent / "danube")
            flags = ["broker", "--mode", "cluster", "--insecure", "--config-file", str(config)]
            with (self._directory / f"broker-{number}.log").open("wb") as log:
                self._processes.append(
                    subprocess.Popen(
                        [*self.machines.on(number), program, *flags], stdout=log, stderr=log
                    )
                )
        for number in range(3):
            until(partial(self._is_ready, number), f"broker {number} being ready")

    def _config(self, number: int) -> dict[str, Any]:
        own = self._directory / f"broker-{number}"
        ports = {"client": 6650, "admin": 50051, "raft": 7650, "prometheus": 9040}
        seeds = [f"{self.machines.address(each)}:7650" for each in range(3)]
        return {
            "cluster_name": "PARTED",
            "broker": {"host": self.machines.address(number), "ports": ports},
            "meta_store": {"data_dir": str(own / "raft"), "seed_nodes": seeds},
            "bootstrap_namespaces": ["default"],
            "auth": {"mode": "none"},
            "storage": {
                "mode": "shared_fs",
                "local_wal_root": str(own / "wal"),
                "durable": {"root": str(self._directory / "segments")},
            },
            "policies": {},
        }

    def _is_ready(self, number: int) -> bool:
        assert self._processes[number].poll() is None, self.log(number)
        return "listening" in self.log(number)  # It says so once it has recovered.

    def owner(self, seen_by: int) -> int:
        """Return which broker serves the topic, as another one knows."""
        if not self._urls:
            brokers = self._danube(seen_by, "brokers", "list")
            self._urls = {each["broker_id"]: each["broker_addr"] for each in brokers}
        described = self._danube(seen_by, "topics", "describe", TOPIC)
        url = self._urls[described["broker_id"]]
        return [self.url(number) for number in range(3)].index(url)

    def _danube(self, number: int, *arguments: str) -> Any:
        program = str(Path(sys.executable).parent / "danube")
        endpoint = f"http://{self.machines.address(number)}:50051"
        flags = ["--endpoint", endpoint, "--output", "json"]
        done = subprocess.run(
            [*self.machines.on(number), program, *arguments, *flags],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def stored(self, seen_by: int) -> list[str]:
        done = subprocess.run(
            client_command(self, seen_by, "read"),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        stored: list[str] = json.loads(done.stdout)["stored"]
        return stored

    def log(self, number: int) -> str:
        return (self._directory / f"broker-{number}.log").read_text()

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(30)


def client_command(cluster: Cluster, number: int, *what: str) -> list[str]:
    name, *rest = what
    program = [sys.executable, "-m", "tests.e2e.partition_clients", name]
    return [*cluster.machines.on(number), *program, cluster.url(number), TOPIC, *rest]


class Publisher:
    """A client beside one of the brokers, which publishes until it is told to stop."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.acknowledged: dict[int, str] = {}
        self.silences = 0
        self._process = subprocess.Popen(
            client_command(cluster, number, "publish", f"{number}-"),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                said = json.loads(line)
                if said["event"] == "acknowledged":
                    self.acknowledged[said["offset"]] = said["payload"]
                else:
                    self.silences += 1

    def goes_on(self, count: int = 10) -> None:
        """Wait until so many more are acknowledged; one may have been on its way."""
        wanted = len(self.acknowledged) + count
        until(partial(self._has, wanted), "an acknowledgement of more")

    def _has(self, count: int) -> bool:
        assert self._process.poll() is None, "the client has ended"
        return len(self.acknowledged) >= count

    def goes_silent(self) -> None:
        before = self.silences
        until(lambda: self.silences > before, "silence")

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            assert self._process.wait(WAIT_SECONDS_MAX) == 0
        finally:
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(30)
        self._listening.join(30)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Machines(3) as machines:
        cluster = Cluster(machines, tmp_path)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def test_an_owner_that_is_cut_off_goes_silent_and_is_fenced(cluster: Cluster) -> None:
    publishers = [Publisher(cluster, number) for number in range(3)]
    try:
        for publisher in publishers:
            publisher.goes_on()
        owner = cluster.owner(seen_by=0)
        other = (owner + 1) % 3
        beside, elsewhere = publishers[owner], publishers[other]

        cluster.machines.cut_off(owner)
        elsewhere.goes_on()  # It reaches other brokers alone.
        beside.goes_silent()
        until_now = len(beside.acknowledged)
        elsewhere.goes_on(50)
        assert len(beside.acknowledged) == until_now
        assert cluster.owner(seen_by=other) != owner

        cluster.machines.heal(owner)
        for publisher in publishers:
            publisher.goes_on()
        for publisher in publishers:
            publisher.stop()
    finally:
        for publisher in publishers:
            publisher.kill()
    acknowledged = [pair for each in publishers for pair in each.acknowledged.items()]
    assert len(dict(acknowledged)) == len(acknowledged), "an offset was given twice"
    assert cluster.owner(seen_by=owner) != owner
    for number in (owner, other):
        stored = cluster.stored(seen_by=number)
        found = [(offset, stored[offset]) for offset, _ in acknowledged if offset < len(stored)]
        assert found == acknowledged
