"""The metadata in a real etcd: what goes wrong between the two, and what is promised then."""

import asyncio
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pydanube.broker.config import EtcdConfig
from pydanube.broker.etcd_metadata import etcd_connect
from pydanube.errors import Conflict, Corruption, DanubeError, InvalidRequest, NotFound, Unavailable
from pydanube.metadata.commands import MIB
from pydanube.metadata.etcd_layout import EtcdLayout
from pydanube.metadata.etcd_store import EtcdMetadataStore
from pydanube.metadata.store import Change, Expect, Put
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.machine import this_machine
from pydanube.wire.danube.generated import Etcd_pb2 as etcd
from pydanube.wire.etcd.client import EtcdClient
from pydanube.wire.http2.channel import Http2Channel
from tests.support.broker_process import free_ports
from tests.support.certificates import Authority
from tests.support.etcd_server import EtcdServer, EtcdTls, shared_etcd
from tests.support.tcp_proxy import TcpProxy

PATIENCE = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    """A server that may be harmed."""
    server = EtcdServer(tmp_path / "etcd").start()
    yield server
    server.kill()


@pytest.fixture
def prefix() -> str:
    return f"/test/{uuid.uuid4()}"


@asynccontextmanager
async def opened(
    *urls: str, prefix: str, call_seconds: float = 10.0
) -> AsyncIterator[EtcdMetadataStore]:
    client = EtcdClient(urls, Http2Channel, call_seconds=call_seconds)
    store = await EtcdMetadataStore.open(
        client, SystemClock(), EtcdLayout(prefix), identity=os.urandom(8).hex().encode()
    )
    try:
        yield store
    finally:
        await store.close()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def next_change(watch: AsyncIterator[Change]) -> Change:
    async with asyncio.timeout(PATIENCE):
        return await anext(watch)


async def test_two_stores_see_each_others_writes_in_order(prefix: str) -> None:
    url = shared_etcd().url
    async with opened(url, prefix=prefix) as one, opened(url, prefix=prefix) as other:
        assert one.identity == other.identity
        watch = other.watch("/", other.revision)
        for number in range(50):
            revision = await one.put("/a", b"%d" % number)
            assert await next_change(watch) == Change("/a", b"%d" % number, revision)
        numbers = await asyncio.gather(*(store.next_id("/ids") for store in [one, other] * 20))
        assert sorted(numbers) == list(range(1, 41))


async def test_a_lease_ends_when_nobody_renews_it_and_watches_are_told(prefix: str) -> None:
    async with opened(shared_etcd().url, prefix=prefix) as store:
        lease = await store.grant_lease(1_000)
        written = await store.put("/mine", b"1", lease=lease)
        await store.put("/plain", b"1")
        await store.put("/freed", b"1", lease=lease)
        await store.put("/freed", b"2")
        watch = store.watch("/", store.revision)
        gone = await next_change(watch)
        assert (gone.key, gone.value) == ("/mine", None)
        assert gone.revision > written
        assert [entry.key for entry in store.list("/")] == ["/freed", "/plain"]
        with pytest.raises(NotFound):
            await store.renew_lease(lease)


async def test_a_lease_that_is_renewed_outlives_its_time(prefix: str) -> None:
    async with opened(shared_etcd().url, prefix=prefix) as store:
        lease = await store.grant_lease(2_000)
        await store.put("/mine", b"1", lease=lease)
        for _ in range(12):
            await asyncio.sleep(0.25)
            await store.renew_lease(lease)
        assert store.get("/mine") is not None


async def test_the_largest_transaction_passes(prefix: str) -> None:
    async with opened(shared_etcd().url, prefix=prefix) as store:
        values = [Put(f"/large/{number}", b"x" * (MIB - 100)) for number in range(8)]
        absent = [Expect("/" + f"{number:04}" * 1_000, 0) for number in range(1_000)]
        await store.transact(absent, values)
        assert len(store.list("/large/")) == 8
    async with opened(shared_etcd().url, prefix=prefix) as store:
        assert sum(len(entry.value) for entry in store.list("/")) == 8 * (MIB - 100)


async def test_more_keys_than_fit_in_one_page_are_all_read(prefix: str) -> None:
    async with opened(shared_etcd().url, prefix=prefix) as store:
        for start in range(0, 2_500, 500):
            await store.transact([], [Put(f"/{start + n:05}", b"") for n in range(500)])
    async with opened(shared_etcd().url, prefix=prefix) as store:
        assert [entry.key for entry in store.list("/")] == [f"/{n:05}" for n in range(2_500)]


