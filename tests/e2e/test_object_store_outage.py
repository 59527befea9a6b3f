"""A broker whose object store fails under it, and which is killed meanwhile: nothing is lost."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest
import yaml
from msgspec import structs

import pydanube
from pydanube.storage.config import Durable
from tests.support.broker_process import BrokerProcess, free_ports
from tests.support.faulty_proxy import Fault, FaultyProxy, faulty_proxy
from tests.support.object_store_servers import azurite, fake_gcs, seaweedfs

TOPIC = "/default/orders"
BURST = 150
KILLS = 4
"""Each may come between a sync and its answer, which makes the sender repeat itself."""
FAULTS: tuple[Fault, ...] = ("503", "slow", "cut", "500")

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(params=[seaweedfs, azurite, fake_gcs], ids=["s3", "azure", "gcs"])
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Durable]:
    server: Callable[[Path], AbstractContextManager[Durable]] = request.param
    directory = tmp_path / "store"
    directory.mkdir()
    with server(directory) as durable:
        yield durable


@pytest.fixture
def proxy(durable: Durable) -> Iterator[FaultyProxy]:
    assert durable.endpoint is not None
    with faulty_proxy(durable.endpoint) as proxy:
        yield proxy


@pytest.fixture
def broker(durable: Durable, proxy: FaultyProxy, tmp_path: Path) -> Iterator[BrokerProcess]:
    given = structs.asdict(structs.replace(durable, endpoint=proxy.url))
    config = {
        "cluster_name": "TEST",
        "broker": {"ports": {"raft": free_ports(1)[0]}},
        "meta_store": {"data_dir": str(tmp_path / "raft")},
        "bootstrap_namespaces": ["default"],
        "auth": {"mode": "none"},
        "policies": {},
        "storage": {
            "mode": "object_store",
            "local_wal_root": str(tmp_path / "wal"),
            "durable": {name: value for name, value in given.items() if value},
            "segments": {"seal_bytes": 64 * 1024, "seal_seconds": 1},
            "wal": {"rotation": {"max_bytes": 64 * 1024}},
            "tail_cache_bytes_max": 0,
        },
    }
    path = tmp_path / "broker.yml"
    path.write_text(yaml.safe_dump(msgspec.to_builtins(config)))
    with BrokerProcess(
        tmp_path / "data", "--mode", "cluster", "--config-file", str(path)
    ) as running:
        yield running


class Sender:
    """Publishes numbered payloads until told to stop, through whatever happens."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acknowledged: dict[int, bytes] = {}
        self.enough = asyncio.Event()

    async def run(self) -> None:
        async with (
            pydanube.connect(self.url) as client,
            client.producer(TOPIC, reliable=True) as producer,
        ):
            number = 0
            while not self.enough.is_set():
                payloads = [b"order %06d " % each * 50 for each in range(number, number + 10)]
                number += 10
                sent = await asyncio.gather(*map(producer.send, payloads))
                for each, payload in zip(sent, payloads, strict=True):
                    assert each.offset not in self.acknowledged, "an offset was given twice"
                    self.acknowledged[each.offset] = payload

    async def more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(60):
            while len(self.acknowledged) < wanted:
                await asyncio.sleep(0.02)


async def stored(url: str) -> list[bytes]:
    found: list[bytes] = []
    async with pydanube.connect(url) as client:
        async for batch in client.reader(TOPIC).batches():
            assert batch.offset == len(found), "offsets follow each other"
            found += batch.rows.column("payload").to_pylist()
    return found


async def test_nothing_acknowledged_is_lost_or_doubled_through_faults_outage_and_kill(
    broker: BrokerProcess, proxy: FaultyProxy
) -> None:
    sender = Sender(broker.url)
    sending = asyncio.create_task(sender.run())
    await sender.more(BURST)
    proxy.faults.extend(FAULTS * 4)
    await sender.more(BURST)
    proxy.outage = True
    await sender.more(2 * BURST)
    broker.kill()
    proxy.outage = False
    await asyncio.to_thread(broker.start)
    for _ in range(KILLS):
        await sender.more(10)
        broker.kill()
        await asyncio.to_thread(broker.start)
    proxy.faults.extend(["lost answer", *FAULTS])
    await sender.more(BURST)
    sender.enough.set()
    await sending
    found = await stored(broker.url)
    assert len(found) == len(set(found)), "something is there twice"
    for offset, payload in sender.acknowledged.items():
        assert found[offset] == payload
    assert {"503", "slow", "cut"} <= set(proxy.met)
