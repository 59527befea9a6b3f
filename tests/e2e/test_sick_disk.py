"""Brokers whose disk fails or hangs: they give their topics up, say why, and come back."""

import asyncio
import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pydanube import Producer, connect
from pydanube.broker.giving_up import EXIT_CODE
from pydanube.errors import DanubeError
from tests.e2e.test_cluster import check_all_is_there, danube
from tests.e2e.test_operations import DANUBE, run
from tests.support.broker_process import BrokerProcess, free_ports
from tests.support.cluster_processes import FAST, ClusterProcesses
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
            disk = DiskShim(broker.data_dir, directory / f"disk-{number}")
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
        return next(
            (each["broker_status"] for each in listed if each["broker_id"] == broker_id), "gone"
        )


@pytest.fixture
def sick(tmp_path: Path) -> Iterator[Sick]:
    cluster = ClusterProcesses(tmp_path, 3, replicas=2)
    sick = Sick(tmp_path, cluster)
    with cluster:
        yield sick


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Sick]:
    """Brokers that wait for a disk for ever."""
    cluster = ClusterProcesses(tmp_path, 3, times=FAST, storage={"sync_seconds_max": None})
    sick = Sick(tmp_path, cluster)
    with cluster:
        yield sick
        for disk in sick.disks:
            disk.heal()


def _log_of(broker: BrokerProcess) -> str:
    return broker.log_path.read_text(errors="replace")


async def _until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not await asyncio.to_thread(is_so):
            await asyncio.sleep(0.05)  # Another process tells nobody.


@pytest.mark.parametrize("harm", ["EIO", "hang", "hang with metadata"])
async def test_topics_of_a_broker_that_cannot_write_are_served_by_another(
    sick: Sick, harm: str
) -> None:
    cluster = sick.cluster
    detection = 0.0 if harm == "EIO" else DETECTION_SECONDS
    async with connect(",".join(cluster.urls)) as client, client.producer(TOPIC) as producer:
        work = Measuring(producer)
        task = asyncio.create_task(work.run())
        try:
            await work.goes_on(WAIT_SECONDS_MAX)
            number, broker_id = await asyncio.to_thread(sick.owner, cluster.brokers[0])
            broker, disk = cluster.brokers[number], sick.disks[number]
            other = cluster.brokers[(number + 1) % 3]
            if harm == "EIO":
                disk.fail("sync", error=errno.EIO, path="wal/*.log", count=1)
            else:
                disk.hang(path="wal/*" if harm == "hang" else "*")
            await _until(disk.strikes)
            if harm == "EIO":
                disk.heal()  # One bad sector: the next file lies elsewhere.
            await work.goes_on(detection + FAILOVER_SECONDS)
            assert (await asyncio.to_thread(sick.owner, other))[0] != number
            assert "cannot write" in _log_of(broker)
            if harm != "EIO":
                status = await asyncio.to_thread(sick.status, other, broker_id)
                print(f"{harm}: broker is {status!r}")
                # Through metadata that hang as well it may be that nothing could be told.
                assert harm != "hang" or "no sync of the journal" in status
                disk.heal()
            # The process has begun anew, in recovery, and takes topics again.
            await _until(broker.is_ready)
            await _until(lambda: sick.status(other, broker_id) == "active")
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


async def test_emptying_a_broker_whose_disk_hangs_ends_in_time(patient: Sick) -> None:
    cluster = patient.cluster
    async with connect(",".join(cluster.urls)) as client, client.producer(TOPIC) as producer:
        await producer.send(b"0")
        number, broker_id = await asyncio.to_thread(patient.owner, cluster.brokers[0])
        other, disk = cluster.brokers[(number + 1) % 3], patient.disks[number]
        disk.hang(path="wal/*")
        sending = asyncio.create_task(producer.send(b"1"))
        await _until(disk.strikes)
        began = time.monotonic()
        done = await asyncio.to_thread(
            run,
            *("brokers", "unload", "--broker-id", broker_id, "--timeout-seconds", "3"),
            *("--endpoint", other.admin_url),
        )
        assert done.returncode != 0
        assert "let none of its 1 topics go within 3 s" in done.stderr
        assert time.monotonic() - began < 10
        assert await asyncio.to_thread(patient.status, other, broker_id) == "active"
        disk.heal()
        assert (await sending).offset == 1


# A broker alone.