async def test_a_watch_misses_nothing_while_the_server_is_killed_and_started_over_and_over(
    server: EtcdServer, prefix: str
) -> None:
    async with (
        opened(server.url, prefix=prefix, call_seconds=2.0) as writer,
        opened(server.url, prefix=prefix) as follower,
    ):
        watch = follower.watch("/", follower.revision)
        acknowledged: dict[bytes, int] = {}
        unknown: set[bytes] = set()
        over = False

        async def write(number: int) -> None:
            count = 0
            while not over:
                count += 1
                value = b"%d/%d" % (number, count)
                try:
                    acknowledged[value] = await writer.put(f"/{number}", value)
                except Unavailable as error:
                    if "nothing was done" not in str(error):
                        unknown.add(value)
                    await asyncio.sleep(0.01)

        writing = [asyncio.create_task(write(number)) for number in range(4)]
        for _ in range(3):
            before = len(acknowledged)
            await eventually(lambda before=before: len(acknowledged) > before + 20)  # type: ignore[misc]
            server.kill()
            await asyncio.to_thread(server.start)
        before = len(acknowledged)
        await eventually(lambda: len(acknowledged) > before + 20)
        over = True
        await asyncio.gather(*writing)
        last = await writer.put("/end", b"end")
        told: dict[bytes, int] = {}
        revisions = []
        while (change := await next_change(watch)).key != "/end":
            assert change.value is not None
            assert change.value not in told, "a write happened twice"
            told[change.value] = change.revision
            revisions.append(change.revision)
        assert revisions == sorted(revisions)
        assert change.revision == last
        assert acknowledged.items() <= told.items()
        assert told.keys() - acknowledged.keys() <= unknown
        assert follower.list("/") == writer.list("/")


async def test_a_write_whose_answer_was_lost_is_unknown_and_not_repeated(prefix: str) -> None:
    url = shared_etcd().url
    async with (
        TcpProxy(url) as proxy,
        opened(url, prefix=prefix) as witness,
        opened(proxy.url, prefix=prefix) as store,
    ):
        client = EtcdClient([url], Http2Channel)
        layout = EtcdLayout(prefix)
        watch = witness.watch("/", witness.revision)
        for path, ask in (
            (layout.path("/a"), lambda: store.put("/a", b"1")),
            (layout.path("/b"), lambda: store.compare_and_swap("/b", 0, b"1")),
            (layout.counter("/ids"), lambda: store.next_id("/ids")),
        ):
            await store.put("/connected", b"")
            proxy.swallows_answers = True
            asking = asyncio.create_task(ask())
            async with asyncio.timeout(PATIENCE):
                while (await client.read(path))[0] is None:
                    await asyncio.sleep(0.01)
            proxy.cut()
            proxy.swallows_answers = False
            with pytest.raises(Unavailable, match="may have happened"):
                await asking
        assert await witness.next_id("/ids") == 2
        await witness.put("/end", b"")
        told = [await next_change(watch)]
        while told[-1].key != "/end":
            told.append(await next_change(watch))
        once = ["/connected", "/a", "/connected", "/b", "/connected", "/end"]
        assert [change.key for change in told] == once
        await client.close()


async def test_a_write_that_reaches_no_server_says_that_nothing_was_done(
    server: EtcdServer, prefix: str
) -> None:
    async with opened(server.url, prefix=prefix) as store:
        await store.put("/a", b"1")
        server.kill()
        await eventually(lambda: store.trouble is not None)
        with pytest.raises(Unavailable, match="nothing was done"):
            await store.put("/a", b"2")
        assert store.get("/a") is not None, "reads go on"
        await asyncio.to_thread(server.start)
        await eventually(lambda: store.trouble is None)
        await store.put("/a", b"3")


async def test_another_server_is_asked_when_one_is_down(prefix: str) -> None:
    (closed,) = free_ports(1)
    async with opened(f"http://127.0.0.1:{closed}", shared_etcd().url, prefix=prefix) as store:
        await store.put("/a", b"1")
        assert store.get("/a") is not None


async def test_a_copy_that_missed_compacted_changes_reads_everything_anew(prefix: str) -> None:
    url = shared_etcd().url
    async with (
        TcpProxy(url) as proxy,
        opened(url, prefix=prefix) as writer,
        opened(proxy.url, prefix=prefix) as cut_off,
    ):
        await writer.put("/gone", b"")
        await eventually(lambda: cut_off.get("/gone") is not None)
        watch = cut_off.watch("/", cut_off.revision)
        proxy.refuses = True
        proxy.cut()
        await writer.delete("/gone")
        for number in range(10):
            revision = await writer.put("/a", b"%d" % number)
        await compact(url, revision)
        await writer.put("/b", b"")
        proxy.refuses = False
        await eventually(lambda: cut_off.list("/") == writer.list("/"))
        with pytest.raises(Conflict, match="list again"):
            await next_change(watch)
        watch = cut_off.watch("/", cut_off.revision)
        await writer.put("/c", b"")
        assert (await next_change(watch)).key == "/c"
        await cut_off.put("/d", b"")


