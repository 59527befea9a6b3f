"""Real brokers that run out of descriptors or disk: they refuse, wait, and go on by themselves."""

import asyncio
import os
import re
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pydanube.wire.calls import CallRefused, StatusCode
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient
from tests.support.small_disk import small_disk

TOPIC = "/default/orders"
DESCRIPTORS = 1024
CONNECTIONS = 1_200
ROTATION_BYTES = 64 * 1024
PAYLOAD_BYTES = 8_000
PAYLOADS = 60
"""They fill more than five journal files."""
WAIT_SECONDS_MAX = 40.0
DANUBE = os.environ.get("DANUBE_UNDER_TEST", str(Path(sys.executable).parent / "danube"))

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def broker_at(directory: Path, engine: str, *, descriptors: int | None = None) -> BrokerProcess:
    """A broker with small journal files, and perhaps few descriptors."""
    limit = f"ulimit -n {descriptors}; " if descriptors is not None else ""
    command = [
        *("env", f"DANUBE_STORAGE__WAL__ROTATION__MAX_BYTES={ROTATION_BYTES}"),
        *("sh", "-c", f'{limit}exec "$@"', "sh", DANUBE),
    ]
    return BrokerProcess(directory / "data", engine=engine, command=command)


@contextmanager
def crowd(port: int) -> Iterator[Callable[[], None]]:
    """Hold many connections that say nothing; what it gives makes those anew that were ended."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < CONNECTIONS + 500:
        pytest.skip(f"{hard} descriptors are too few for so many connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held: list[socket.socket] = []

    def fill() -> None:
        alive = []
        for each in held:
            try:
                ended = each.recv(1 << 16) == b""
            except BlockingIOError:
                ended = False
            except OSError:
                ended = True
            if ended:
                each.close()
            else:
                alive.append(each)
        held[:] = alive
        while len(held) < CONNECTIONS:
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", port))
            held.append(connection)

    try:
        yield fill
    finally:
        for each in held:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_descriptors(broker: BrokerProcess) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


async def until(true: Callable[[], bool], broker: BrokerProcess) -> None:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not true():
            assert broker.process is not None
            assert broker.process.poll() is None, broker.log_tail()
            await asyncio.sleep(0.05)


async def everything_in(client: RawClient) -> list[bytes]:
    stream = await client.consume(TOPIC, "audit")
    found = []
    while messages := await stream.rest(2.0):
        found += [each.payload for each in messages]
        await client.ack_all(messages, "audit")
    return found


def waiting_metric(broker: BrokerProcess) -> str:
    found = re.search(r"^danube_journal_waiting\S* (\d)$", broker.get("/metrics")[1], re.MULTILINE)
    assert found is not None
    return found[1]


def payload(number: int) -> bytes:
    return b"%d " % number + bytes(PAYLOAD_BYTES)


@pytest.mark.parametrize("engine", ["http2", "grpcio"])
async def test_many_idle_connections_leave_the_journal_its_descriptors(
    tmp_path: Path, engine: str
) -> None:
    with broker_at(tmp_path, engine, descriptors=DESCRIPTORS) as broker:
        async with RawClient(broker.url, broker.admin_url) as client:
            producer = await client.create_producer(TOPIC)
            await (await client.consume(TOPIC, "audit")).close()
            with crowd(broker.client_port) as fill:
                most = 0
                for number in range(PAYLOADS):
                    fill()
                    await client.send(TOPIC, producer, payload(number))
                    most = max(most, open_descriptors(broker))
            assert most > DESCRIPTORS // 4, "the crowd was there"
            assert most <= DESCRIPTORS - 64, "the reserve was left alone"
            await until(broker.is_ready, broker)
            found = await everything_in(client)
        assert broker.terminate() == 0
        assert "journal waits" not in broker.log_tail(10_000)
    assert found == [payload(number) for number in range(PAYLOADS)]


async def test_a_broker_without_descriptors_refuses_and_goes_on_when_it_has_some(
    tmp_path: Path,
) -> None:
    with broker_at(tmp_path, "http2") as broker:
        async with RawClient(broker.url, broker.admin_url) as client:
            producer = await client.create_producer(TOPIC)
            await (await client.consume(TOPIC, "audit")).close()
            before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (3, before[1]))
            stuck = asyncio.create_task(
                client.send_many(TOPIC, producer, [payload(number) for number in range(20)])
            )
            await until(lambda: "journal waits for room" in broker.log_tail(), broker)
            with pytest.raises(CallRefused, match="LimitNOFILE") as caught:
                await client.send(TOPIC, producer, b"refused")
            assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
            assert not stuck.done()
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)
            await asyncio.wait_for(stuck, WAIT_SECONDS_MAX)
            assert broker.is_ready()
            found = await everything_in(client)
        assert broker.terminate() == 0
    assert found == [payload(number) for number in range(20)]


@pytest.mark.parametrize("killed", [False, True], ids=["goes-on", "killed-while-full"])
async def test_a_full_disk_that_has_room_again_needs_no_restart_and_loses_nothing(
    tmp_path: Path, killed: bool
) -> None:
    with small_disk(tmp_path, "8m") as root, broker_at(root, "http2") as broker:
        ballast = root / "ballast"
        acknowledged: list[int] = []
        async with RawClient(broker.url, broker.admin_url) as client:
            producer = await client.create_producer(TOPIC)
            await (await client.consume(TOPIC, "audit")).close()

            async def publish(numbers: range) -> None:
                for number in numbers:
                    try:
                        await client.send(TOPIC, producer, payload(number))
                    except CallRefused:
                        await asyncio.sleep(0.05)
                    else:
                        acknowledged.append(number)

            await publish(range(20))
            room = os.statvfs(root)
            ballast.write_bytes(bytes(room.f_bavail * room.f_frsize - 30_000))
            rest = asyncio.gather(*(publish(range(start, 180, 4)) for start in range(20, 24)))
            await until(lambda: broker.get("/readyz")[0] == 503, broker)
            assert "free space" in broker.get("/readyz")[1]
            status, words = broker.get("/healthz")
            assert status == 200, "a restart would not help"
            assert "waits for room" in words
            assert waiting_metric(broker) == "1"
            with pytest.raises(CallRefused, match="waits for room"):
                await client.send(TOPIC, producer, b"refused")
            if killed:
                broker.kill()
                await rest
            ballast.unlink()
            if not killed:
                await rest
                await until(broker.is_ready, broker)
                assert len(acknowledged) > 30, "it took messages again"
                assert waiting_metric(broker) == "0"
        if killed:
            broker.start()
        async with RawClient(broker.url, broker.admin_url) as client:
            found = [int(each.split()[0]) for each in await everything_in(client)]
        assert broker.terminate() == 0
    assert set(acknowledged) <= set(found), "nothing acknowledged is lost"
    assert len(found) == len(set(found)), "nothing is stored twice"
