"""The broker's memory where it could grow without a bound.

python -m benchmarks.memory stalled-single|stalled-exchange|stalled-best-effort [--seconds 60]
python -m benchmarks.memory connections [--count 1000]
python -m benchmarks.memory backlog-write --data-dir DIR [--gib 10]
python -m benchmarks.memory backlog-read --data-dir DIR [--gib 1]

The backlog is written by one run and read by the next, so that neither takes long; the directory is
left to whoever named it.
"""

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import psutil
import pyarrow as pa

from benchmarks.machine import describe_machine
from pydanube.client.client import Client, connect
from pydanube.client.consumer import Consumer
from pydanube.client.producer import Producer
from pydanube.wire.flight import service
from pydanube.wire.flight.descriptors import Delivered, SubscribeCommand, decode, encode
from pydanube.wire.flight.framing import (
    COMMAND,
    Descriptor,
    bytes_field,
    read_flight_data,
    write_descriptor,
)
from pydanube.wire.flight.ipc import read_head
from pydanube.wire.http2.channel import Http2Channel
from tests.support.broker_process import BrokerProcess
from tests.support.flight_peer import FlightPeer

MIB, GIB = 2**20, 2**30
TOPIC = "/default/memory"
PAYLOAD = 1024
BATCH_ROWS = 8_192
STALLS = ("single", "exchange", "best-effort")