async def compact(url: str, revision: int) -> None:
    channel = Http2Channel(url)
    request = etcd.CompactionRequest(revision=revision, physical=True)
    await channel.unary("/etcdserverpb.KV/Compact", request.SerializeToString())
    await channel.close()


async def test_an_etcd_that_was_emptied_stops_the_store(server: EtcdServer, prefix: str) -> None:
    async with opened(server.url, prefix=prefix) as store:
        watch = store.watch("/", store.revision)
        server.kill()
        server.forget_everything()
        await asyncio.to_thread(server.start)
        with pytest.raises(Unavailable, match="does not hold this cluster any more"):
            await next_change(watch)
        assert store.failure is not None
        with pytest.raises(Unavailable, match="have stopped"):
            await store.put("/a", b"")


async def test_a_store_opens_once_its_server_has_come(server: EtcdServer, prefix: str) -> None:
    server.kill()

    async def open_it() -> None:
        async with opened(server.url, prefix=prefix) as store:
            await store.put("/a", b"1")

    opening = asyncio.create_task(open_it())
    await asyncio.to_thread(server.start)
    async with asyncio.timeout(PATIENCE):
        await opening


async def test_an_etcd_that_is_not_there_is_named(prefix: str) -> None:
    (closed,) = free_ports(1)
    client = EtcdClient([f"http://127.0.0.1:{closed}"], Http2Channel)
    with pytest.raises(Unavailable, match=f"cannot reach.*{closed}"):
        await EtcdMetadataStore.open(
            client, SystemClock(), EtcdLayout(prefix), identity=b"x", open_seconds=0.0
        )


async def test_an_etcd_without_the_cluster_is_refused_unless_one_is_to_be_founded(
    prefix: str,
) -> None:
    client = EtcdClient([shared_etcd().url], Http2Channel)
    with pytest.raises(Corruption, match="was emptied"):
        await EtcdMetadataStore.open(
            client, SystemClock(), EtcdLayout(prefix), identity=b"x", founds=False
        )


async def test_a_frozen_server_delays_and_loses_nothing(server: EtcdServer, prefix: str) -> None:
    async with opened(server.url, prefix=prefix, call_seconds=0.5) as store:
        await store.put("/a", b"1")
        watch = store.watch("/", store.revision)
        server.freeze()
        with pytest.raises(Unavailable, match="may have happened"):
            await store.put("/a", b"2")
        server.thaw()

        async def write_until_done() -> None:
            while True:
                try:
                    await store.put("/end", b"")
                except DanubeError:
                    await asyncio.sleep(0.05)
                else:
                    return

        async with asyncio.timeout(PATIENCE):
            await write_until_done()
        told = [await next_change(watch)]
        while told[-1].key != "/end":
            told.append(await next_change(watch))
        assert [change.key for change in told] in (["/end"], ["/a", "/end"])


@pytest.mark.parametrize("prefix", ["", "a", "/a/", "/a//b"])
def test_a_malformed_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidRequest, match="prefix in etcd"):
        EtcdLayout(prefix)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_an_etcd_that_wants_certificates_is_shown_one(tmp_path: Path, prefix: str) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.sign("etcd")
    server = EtcdServer(tmp_path / "etcd", EtcdTls(certificate, key, authority.certificate))
    server.start()
    shown = dict(zip(("cert_file", "key_file"), map(str, authority.sign("broker")), strict=True))
    trusted = str(authority.certificate)
    try:
        config = EtcdConfig(endpoints=(server.url,), ca_file=trusted, **shown)
        client = EtcdClient(config.endpoints, etcd_connect(config, this_machine()))
        layout = EtcdLayout(prefix)
        store = await EtcdMetadataStore.open(client, SystemClock(), layout, identity=b"x")
        await store.put("/a", b"1")
        assert store.get("/a") is not None
        await store.close()
        without = EtcdConfig(endpoints=(server.url,), ca_file=trusted)
        client = EtcdClient(without.endpoints, etcd_connect(without, this_machine()))
        with pytest.raises(Unavailable, match="certificate"):
            await EtcdMetadataStore.open(
                client, SystemClock(), layout, identity=b"x", open_seconds=0.0
            )
    finally:
        server.kill()
