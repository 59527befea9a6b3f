"""What operators read from a broker that has done some work."""

import asyncio
import errno
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

import pydanube
from pydanube.broker.config import standalone_config
from pydanube.broker.server import BrokerServer
from pydanube.client.admin import AdminConnection
from pydanube.client.client import grpcio_channel
from pydanube.runtime.machine import this_machine
from pydanube.runtime.simulation.disk import SimulatedDisk
from tests.support.broker_process import operator_page

PORTS = {f"broker.ports.{name}": 0 for name in ("client", "admin", "prometheus")}
TOPIC = "/default/orders"


@asynccontextmanager
async def running_broker(directory: Path) -> AsyncIterator[BrokerServer]:
    server = await BrokerServer.start(standalone_config(str(directory), overrides=PORTS))
    try:
        yield server
    finally:
        await server.stop()


async def get(server: BrokerServer, path: str) -> tuple[int, str]:
    assert server.metrics_port is not None
    return await asyncio.to_thread(operator_page, server.metrics_port, path)


async def metrics(server: BrokerServer) -> dict[str, float]:
    """Return the value of every series, added up over its labels."""
    status, text = await get(server, "/metrics")
    assert status == 200
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


async def exchange(server: BrokerServer, count: int) -> None:
    async with pydanube.connect(f"http://127.0.0.1:{server.client_port}") as client:
        producer = await client.producer(TOPIC)
        consumer = await client.consumer(TOPIC, "billing")
        for _ in range(count):
            await producer.send(b"12345")
        for number in range(count):
            message = await consumer.receive()
            if number:  # The first one is left unacked.
                await consumer.ack(message)


async def test_the_numbers_agree_with_the_work(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as server:
        await exchange(server, 5)
        found = await metrics(server)
    assert found["danube_broker_topics_owned"] == 1
    assert found["danube_topic_messages_in_total"] == 5
    assert found["danube_topic_bytes_in_total"] == 25
    assert found["danube_topic_message_size_bytes_count"] == 5
    assert found["danube_producer_send_total"] == 5
    assert found["danube_wal_append_total"] == 5
    assert found["danube_consumer_messages_out_total"] == 5
    assert found["danube_subscription_lag_messages"] == 5, "the cursor waits for the first one"
    assert found["danube_topic_active_subscriptions"] == 1
    assert found["danube_journal_failed"] == 0
    assert found["danube_wal_flush_total"] == found["danube_wal_flush_latency_ms_count"] == 5
    assert found["danube_journal_sync_seconds_count"] >= 5
    for summary in ("danube_producer_send_latency_ms", "danube_wal_flush_latency_ms"):
        assert found[summary] > 0, "quantiles, added up"
    assert 0 < found["danube_journal_sync_seconds_sum"] < 60
    assert found["danube_journal_group_records_sum"] >= 9, "five batches and four acks"
    assert found["danube_journal_bytes_total"] > 5 * 100


@pytest.mark.parametrize("way", ["one by one", "in batches"])
async def test_payload_bytes_out_are_counted_as_payload_bytes_in(tmp_path: Path, way: str) -> None:
    async with running_broker(tmp_path) as server:
        url = f"http://127.0.0.1:{server.client_port}"
        async with pydanube.connect(url) as client, client.producer(TOPIC) as producer:
            consumer = await client.consumer(TOPIC, "billing", start_position="earliest")
            sends = (producer.send(b"x" * 5, attributes={"n": str(n)}) for n in range(100))
            await asyncio.gather(*sends)
            if way == "one by one":
                for _ in range(100):
                    await consumer.ack(await consumer.receive())
            else:
                rows = 0
                async for batch in consumer.batches():
                    await consumer.ack_batch(batch)
                    rows += len(batch.payloads())
                    if rows == 100:
                        break
        found = await metrics(server)
    assert found["danube_consumer_messages_out_total"] >= 100
    per_message = (
        found["danube_consumer_bytes_out_total"] / found["danube_consumer_messages_out_total"]
    )
    assert (found["danube_topic_bytes_in_total"], per_message) == (500, 5)


async def test_a_deleted_topic_leaves_no_series(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as server:
        await exchange(server, 1)
        assert TOPIC in (await get(server, "/metrics"))[1]
        url = f"http://127.0.0.1:{server.admin_port}"
        admin = AdminConnection(grpcio_channel(url), url)
        await admin.delete_topic(TOPIC)
        await admin.close()
        assert TOPIC not in (await get(server, "/metrics"))[1]


async def test_a_running_broker_is_healthy_and_ready(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as server:
        assert await get(server, "/healthz") == (200, '{"status":"ok"}\n')
        assert await get(server, "/readyz") == (200, '{"status":"ok"}\n')
        assert (await get(server, "/"))[0] == 404


async def test_the_pages_end_with_the_broker(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as server:
        port = server.metrics_port
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_failed_sync_fails_the_health_check_and_every_later_publish() -> None:
    disk = SimulatedDisk(delay_seconds=(0.0, 0.0))
    machine = structs.replace(this_machine(), files=disk)
    config = standalone_config("/data", overrides=PORTS)
    server = await BrokerServer.start(config, machine=machine)
    try:
        url = f"http://127.0.0.1:{server.client_port}"
        async with (
            pydanube.connect(url, retry=pydanube.RetryPolicy(retries_max=0)) as client,
            client.producer(TOPIC, send_seconds_max=0.2) as producer,
        ):
            await producer.send(b"safe")
            disk.fail_next("sync", OSError(errno.EIO, "the disk is dying"), under="/data/wal")
            for _ in range(2):
                with pytest.raises(pydanube.Unavailable):
                    await producer.send(b"not safe")
        assert (await metrics(server))["danube_journal_failed"] == 1
        status, text = await get(server, "/healthz")
        assert status == 503
        assert "the disk is dying" in json.loads(text)["reason"]
        assert (await get(server, "/readyz"))[0] == 503
    finally:
        with suppress(pydanube.Unavailable):  # It says that not everything could be synced.
            await server.stop()