class Resident:
    """Prints the broker's resident memory, and keeps the most there was."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._process = psutil.Process(broker.pid)
        self.most = 0.0

    def look(self) -> float:
        found = self._process.memory_info().rss / MIB
        self.most = max(self.most, found)
        return found

    def show(self, what: str) -> None:
        print(f"| {what} | {self.look():,.0f} MiB |", flush=True)


@contextmanager
def running(data_dir: Path | None) -> Iterator[tuple[BrokerProcess, Resident]]:
    directory = Path(tempfile.mkdtemp()) if data_dir is None else data_dir
    try:
        with BrokerProcess(directory / "data") as broker:
            yield broker, Resident(broker)
            broker.terminate()
    finally:
        if data_dir is None:
            shutil.rmtree(directory)


def payload_batches() -> Iterator[pa.RecordBatch]:
    """Messages that do not compress, made quickly: windows of random bytes."""
    noise = os.urandom(64 * MIB)
    width = BATCH_ROWS * PAYLOAD
    offsets = pa.array(range(0, width + 1, PAYLOAD), pa.int32()).buffers()[1]
    at = 0
    while True:
        window = pa.py_buffer(noise[at : at + width])
        at = (at + width + 7) % (len(noise) - width)
        payload = pa.Array.from_buffers(pa.binary(), BATCH_ROWS, [None, offsets, window])
        yield pa.record_batch([payload], names=["payload"])


async def publish(client: Client, resident: Resident, total: int, *, shown_every: int) -> float:
    """Publish so many bytes; return the rate in MiB a second."""
    started, sent = time.monotonic(), 0
    async with client.producer(TOPIC, reliable=True) as producer:
        for batch in payload_batches():
            if sent >= total:
                break
            await producer.send_batch(batch)
            before, sent = sent, sent + BATCH_ROWS * PAYLOAD
            resident.look()
            if sent // shown_every > before // shown_every:
                resident.show(f"{sent / GIB:.1f} GiB published")
    return sent / MIB / (time.monotonic() - started)


# Consumers that stop reading.


class Stalled(Protocol):
    """A consumer that has asked for messages and takes none of them."""

    async def resumed(self, seconds: float) -> str:
        """Read on for so long, and tell what came."""


class StalledSingle(Stalled):
    """A stream of single messages; the client's own queue fills, then the connection's windows."""

    def __init__(self, consumer: Consumer[bytes]) -> None:
        self._consumer = consumer

    async def resumed(self, seconds: float) -> str:
        received, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                message = await self._consumer.receive(seconds_max=seconds)
            except TimeoutError:
                break  # Of a best-effort topic nothing more comes once nobody publishes.
            await self._consumer.ack(message)
            received += 1
        return f"{received:,} messages received and acked in {seconds:g} s after the stall"


class StalledExchange(Stalled):
    """A DoExchange with a credit of a million rows, and a reader that does not read."""

    def __init__(self, url: str) -> None:
        self._channel = Http2Channel(url)
        command = SubscribeCommand(
            topic=TOPIC,
            subscription="batches",
            consumer="stalled",
            type="exclusive",
            start_position="earliest",
            credit=1_000_000,
        )
        descriptor = write_descriptor(Descriptor(COMMAND, command=encode(command)))
        self._stay = asyncio.Event()
        self._replies = self._channel.exchange(service.DO_EXCHANGE, self._requests(descriptor))

    async def _requests(self, descriptor: bytes) -> AsyncIterator[bytes]:
        yield bytes_field(1, descriptor)
        await self._stay.wait()

    async def begin(self) -> None:
        await anext(self._replies)  # The schema: the consumer is in.

    async def resumed(self, seconds: float) -> str:
        rows, attempts, end = 0, set(), time.monotonic() + seconds
        while time.monotonic() < end:
            reply = await asyncio.wait_for(anext(self._replies), 30)
            data = read_flight_data(reply)
            if data.body:
                said = decode(Delivered, data.app_metadata, "what was delivered")
                rows += read_head(bytes(data.header)).row_count
                attempts.add(said.attempt)
        await self._channel.close()
        return f"{rows:,} rows received in {seconds:g} s after the stall, attempts {attempts}"


async def stalled(kind: str, seconds: float) -> None:
    """Publish as fast as it goes for so long while a consumer reads nothing."""
    reliable = kind != "best-effort"
    with running(None) as (broker, resident):
        resident.show("started")
        async with connect(broker.url) as client, AsyncExitStack() as stack:
            producer = await stack.enter_async_context(client.producer(TOPIC, reliable=reliable))
            await producer.send_batch([b"x"])
            consumer: Stalled
            if kind == "exchange":
                consumer = StalledExchange(broker.url)
                await consumer.begin()
            else:
                opened = client.consumer(TOPIC, "single", start_position="earliest")
                consumer = StalledSingle(await stack.enter_async_context(opened))
            sent = await publish_for(producer, resident, seconds)
            resident.show(f"{sent / GIB:.1f} GiB published in {seconds:.0f} s")
            print(f"| the most there was | {resident.most:,.0f} MiB |", flush=True)
            print(f"| {await consumer.resumed(2.0)} | {resident.look():,.0f} MiB |", flush=True)


async def publish_for(producer: Producer[bytes], resident: Resident, seconds: float) -> int:
    """Publish for so long, and show the memory now and then; return how many bytes it was."""
    started = shown = time.monotonic()
    sent = 0
    for batch in payload_batches():
        await producer.send_batch(batch)
        sent += BATCH_ROWS * PAYLOAD
        resident.look()
        now = time.monotonic()
        if now - shown >= seconds / 12:
            shown = now
            resident.show(f"after {now - started:.0f} s, {sent / GIB:.1f} GiB published")
        if now - started >= seconds:
            break
    return sent


async def connections(count: int) -> None:
    """Open so many connections, each with a producer and a consumer, and send through each."""
    with running(None) as (broker, resident):
        resident.show("started")
        first = resident.look()
        clients = [await connect(broker.url) for _ in range(count)]
        consumers = []
        for number, client in enumerate(clients):
            topic = f"/default/memory-{number % 100}"
            producer = await client.producer(topic, reliable=True)
            await producer.send(b"x" * PAYLOAD)
            consumer = await client.consumer(topic, f"s{number}", start_position="earliest")
            consumers.append((consumer, producer))
        resident.show(f"{count} connections, each with a producer and a consumer")
        for consumer, _ in consumers:
            await consumer.ack(await asyncio.wait_for(anext(aiter(consumer)), 30))
        resident.show("each has received and acked a message")
        each = (resident.look() - first) * 1024 / count
        print(f"| a connection costs | {each:,.0f} KiB |", flush=True)
        for client in clients:
            await client.close()
        await asyncio.sleep(2)
        resident.show("all of them closed")


async def backlog_write(data_dir: Path, gib: float) -> None:
    with running(data_dir) as (broker, resident):
        resident.show("started")
        async with connect(broker.url) as client:
            rate = await publish(client, resident, int(gib * GIB), shown_every=2 * GIB)
        print(f"| published at | {rate:,.0f} MiB/s |", flush=True)
        print(f"| the most there was | {resident.most:,.0f} MiB |", flush=True)


async def backlog_read(data_dir: Path, gib: float) -> None:
    started = time.monotonic()
    with running(data_dir) as (broker, resident):
        print(f"| restarted in | {time.monotonic() - started:.1f} s |", flush=True)
        resident.show("after the restart")
        async with connect(broker.url) as client:
            rows = int(gib * GIB) // PAYLOAD
            end = await durable_end(broker)
            for what, start in (("oldest", 0), ("newest", max(0, end - rows))):
                began = time.monotonic()
                reader = client.reader(TOPIC, start=start, end=min(end, start + rows))
                found = 0
                async for batch in reader.batches():
                    found += batch.rows.num_rows
                    resident.look()
                rate = found * PAYLOAD / MIB / (time.monotonic() - began)
                resident.show(f"the {what} {gib:g} GiB of {end:,} messages read, {rate:,.0f} MiB/s")
        print(f"| the most there was | {resident.most:,.0f} MiB |", flush=True)


async def durable_end(broker: BrokerProcess) -> int:
    peer = FlightPeer(broker.client_port)
    found = await asyncio.to_thread(peer.act, "frontier", topics=[TOPIC])
    peer.close()
    frontier: int = found["topics"][TOPIC]["frontier"]
    return frontier


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    stalls = [f"stalled-{kind}" for kind in STALLS]
    parser.add_argument("what", choices=[*stalls, "connections", "backlog-write", "backlog-read"])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--gib", type=float)
    parser.add_argument("--data-dir", type=Path)
    given = parser.parse_args()
    print(describe_machine())
    print("| broker's memory | resident |\n|---|---|")
    match given.what:
        case str(what) if what in stalls:
            asyncio.run(stalled(what.removeprefix("stalled-"), given.seconds))
        case "connections":
            asyncio.run(connections(given.count))
        case "backlog-write":
            asyncio.run(backlog_write(given.data_dir, given.gib or 10))
        case _:
            asyncio.run(backlog_read(given.data_dir, given.gib or 1))


if __name__ == "__main__":
    main()
