"""What operators do to a broker and meet: signals, damaged and full disks, settings, pages."""

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pydanube.broker.giving_up import EXIT_CODE
from pydanube.wire.calls import CallRefused, StatusCode
from pydanube.wire.danube import services
from tests.support.broker_process import BrokerProcess, free_ports
from tests.support.kill_storm import KillStorm
from tests.support.raw_client import RawClient, message

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

DANUBE = str(Path(sys.executable).parent / "danube")
TOPIC = "/default/orders"
PAYLOAD = bytes(20_000)
LISTENING_SECONDS_MAX = 3.0
"""Stock clients give a refused port up after about so long."""


def run(*arguments: str, seconds_max: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [DANUBE, *arguments], capture_output=True, text=True, timeout=seconds_max, check=False
    )


def broker_arguments(data_dir: Path, **addresses: str) -> list[str]:
    client, admin = free_ports(2)
    given = {"broker-addr": f"127.0.0.1:{client}", "admin-addr": f"127.0.0.1:{admin}"} | {
        name.replace("_", "-"): value for name, value in addresses.items()
    }
    arguments = ["broker", "--mode", "standalone", "--data-dir", str(data_dir)]
    for name, value in given.items():
        arguments += [f"--{name}", value]
    return arguments


def contents(directory: Path) -> dict[str, str]:
    """Return every file's digest; locks are no content."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.endswith(".lock")
    }


async def publish(broker: BrokerProcess, count: int, payload: bytes = PAYLOAD) -> list[int]:
    async with RawClient(broker.url, broker.admin_url) as client:
        producer = await client.create_producer(TOPIC)
        offsets = [await client.send(TOPIC, producer, payload) for _ in range(count)]
    return [offset for offset in offsets if offset is not None]


async def stored(broker: BrokerProcess, subscription: str) -> list[int]:
    """Return the offsets of all messages, from the first on."""
    async with RawClient(broker.url, broker.admin_url) as client:
        await client.set_window(TOPIC, 10_000, subscription)
        stream = await client.consume(TOPIC, subscription, start_position="earliest")
        return [each.msg_id.topic_offset for each in await stream.rest(1.0)]


def journal_of(broker: BrokerProcess) -> Path:
    (journal,) = (broker.data_dir / "wal").glob("journal-*.log")
    return journal


def sample(metrics: str, name: str) -> float:
    (line,) = re.findall(rf"^{name}{{.*}} (\S+)$", metrics, re.MULTILINE)
    return float(line)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as broker:
        yield broker


# Stopping.


async def test_a_broker_asked_to_stop_under_load_exits_with_0_and_loses_nothing(
    broker: BrokerProcess,
) -> None:
    storm = KillStorm(broker, "orderly stops", in_order=True)
    violations = await storm.run(6)
    print(storm.figures)
    assert violations == [], broker.log_tail()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_an_idle_broker_stops_at_once_and_says_so(broker: BrokerProcess, name: str) -> None:
    assert broker.process is not None
    started = time.monotonic()
    broker.process.send_signal(signal.Signals[name])
    assert broker.process.wait(20) == 0, broker.log_tail()
    assert time.monotonic() - started < 5
    assert name in broker.log_tail()
    assert "Traceback" not in broker.log_tail()


async def test_a_broker_with_a_journal_listens_again_within_the_patience_of_clients(
    broker: BrokerProcess,
) -> None:
    await publish(broker, 300)
    broker.kill()
    started = time.monotonic()
    broker.start(wait=False)
    while time.monotonic() < started + 20:
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", broker.client_port)) == 0:
                break
        time.sleep(0.01)
    assert time.monotonic() - started < LISTENING_SECONDS_MAX
    broker.wait_ready()


# What a broker refuses to start with: exit code, a sentence, nothing changed.


async def test_a_second_broker_on_the_same_directory_is_refused_and_the_first_goes_on(
    broker: BrokerProcess,
) -> None:
    await publish(broker, 2)
    before = contents(broker.data_dir)
    refused = run(*broker_arguments(broker.data_dir))
    assert refused.returncode == 5
    assert str(broker.data_dir) in refused.stderr
    assert "in use" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert contents(broker.data_dir) == before
    assert await publish(broker, 1) == [2]


@pytest.mark.parametrize("port", ["broker_addr", "admin_addr", "prom_exporter"])
def test_a_port_that_is_taken_is_named_with_its_setting(tmp_path: Path, port: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = run(*broker_arguments(tmp_path / "data", **{port: address}))
    assert refused.returncode == 5
    assert address in refused.stderr
    assert "broker.ports." in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_directory_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    (data_dir / "raft").mkdir(parents=True)
    (data_dir / "raft" / "holiday.jpg").write_bytes(b"not yours")
    refused = run(*broker_arguments(data_dir))
    assert refused.returncode == 2
    assert "holiday.jpg" in refused.stderr
    assert "choose another directory" in refused.stderr
    assert contents(data_dir) == {"raft/holiday.jpg": hashlib.sha256(b"not yours").hexdigest()}


async def test_the_journal_of_another_broker_is_refused(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    await publish(broker, 3)
    assert broker.terminate() == 0
    other = BrokerProcess(tmp_path / "other")
    with other:
        assert other.terminate() == 0
    for path in (other.data_dir / "wal").iterdir():
        path.unlink()
    for path in (broker.data_dir / "wal").iterdir():
        (other.data_dir / "wal" / path.name).write_bytes(path.read_bytes())
    before = contents(other.data_dir / "wal")
    refused = run(*broker_arguments(other.data_dir))
    assert refused.returncode == 2
    assert "belongs to" in refused.stderr
    assert contents(other.data_dir / "wal") == before


def test_a_data_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"a file")
    refused = run(*broker_arguments(tmp_path / "data"))
    assert refused.returncode == 8
    assert str(tmp_path / "data") in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("port", ["broker_addr", "admin_addr", "prom_exporter"])
def test_listening_beyond_this_machine_needs_to_be_called_insecure(
    tmp_path: Path, port: str
) -> None:
    number = free_ports(1)[0]
    refused = run(*broker_arguments(tmp_path / "data", **{port: f"0.0.0.0:{number}"}))
    assert refused.returncode == 2
    assert "--insecure" in refused.stderr
    assert not (tmp_path / "data").exists()


def test_called_insecure_it_listens_everywhere_and_advertises_what_was_given(
    tmp_path: Path,
) -> None:
    broker = BrokerProcess(
        tmp_path / "data", "--insecure", "--advertised-addr", "http://broker.example:6650"
    )
    arguments = broker._arguments
    arguments += ["--broker-addr", f"0.0.0.0:{broker.client_port}"]
    with broker:
        described = run("brokers", "list", "--endpoint", broker.admin_url)
        assert described.returncode == 0, described.stderr
        assert "http://broker.example:6650" in described.stdout


def test_an_unknown_setting_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    config = tmp_path / "danube_broker.yml"
    config.write_text(
        "cluster_name: test\n"
        "broker: {host: 127.0.0.1, ports: {clinet: 6650}}\n"
        f"meta_store: {{data_dir: {tmp_path}/raft}}\n"
        "bootstrap_namespaces: [default]\n"
        "auth: {mode: none}\n"
        f"storage: {{mode: local, local_wal_root: {tmp_path}/wal}}\n"
        "policies: {}\n"
    )
    refused = run("broker", "--mode", "cluster", "--config-file", str(config))
    assert refused.returncode == 2
    assert "clinet" in refused.stderr
    assert "client" in refused.stderr
    assert not (tmp_path / "raft").exists()
    assert not (tmp_path / "wal").exists()


# Damage.


async def test_a_flipped_bit_in_the_middle_is_refused_named_and_given_up_on_order_alone(
    broker: BrokerProcess,
) -> None:
    offsets = await publish(broker, 30)
    assert broker.terminate() == 0
    journal = journal_of(broker)
    damaged = bytearray(journal.read_bytes())
    place = len(damaged) // 2
    damaged[place] ^= 0x10
    journal.write_bytes(damaged)
    before = contents(broker.data_dir / "wal")
    for _ in range(2):
        refused = run(*broker_arguments(broker.data_dir))
        assert refused.returncode == 9
        assert journal.name in refused.stderr
        assert "position" in refused.stderr
        assert "danube journal quarantine" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert contents(broker.data_dir / "wal") == before, "nothing was changed"
    data_dir = ("--data-dir", str(broker.data_dir))
    verified = run("journal", "verify", *data_dir, "--output", "json")
    assert verified.returncode == 9
    (hurt,) = json.loads(verified.stdout)["damaged"]
    assert hurt["start"] <= place < hurt["end"]
    assert run("journal", "quarantine", *data_dir, "--yes").returncode == 0
    broker.start()
    left = await stored(broker, "after")
    assert set(left) < set(offsets)
    assert len(left) >= len(offsets) - 2, "only what lay in the damaged bytes is gone"
    assert await publish(broker, 1) == [30], "no offset is given twice"


@pytest.mark.parametrize(
    "tail", [b"\x00" * 64, b"DJ", os.urandom(3_000)], ids=["zeros", "half a frame", "garbage"]
)
async def test_a_torn_tail_is_cut_off_and_nothing_acknowledged_is_lost(
    broker: BrokerProcess, tail: bytes
) -> None:
    offsets = await publish(broker, 10)
    broker.kill()
    with journal_of(broker).open("ab") as journal:
        journal.write(tail)
    broker.start()
    assert await stored(broker, "after") == offsets
    assert await publish(broker, 1) == [10]


async def test_half_a_frame_at_the_end_is_cut_off(broker: BrokerProcess) -> None:
    await publish(broker, 10)
    broker.kill()
    journal = journal_of(broker)
    with journal.open("r+b") as file:
        file.truncate(journal.stat().st_size - 7)
    broker.start()
    left = await stored(broker, "after")
    assert left == list(range(len(left)))
    assert len(left) >= 9
    assert await publish(broker, 1) == [len(left)]


# Disks that take no more.


async def fill(broker: BrokerProcess) -> tuple[int, CallRefused]:
    """Publish until the disk is full; return how many were acknowledged, and the refusal."""
    async with RawClient(broker.url, broker.admin_url) as client:
        producer = await client.create_producer(TOPIC)
        for acknowledged in range(10_000):
            try:
                await client.send(TOPIC, producer, PAYLOAD)
            except CallRefused as refused:
                again = await client.status(services.SEND_MESSAGE, message(TOPIC, producer))
                assert again is StatusCode.UNAVAILABLE, "nothing is accepted any more"
                return acknowledged, refused
    raise AssertionError("the disk never became full")


async def check_full_disk(broker: BrokerProcess, reason: str) -> int:
    acknowledged, refused = await fill(broker)
    assert acknowledged > 10
    assert refused.code is StatusCode.UNAVAILABLE
    assert reason in refused.text
    assert broker.wait_ended() == EXIT_CODE, "whoever supervises it starts it again"
    assert reason in broker.log_tail()
    return acknowledged


async def test_a_journal_that_cannot_grow_stops_publishing_and_a_restart_recovers_all(
    tmp_path: Path,
) -> None:
    limited = ["bash", "-c", 'ulimit -f 600; exec "$0" "$@"', DANUBE]
    with BrokerProcess(tmp_path / "data", command=limited) as broker:
        acknowledged = await check_full_disk(broker, "File too large")
    with BrokerProcess(tmp_path / "data") as broker:
        found = await stored(broker, "after")
        assert found[:acknowledged] == list(range(acknowledged))
        assert await publish(broker, 1) == [len(found)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "small"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


async def test_a_full_disk_stops_publishing_and_freed_space_and_a_restart_recover_all(
    small_disk: Path,
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1024 * 1024))
    broker = BrokerProcess(small_disk / "data")
    broker.log_path = small_disk.parent / "broker.log"
    with broker:
        acknowledged = await check_full_disk(broker, "No space left on device")
        refused = run(*broker_arguments(broker.data_dir))
        assert refused.returncode != 0, "there is still no space"
        assert "No space left on device" in refused.stderr
        assert "Traceback" not in refused.stderr
        ballast.unlink()
        broker.start()
        assert broker.get("/healthz")[0] == 200
        found = await stored(broker, "after")
        assert found[:acknowledged] == list(range(acknowledged))
        assert await publish(broker, 1) == [len(found)]
        assert broker.terminate() == 0


# Pages.


async def test_operators_find_metrics_health_and_readiness(broker: BrokerProcess) -> None:
    await publish(broker, 3)
    status, text = broker.get("/metrics")
    assert status == 200
    assert sample(text, "danube_topic_messages_in_total") == 3
    assert sample(text, "danube_journal_failed") == 0
    assert broker.get("/healthz") == (200, '{"status":"ok"}\n')
    assert broker.get("/readyz") == (200, '{"status":"ok"}\n')
    assert broker.get("/elsewhere")[0] == 404