async def publish_one(broker: BrokerProcess) -> int | None:
    async with connect(broker.url) as client, client.producer(TOPIC) as producer:
        return (await producer.send(b"x")).offset


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[tuple[BrokerProcess, DiskShim]]:
    broker = BrokerProcess(tmp_path / "data")
    disk = DiskShim(tmp_path / "data", tmp_path / "control")
    broker.environment.update(disk.environment)
    with broker:
        yield broker, disk


async def test_a_broker_alone_whose_write_fails_ends_so_that_it_is_started_again(
    alone: tuple[BrokerProcess, DiskShim],
) -> None:
    broker, disk = alone
    assert await publish_one(broker) == 0
    disk.fail("sync", path="wal/*.log")
    async with connect(broker.url) as client, client.producer(TOPIC) as producer:
        sending = asyncio.create_task(producer.send(b"y"))
        assert await asyncio.to_thread(broker.wait_ended) == EXIT_CODE
        assert "start the broker again" in broker.log_tail()
        disk.heal()
        await asyncio.to_thread(broker.start)
        sent = await sending  # The client carries on, and stores it once.
        assert sent.offset == 1


async def test_a_broker_alone_whose_disk_hangs_says_so_and_goes_on_when_it_works(
    alone: tuple[BrokerProcess, DiskShim],
) -> None:
    broker, disk = alone
    assert await publish_one(broker) == 0
    disk.hang()
    sending = asyncio.create_task(publish_one(broker))
    await _until(lambda: broker.get("/healthz")[0] == 503)
    assert "storage.sync_seconds_max" in broker.get("/healthz")[1]
    assert broker.get("/readyz")[0] == 503
    disk.heal()
    assert await sending == 1
    await _until(broker.is_ready)


async def test_a_broker_whose_disk_hangs_can_be_stopped(
    alone: tuple[BrokerProcess, DiskShim],
) -> None:
    broker, disk = alone
    assert await publish_one(broker) == 0
    disk.hang()
    sending = asyncio.create_task(publish_one(broker))
    await _until(disk.strikes)
    began = time.monotonic()
    assert await asyncio.to_thread(broker.terminate) == EXIT_CODE, broker.log_tail()
    assert time.monotonic() - began < DETECTION_SECONDS + 5
    sending.cancel()
    await asyncio.wait([sending])


async def test_a_broker_whose_disk_hangs_while_it_starts_can_be_stopped(
    alone: tuple[BrokerProcess, DiskShim],
) -> None:
    broker, disk = alone
    broker.terminate()
    disk.hang()
    broker.start(wait=False)
    await _until(disk.strikes)
    assert await asyncio.to_thread(broker.terminate) == EXIT_CODE, broker.log_tail()
    assert "the disk hangs" in broker.log_tail()


# What starts brokers again.


async def _publish_everywhere(url: str) -> None:
    """Publish to so many topics that each broker has one, or a copy; some of it is refused."""
    async with connect(url) as client:
        for number in range(6):
            with suppress(DanubeError):
                async with client.producer(f"/default/t{number}") as producer:
                    await producer.send(b"x")


def test_cluster_up_starts_a_broker_again_until_its_disk_works(tmp_path: Path) -> None:
    first = next(port for port in free_ports(20) if port + 60 < 20_000)
    data = tmp_path / "data"
    disk = DiskShim(data / "broker-0" / "wal", tmp_path / "control")
    command = [DANUBE, "cluster", "up", "--brokers", "3", "--data-dir", str(data)]
    with subprocess.Popen(
        [*command, "--first-port", str(first)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **disk.environment},
    ) as cluster:
        assert cluster.stdout is not None
        try:
            lines = [next(cluster.stdout) for _ in range(5)]
            other = lines[1].split("admin ")[1].split()[0]
            disk.fail("sync", "write")
            asyncio.run(_publish_everywhere(lines[1].split()[2]))
            # It begins anew by itself first; then its start fails, and it is started again.
            assert "broker 0 ended with" in next(cluster.stdout)
            disk.heal()
            deadline = time.monotonic() + WAIT_SECONDS_MAX
            while True:
                listed = danube("brokers", "list", "--endpoint", other)
                if [each["broker_status"] for each in listed] == ["active"] * 3:
                    break
                assert time.monotonic() < deadline, listed
                time.sleep(0.2)
        finally:
            cluster.send_signal(signal.SIGTERM)
            assert cluster.wait(60) == 0
