"""Metadata restored from an older copy cost no message: real processes, real files, real commands.

Each test lives through a loss of the metadata as an operator meets it, and types what the broker's
message and the pages say.
"""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pydanube.wire.calls import CallRefused, StatusCode
from tests.support.broker_process import BrokerProcess
from tests.support.cluster_processes import FAST, ClusterProcesses
from tests.support.raw_client import RawClient

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

T = TypeVar("T")

DANUBE = str(Path(sys.executable).parent / "danube")
OLD, NEW, GONE = "/default/old", "/default/new", "/default/gone"
QUICK_SEGMENTS = {
    "DANUBE_STORAGE__SEGMENTS__SEAL_SECONDS": "1",
    "DANUBE_STORAGE__WAL__ROTATION__MAX_BYTES": "65536",
    "DANUBE_STORAGE__LOCAL_RETENTION__SIZE_MB": "1",
}


def danube(*arguments: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [DANUBE, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done


def answer(*arguments: str) -> Any:
    return json.loads(danube(*arguments, "--output", "json").stdout)


def contents(directory: Path) -> dict[str, str]:
    """Return every file's digest; locks are no content."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.endswith(".lock")
    }


def refuses(broker: BrokerProcess, *words: str) -> None:
    """Let the broker start in vain, and look for words in what it says."""
    broker.start(wait=False)
    assert broker.process is not None
    assert broker.process.wait(30) == 9, broker.log_tail()
    broker.process = None
    said = broker.log_path.read_text()
    for word in words:
        assert word in said, broker.log_tail()


async def until_open(work: Callable[[], Awaitable[T]]) -> T:
    """Begin something with a topic that a broker of a cluster may still be opening."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await work()
            except CallRefused as refused:
                if refused.code is not StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.05)  # Another process tells nobody when it is open.


async def publish(broker: BrokerProcess, topic: str, first: int, count: int) -> None:
    async with RawClient(broker.url, broker.admin_url) as client:
        producer = await until_open(lambda: client.create_producer(topic))
        payloads = [b"%s %d" % (topic.encode(), n) for n in range(first, first + count)]
        await client.send_many(topic, producer, payloads)


async def stored(broker: BrokerProcess, topic: str) -> list[bytes]:
    """Return everything a topic holds, as somebody new reads it."""
    async with RawClient(broker.url, broker.admin_url) as client:
        await until_open(lambda: client.set_window(topic, 10_000, "audit"))
        stream = await until_open(lambda: client.consume(topic, "audit", start_position="earliest"))
        return [bytes(each.payload) for each in await stream.rest(1.0)]


def messages(topic: str, count: int) -> list[bytes]:
    return [b"%s %d" % (topic.encode(), n) for n in range(count)]


async def settle_some(broker: BrokerProcess, topic: str, count: int) -> None:
    async with RawClient(broker.url, broker.admin_url) as client:
        stream = await until_open(
            lambda: client.consume(topic, "readers", start_position="earliest")
        )
        await client.ack_all(await stream.take(count), "readers")


async def left_for_readers(broker: BrokerProcess, topic: str) -> list[bytes]:
    async with RawClient(broker.url, broker.admin_url) as client:
        await until_open(lambda: client.set_window(topic, 10_000, "readers"))
        stream = await until_open(lambda: client.consume(topic, "readers"))
        return [bytes(each.payload) for each in await stream.rest(1.0)]


@contextmanager
def stopped(data_dir: Path) -> Iterator[BrokerProcess]:
    """A broker that a test starts when it likes, and that does not outlive it."""
    broker = BrokerProcess(data_dir)
    try:
        yield broker
    finally:
        if broker.process is not None and broker.process.poll() is None:
            broker.kill()


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


async def test_an_older_raft_directory_is_noticed_and_recovered(tmp_path: Path) -> None:
    with stopped(tmp_path / "data") as broker:
        data_dir = ("--data-dir", str(broker.data_dir))
        broker.start()
        await publish(broker, OLD, 0, 20)
        assert broker.terminate() == 0
        shutil.copytree(broker.data_dir / "raft", tmp_path / "copy")
        broker.start()
        await publish(broker, OLD, 20, 20)
        await publish(broker, GONE, 0, 5)
        async with RawClient(broker.url, broker.admin_url) as client:
            await client.delete_topic(GONE)
        await publish(broker, NEW, 0, 50)
        await settle_some(broker, NEW, 10)
        broker.kill()
        shutil.rmtree(broker.data_dir / "raft")
        shutil.copytree(tmp_path / "copy", broker.data_dir / "raft")

        before = contents(broker.data_dir / "wal")
        for _ in range(2):  # The second refusal knows as much as the first.
            refuses(broker, f"topic {NEW} (id ", "offsets 0 to 49", "danube recover --data-dir")
        (refusal, _) = [
            line for line in broker.log_path.read_text().splitlines() if "do not know" in line
        ]
        assert GONE not in refusal, "the journal says that it was deleted"
        after = contents(broker.data_dir / "wal")
        assert before.keys() <= after.keys(), "no file of the journal was deleted"

        before = contents(broker.data_dir)
        looked = answer("recover", *data_dir)
        assert [each["topic"] for each in looked["topics"]] == [NEW]
        assert contents(broker.data_dir) == before, "looking changes nothing"
        applied = answer("recover", *data_dir, "--apply")
        assert applied["applied"]
        assert [each["subscription"] for each in applied["subscriptions"]] == ["readers"]
        again = answer("recover", *data_dir, "--apply")
        assert (again["topics"], again["subscriptions"]) == ([], [])

        for _ in range(2):  # Whatever ids were given meanwhile, the next start finds order.
            broker.start()
            assert await stored(broker, OLD) == messages(OLD, 40)
            assert await stored(broker, NEW) == messages(NEW, 50)
            assert await left_for_readers(broker, NEW) == messages(NEW, 50)[10:]
            await publish(broker, GONE, 0, 3)  # Whatever id it gets, it is nobody else's.
            broker.kill()


async def test_metadata_older_than_the_segments_are_noticed_and_recovered(tmp_path: Path) -> None:
    with environment(QUICK_SEGMENTS), stopped(tmp_path / "data") as broker:
        data_dir = ("--data-dir", str(broker.data_dir))
        broker.start()
        await publish(broker, OLD, 0, 20)
        assert broker.terminate() == 0
        shutil.copytree(broker.data_dir / "raft", tmp_path / "copy")
        broker.start()
        await publish(broker, OLD, 20, 500)
        await publish(broker, NEW, 0, 500)
        segments = broker.data_dir / "segments"
        while len(list(segments.rglob("default/*/*/*.parquet"))) < 2:
            assert broker.process is not None
            assert broker.process.poll() is None
            await publish(broker, "/default/other", 0, 1)
        assert broker.terminate() == 0
        # The journal goes, too: what is in segments is all there is.
        shutil.rmtree(broker.data_dir / "wal")
        shutil.rmtree(broker.data_dir / "raft")
        shutil.copytree(tmp_path / "copy", broker.data_dir / "raft")
        reached = {
            topic: max(
                int(path.name.split("-")[1])
                for path in segments.glob(f"{topic.removeprefix('/')}/*/*.parquet")
            )
            for topic in (OLD, NEW)
        }
        before = contents(segments)
        refuses(broker, f"segments of {OLD}")
        refuses(broker, f"segments of {OLD}")
        answer("recover", *data_dir, "--apply")
        assert contents(segments).items() >= before.items()
        broker.start()
        for topic, end in reached.items():
            assert await stored(broker, topic) == messages(topic, end)
        await publish(broker, OLD, reached[OLD], 1)
        assert len(await stored(broker, OLD)) >= 1
        assert contents(segments).items() >= before.items(), "nothing is swept away"
        assert broker.terminate() == 0


async def test_a_backup_is_restored_on_an_empty_machine_with_a_newer_journal(
    tmp_path: Path,
) -> None:
    file = tmp_path / "copies" / "metadata.backup"
    with stopped(tmp_path / "data") as broker:
        broker.start()
        await publish(broker, OLD, 0, 20)
        await settle_some(broker, OLD, 5)
        made = answer("backup", "create", str(file), "--endpoint", broker.admin_url)
        assert [each["topic"] for each in made["topics"]] == [OLD]
        assert "none are in it" in made["messages"]
        assert answer("backup", "verify", str(file)) == made
        danube("backup", "create", str(file), "--endpoint", broker.admin_url, fails=True)
        await publish(broker, OLD, 20, 20)
        await publish(broker, NEW, 0, 50)
        broker.kill()
    with stopped(tmp_path / "machine") as broker:
        data_dir = ("--data-dir", str(broker.data_dir))
        broker.data_dir.mkdir()
        for name in ("wal", "segments"):
            if (tmp_path / "data" / name).exists():
                shutil.copytree(tmp_path / "data" / name, broker.data_dir / name)
        restored = answer("backup", "restore", str(file), *data_dir)
        assert (restored["topics"], restored["kept"]) == (1, "")
        refuses(broker, f"topic {NEW}", "danube recover")
        assert [each["topic"] for each in answer("recover", *data_dir)["topics"]] == [NEW]
        answer("recover", *data_dir, "--apply")
        broker.start()
        assert await stored(broker, OLD) == messages(OLD, 40)
        assert await left_for_readers(broker, OLD) == messages(OLD, 40)[5:]
        assert await stored(broker, NEW) == messages(NEW, 50)
        broker.kill()
        broker.start()
        assert await stored(broker, NEW) == messages(NEW, 50)
        assert broker.terminate() == 0


async def test_a_backup_is_restored_where_nothing_else_is_left(tmp_path: Path) -> None:
    file = tmp_path / "metadata.backup"
    with stopped(tmp_path / "data") as broker:
        broker.start()
        await publish(broker, OLD, 0, 20)
        danube("backup", "create", str(file), "--endpoint", broker.admin_url)
        broker.kill()
    with stopped(tmp_path / "machine") as broker:
        data_dir = ("--data-dir", str(broker.data_dir))
        danube("backup", "restore", str(file), *data_dir)
        refuses(broker, "not yet compared", "danube recover")
        said = danube("recover", *data_dir, "--apply").stdout
        assert "lack nothing" in said
        broker.start()
        assert await stored(broker, OLD) == []
        await publish(broker, OLD, 0, 3)
        assert broker.terminate() == 0
        # Metadata that are there are kept beside, and only when that was asked for.
        said = danube("backup", "restore", str(file), *data_dir, fails=True).stderr
        assert "--replace" in said
        kept = answer("backup", "restore", str(file), *data_dir, "--replace")["kept"]
        assert (Path(kept) / "metadata.snapshot").exists()


@pytest.mark.parametrize("by", ["copy", "backup"])
async def test_a_node_of_a_raft_cluster_takes_its_topics_back(tmp_path: Path, by: str) -> None:
    cluster = ClusterProcesses(tmp_path, 1, times=FAST, replicas=1)
    (broker,) = cluster.brokers
    raft = broker.data_dir / "raft"
    config = ("--config-file", str(tmp_path / "broker-0.yml"))
    with cluster:
        await publish(broker, OLD, 0, 20)
        if by == "backup":
            file = str(tmp_path / "metadata.backup")
            danube("backup", "create", file, "--endpoint", broker.admin_url)
        else:
            broker.kill()
            shutil.copytree(raft, tmp_path / "copy")
            broker.start()
        await publish(broker, OLD, 20, 20)
        await publish(broker, NEW, 0, 50)
        await settle_some(broker, NEW, 10)
        broker.kill()
        if by == "backup":
            danube("backup", "restore", file, *config, "--replace")
        else:
            shutil.rmtree(raft)
            shutil.copytree(tmp_path / "copy", raft)
        refuses(broker, f"topic {NEW} (id ", "danube recover")
        applied = answer("recover", *config, "--apply")
        assert [each["topic"] for each in applied["topics"]] == [NEW]
        for _ in range(2):
            broker.start()
            assert await stored(broker, OLD) == messages(OLD, 40)
            assert await stored(broker, NEW) == messages(NEW, 50)
            assert await left_for_readers(broker, NEW) == messages(NEW, 50)[10:]
            broker.kill()


def test_a_damaged_backup_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "metadata.backup"
    with stopped(tmp_path / "data") as broker:
        broker.start()
        danube("backup", "create", str(file), "--endpoint", broker.admin_url)
        assert broker.terminate() == 0
        data = bytearray(file.read_bytes())
        data[-20] ^= 1
        file.write_bytes(data)
        before = contents(broker.data_dir)
        for command in (("verify",), ("restore", "--data-dir", str(broker.data_dir), "--replace")):
            done = danube("backup", command[0], str(file), *command[1:], fails=True)
            assert done.returncode == 9
            assert "damaged" in done.stderr
        assert contents(broker.data_dir) == before
