"""Compressed batches: smaller on the wire and in the journal, the same messages for all."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest

import pydanube
from pydanube.client.options import Compression

TOPIC = "/default/orders"
COUNT = 2_000
PAYLOADS = [b"one coffee, two teas, number %04d" % number for number in range(COUNT)]


def journal_bytes(directory: Path) -> int:
    """What the journal's files hold, without the zeros they are prepared with."""
    files = (path for path in directory.rglob("*") if path.is_file() and "journal" in str(path))
    return sum(len(path.read_bytes().replace(b"\0", b"")) for path in files)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
async def test_everybody_reads_a_compressed_batch_also_after_a_restart(
    tmp_path: Path, compression: Compression
) -> None:
    data = str(tmp_path / "data")
    async with pydanube.Broker(data) as broker, pydanube.connect(broker.url) as client:
        async with client.producer(TOPIC, compression=compression) as producer:
            await producer.send_batch(PAYLOADS)
            await asyncio.gather(*(producer.send(payload) for payload in PAYLOADS))
        await check_all_readers(broker, client, "before")
    async with pydanube.Broker(data) as broker, pydanube.connect(broker.url) as client:
        await check_all_readers(broker, client, "after")


async def check_all_readers(
    broker: pydanube.Broker, client: pydanube.Client, subscription: str
) -> None:
    table = await client.reader(TOPIC).to_arrow()
    assert table["payload"].to_pylist() == PAYLOADS + PAYLOADS
    assert await asyncio.to_thread(read_by_stock_client, broker.url) == PAYLOADS + PAYLOADS
    async with client.consumer(TOPIC, subscription, start_position="earliest") as consumer:
        single = []
        for _ in range(20):
            message = await consumer.receive()
            await consumer.ack(message)
            single.append(message.payload)
        assert single == PAYLOADS[:20]
    async with client.consumer(
        TOPIC, f"{subscription}-batches", start_position="earliest"
    ) as consumer:
        rows: list[bytes] = []
        async for batch in consumer.batches():
            rows += batch.rows["payload"].to_pylist()
            await consumer.ack_batch(batch)
            if len(rows) == 2 * COUNT:
                break
        assert rows == PAYLOADS + PAYLOADS


def read_by_stock_client(url: str) -> list[bytes]:
    with flight.connect(url.replace("http://", "grpc://")) as stock:
        payloads: list[bytes] = stock.do_get(flight.Ticket(TOPIC)).read_all()["payload"].to_pylist()
        return payloads


async def test_the_journal_holds_what_was_sent(tmp_path: Path) -> None:
    sizes = {}
    for compression in ("none", "zstd"):
        directory = tmp_path / compression
        async with (
            pydanube.Broker(str(directory)) as broker,
            pydanube.connect(broker.url) as client,
            client.producer(TOPIC, compression=compression) as producer,  # type: ignore[arg-type]
        ):
            await producer.send_batch(PAYLOADS)
            sizes[compression] = journal_bytes(directory)
    assert sizes["zstd"] < sizes["none"] / 2, sizes


async def test_a_payload_that_is_too_large_cannot_hide_by_being_compressed(
    tmp_path: Path,
) -> None:
    settings = {"policies.max_message_size": 1_000}
    async with (
        pydanube.Broker(str(tmp_path), settings=settings) as broker,
        pydanube.connect(broker.url) as client,
        client.producer(TOPIC, compression="zstd") as producer,
    ):
        with pytest.raises(pydanube.DanubeError, match="max_message_size"):
            await producer.send_batch([bytes(5_000)])
        assert (await producer.send_batch([b"small"]))[0].offset == 0


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
async def test_compressed_batches_become_segments_that_everybody_reads(
    tmp_path: Path, compression: Compression
) -> None:
    settings = {
        "storage.segments.seal_bytes": 64 * 1024,
        "storage.segments.seal_seconds": 1,
        "storage.tail_cache_bytes_max": 0,
        "storage.segments.read_cache_bytes_max": 0,
    }
    data = str(tmp_path / "data")
    async with (
        pydanube.Broker(data, settings=settings) as broker,
        pydanube.connect(broker.url) as client,
    ):
        async with client.producer(TOPIC, compression=compression) as producer:
            await producer.send_batch(PAYLOADS)
            await producer.send_batch(PAYLOADS)
        pieces = await asyncio.to_thread(pieces_in_segments, broker.url, 2 * COUNT)
        # By weight, not by what the packed batches weigh: a plan cuts history into such pieces.
        assert sum(piece["bytes"] for piece in pieces) > sum(map(len, PAYLOADS + PAYLOADS))
        await check_all_readers(broker, client, "before")
    async with (
        pydanube.Broker(data, settings=settings) as broker,
        pydanube.connect(broker.url) as client,
    ):
        await check_all_readers(broker, client, "after")


def pieces_in_segments(url: str, rows: int) -> list[dict[str, Any]]:
    """Wait until segments hold so many rows; return what a plan says of their pieces."""
    with flight.connect(url.replace("http://", "grpc://")) as stock:
        for _ in range(400):
            info = stock.get_flight_info(flight.FlightDescriptor.for_path(TOPIC))
            notes = [json.loads(endpoint.app_metadata) for endpoint in info.endpoints]
            pieces = [piece for piece in notes if "segment" in piece]
            if sum(piece["rows"] for piece in pieces) == rows:
                return pieces
            time.sleep(0.05)
    raise AssertionError(f"not in segments: {notes}")
