"""Real brokers in a cluster that are killed, stopped and frozen while clients work."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pydanube import Producer, connect
from pydanube.errors import DanubeError
from pydanube.runtime.randomness import SeededRandomness
from tests.e2e.test_wheel import ROOT, check_nothing_lost
from tests.support.broker_process import free_ports
from tests.support.cluster_processes import FAST, ClusterProcesses

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TOPICS = [f"/default/orders-{number}" for number in range(6)]
WAIT_SECONDS_MAX = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path, 3, times=FAST) as cluster:
        yield cluster


class Publishing:
    """Publishes to one topic until told to stop; remembers what was acknowledged, and where."""

    def __init__(self, producer: Producer[bytes]) -> None:
        self._producer = producer
        self.acknowledged: dict[int, int] = {}
        """Number by offset."""
        self.stopping = False

    async def run(self) -> None:
        number = 0
        while not self.stopping:
            try:
                sent = await self._producer.send(b"%d" % number)
            except DanubeError:
                pass  # Not acknowledged: it may be stored, or not.
            else:
                assert sent.offset is not None
                assert sent.offset not in self.acknowledged, "an offset was given twice"
                self.acknowledged[sent.offset] = number
            number += 1
            await asyncio.sleep(0.002)

    async def goes_on(self) -> None:
        """Wait until something more is acknowledged."""
        before = len(self.acknowledged)
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while len(self.acknowledged) <= before:
                await asyncio.sleep(0.01)


async def stored_in(url: str, topic: str) -> list[int]:
    async with connect(url) as client:
        table = await client.reader(topic).to_arrow()
    return [int(payload) for payload in table["payload"].to_pylist()]


async def check_all_is_there(url: str, topic: str, publishing: Publishing) -> None:
    stored = await stored_in(url, topic)
    found = {offset: stored[offset] for offset in publishing.acknowledged if offset < len(stored)}
    assert found == publishing.acknowledged


async def live_through(cluster: ClusterProcesses, harm: str, turns: int) -> int:
    """Publish to all topics while brokers are harmed in turns; return how much was acknowledged."""
    chance = SeededRandomness(f"cluster {harm}")
    async with connect(",".join(cluster.urls)) as client:
        producers = [await client.producer(topic) for topic in TOPICS]
        works = [Publishing(producer) for producer in producers]
        tasks = [asyncio.create_task(work.run()) for work in works]
        for _ in range(turns):
            await asyncio.gather(*(work.goes_on() for work in works))
            victim = cluster.brokers[chance.below(3)]
            if harm == "kill":
                victim.kill()
            else:
                await asyncio.to_thread(victim.terminate)
            # All topics are served without it.
            await asyncio.gather(*(work.goes_on() for work in works))
            await asyncio.to_thread(victim.start)
        await asyncio.gather(*(work.goes_on() for work in works))
        for work in works:
            work.stopping = True
        await asyncio.gather(*tasks)
    for topic, work in zip(TOPICS, works, strict=True):
        for url in cluster.urls[:2]:
            await check_all_is_there(url, topic, work)
    return sum(len(work.acknowledged) for work in works)


@pytest.mark.parametrize("harm", ["kill", "restart"])
async def test_clients_carry_on_while_brokers_go_and_come(
    cluster: ClusterProcesses, harm: str
) -> None:
    try:
        assert await live_through(cluster, harm, turns=4) > 100
    except BaseException:
        print(cluster.logs())
        raise


def test_a_broker_that_waits_for_its_cluster_stops_when_asked(tmp_path: Path) -> None:
    alone = ClusterProcesses(tmp_path, 3).brokers[0]
    alone.start(wait=False)
    try:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while "waiting for the other founders" not in alone.log_tail():
            assert time.monotonic() < deadline, alone.log_tail()
            time.sleep(0.02)  # Another process tells nobody when it waits.
    finally:
        assert alone.terminate() == 0, alone.log_tail()
    assert "stopped before it served" in alone.log_tail()


async def test_an_owner_that_was_frozen_is_fenced(cluster: ClusterProcesses) -> None:
    """It wakes up after its topics were given away, with messages that it had taken before."""
    async with connect(",".join(cluster.urls)) as client, client.producer(TOPICS[0]) as producer:
        work = Publishing(producer)
        task = asyncio.create_task(work.run())
        for broker in cluster.brokers:
            await work.goes_on()
            assert broker.process is not None
            broker.process.send_signal(signal.SIGSTOP)
            # Its lease ends, another broker gets the topic, and the client finds it there.
            await work.goes_on()
            await work.goes_on()
            broker.process.send_signal(signal.SIGCONT)
        await work.goes_on()
        work.stopping = True
        await task
    await check_all_is_there(cluster.urls[1], TOPICS[0], work)


def test_the_published_client_carries_on(cluster: ClusterProcesses, tmp_path: Path) -> None:
    """Each broker is killed once while it works, and started again, as a supervisor does."""
    count = 240
    arguments = json.dumps({"count": count, "topic": "/default/carry-on", "pause": 0.02})
    command = [sys.executable, "-m", "tests.e2e.wheel_scenarios", "carry_on", cluster.urls[0]]
    with (
        (tmp_path / "client.log").open("wb") as log,
        subprocess.Popen(
            [*command, arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
        ) as client,
    ):
        assert client.stdout is not None
        result: dict[str, Any] = {}
        for line in client.stdout:
            said = json.loads(line)
            if said.get("event") == "sent" and said["number"] in (60, 120, 180):
                victim = cluster.brokers[said["number"] // 60 - 1]
                victim.kill()
                victim.start(wait=False)
            if "acknowledged" in said:
                result = said
    assert client.returncode == 0, (tmp_path / "client.log").read_text()[-3000:]
    check_nothing_lost(result, count)
    assert len(result["acknowledged"]) > count // 2, result["failed"][:3]


def danube(*arguments: str) -> Any:
    program = str(Path(sys.executable).parent / "danube")
    done = subprocess.run(
        [program, *arguments, "--output", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_one_command_runs_a_cluster_that_mends_itself(tmp_path: Path) -> None:
    first = next(port for port in free_ports(20) if port + 60 < 20_000)
    program = str(Path(sys.executable).parent / "danube")
    command = [program, "cluster", "up", "--brokers", "3", "--data-dir", str(tmp_path)]
    with subprocess.Popen(
        [*command, "--first-port", str(first)], stdout=subprocess.PIPE, text=True
    ) as cluster:
        assert cluster.stdout is not None
        try:
            lines = [next(cluster.stdout) for _ in range(5)]
            endpoint = lines[-1].split()[-1]
            listed = danube("brokers", "list", "--endpoint", endpoint)
            assert len(listed) == 3
            status = danube("cluster", "status", "--endpoint", endpoint)
            assert len(status["voters"]) == 3
            victim = int(lines[1].rpartition("pid ")[2])
            os.kill(victim, signal.SIGKILL)
            assert "ended with -9" in next(cluster.stdout)
            assert "pid" in next(cluster.stdout)
        finally:
            cluster.send_signal(signal.SIGTERM)
            assert cluster.wait(60) == 0
