"""Brokers whose disk fails or hangs: they give their topics up, say why, and come back."""

import asyncio
import errno
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pydanube import Producer, connect
from pydanube.errors import DanubeError
from tests.e2e.test_cluster import check_all_is_there, danube
from tests.support.broker_process import BrokerProcess
from tests.support.cluster_processes import ClusterProcesses
from tests.support.disk_shim import DiskShim, needs_disk_shim

pytestmark = [pytest.mark.e2e, pytest.mark.slow, needs_disk_shim]

TOPIC = "/default/orders"
DETECTION_SECONDS = 5.0
"""The default of storage.sync_seconds_max."""
FAILOVER_SECONDS = 12.0
"""Far above the 3 s that a failover takes, for machines that do other things, too."""
WAIT_SECONDS_MAX = 60.0


class Measuring:
    """Publishes to one topic without end, and remembers what was acknowledged, and when."""

    def __init__(self, producer: Producer[bytes]) -> None:
        self._producer = producer
        self.acknowledged: dict[int, int] = {}
        """Number by offset."""
        self.longest_pause = 0.0
        self._last = time.monotonic()
        self._stopping = False

    async def run(self) -> None:
        number = 0
        while not self._stopping:
            try:
                sent = await self._producer.send(b"%d" % number)
            except DanubeError:
                pass  # Not acknowledged: it may be stored, or not.
            else:
                assert sent.offset is not None
                assert sent.offset not in self.acknowledged, "an offset was given twice"
                self.acknowledged[sent.offset] = number
                now = time.monotonic()
                self.longest_pause = max(self.longest_pause, now - self._last)
                self._last = now
            number += 1
            await asyncio.sleep(0.005)

    async def goes_on(self, seconds_max: float) -> None:
        """Wait until more is acknowledged, some of it certainly asked for after this call."""
        before = len(self.acknowledged)
        async with asyncio.timeout(seconds_max):
            while len(self.acknowledged) <= before + 10:
                await asyncio.sleep(0.01)

    def stop(self) -> None:
        self._stopping = True


class Sick:
    """A cluster of which each broker's disk can be made to go bad."""

    def __init__(self, directory: Path, cluster: ClusterProcesses) -> None:
        self.cluster = cluster
        self.disks = []
        for number, broker in enumerate(cluster.brokers):
            disk = DiskShim(broker.data_dir / "wal", directory / f"disk-{number}")
            broker.environment.update(disk.environment)
            self.disks.append(disk)

    def ids(self, asked: BrokerProcess) -> dict[str, str]:
        """Return the brokers' client addresses by their ids, as one of them knows them."""
        listed = danube("brokers", "list", "--endpoint", asked.admin_url)
        return {each["broker_id"]: each["broker_addr"] for each in listed}

    def owner(self, asked: BrokerProcess) -> tuple[int, str]:
        """Return the place of the broker that serves the topic, and its id."""
        described = danube("topics", "describe", TOPIC, "--endpoint", asked.admin_url)
        broker_id = described["broker_id"]
        return self.cluster.urls.index(self.ids(asked)[broker_id]), broker_id

    def status(self, asked: BrokerProcess, broker_id: str) -> str:
        listed = danube("brokers", "list", "--endpoint", asked.admin_url)
        return next(each["broker_status"] for each in listed if each["broker_id"] == broker_id)


@pytest.fixture
def sick(tmp_path: Path) -> Iterator[Sick]:
    cluster = ClusterProcesses(tmp_path, 3, replicas=2)
    sick = Sick(tmp_path, cluster)
    with cluster:
        yield sick


def _log_of(broker: BrokerProcess) -> str:
    return broker.log_path.read_text(errors="replace")


async def _until(is_so: object, broker: BrokerProcess) -> None:
    assert callable(is_so)
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not await asyncio.to_thread(is_so):
            await asyncio.sleep(0.05)  # Another process tells nobody.


@pytest.mark.parametrize("harm", ["EIO", "hang"])
async def test_topics_of_a_broker_that_cannot_write_are_served_by_another(
    sick: Sick, harm: str
) -> None:
    cluster = sick.cluster
    detection = DETECTION_SECONDS if harm == "hang" else 0.0
    async with connect(",".join(cluster.urls)) as client, client.producer(TOPIC) as producer:
        work = Measuring(producer)
        task = asyncio.create_task(work.run())
        try:
            await work.goes_on(WAIT_SECONDS_MAX)
            number, broker_id = await asyncio.to_thread(sick.owner, cluster.brokers[0])
            broker, disk = cluster.brokers[number], sick.disks[number]
            other = cluster.brokers[(number + 1) % 3]
            if harm == "EIO":
                disk.fail("sync", error=errno.EIO, path="*.log", count=1)
            else:
                disk.hang("write", "sync")
            await _until(disk.strikes, broker)
            if harm == "EIO":
                disk.heal()  # One bad sector: the next file lies elsewhere.
            await work.goes_on(detection + FAILOVER_SECONDS)
            assert (await asyncio.to_thread(sick.owner, other))[0] != number
            assert "cannot write" in _log_of(broker)
            if harm == "hang":
                status = await asyncio.to_thread(sick.status, other, broker_id)
                assert "down" in status
                assert "no sync" in status
                disk.heal()
            # The process has begun anew, in recovery, and takes topics again.
            await _until(broker.is_ready, broker)
            await _until(lambda: sick.status(other, broker_id) == "active", broker)
            assert broker.process is not None
            assert broker.process.poll() is None, "it is the same process"
            await work.goes_on(WAIT_SECONDS_MAX)
        except BaseException:
            print(cluster.logs())
            raise
        finally:
            work.stop()
            await asyncio.wait([task])
        print(f"{harm}: longest pause {work.longest_pause:.2f} s")
        assert work.longest_pause < detection + FAILOVER_SECONDS
        await check_all_is_there(cluster.urls[0], TOPIC, work)  # type: ignore[arg-type]
