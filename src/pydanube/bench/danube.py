"""PyDanube as a system to be measured: `danube broker` in a process, our client in others."""

import asyncio
import importlib
import sys
from collections import deque
from contextlib import AsyncExitStack
from pathlib import Path

import pyarrow as pa
from typing_extensions import override

from pydanube import __version__
from pydanube.bench.driver import Handle, Link, Server, Stop, System
from pydanube.bench.jobs import JOBS
from pydanube.bench.results import SystemNotes
from pydanube.bench.servers import ServerProcess, free_ports
from pydanube.client.client import connect
from pydanube.client.consumer import Consumer
from pydanube.client.message import SentMessage
from pydanube.client.producer import Producer

ACKS_UNDER_WAY = 16
"""Of batches; a consumer that waits for each would be as slow as the disk's sync."""
_GATHERED = "send() futures, gathered per tick of the event loop"
_BATCHES = "Arrow batches as they were stored, each acked"


class DanubeSystem(System):
    """A standalone broker with its defaults, or one that runs already."""

    link = "pydanube.bench.danube:DanubeLink"
    jobs = tuple(job.name for job in JOBS)

    def __init__(self, url: str | None = None) -> None:
        self._url = url
        self.notes = SystemNotes(
            name="danube",
            title=f"PyDanube {__version__}, its own client",
            fsync="before reply",
            batching={
                "publish": _GATHERED,
                "backlog": _BATCHES,
                "end_to_end": f"{_GATHERED}; {_BATCHES}",
                "latency": f"{_GATHERED}; {_BATCHES}",
                "publish_batches": "send_batch, 1,000 rows each",
            },
        )

    @override
    def absence(self) -> str | None:
        return None

    @override
    def start(self, directory: Path) -> Server:
        if self._url is not None:
            return RunningBroker(self._url)
        client, admin, metrics = free_ports(3)
        addresses = ("--broker-addr", client), ("--admin-addr", admin), ("--prom-exporter", metrics)
        command = [str(Path(sys.executable).parent / "danube"), "broker", "--mode", "standalone"]
        command += ["--data-dir", str(directory / "danube")]
        for flag, port in addresses:
            command += [flag, f"127.0.0.1:{port}"]
        server = ServerProcess(command, f"http://127.0.0.1:{client}", directory / "danube.log")
        server.wait_for_port(client)
        return server


class RunningBroker(Server):
    """A broker that somebody else runs; its CPU time is not known."""

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    @override
    def url(self) -> str:
        return self._url

    @property
    @override
    def pids(self) -> list[int]:
        return []

    @override
    def stop(self) -> None:
        """Leave it running."""


class DanubeLink(Link):
    """Our own client: futures for a window of single messages, Arrow batches out."""

    def __init__(self, url: str, topic: str) -> None:
        self._url = url
        self._topic = f"/default/{topic}"
        self._stack = AsyncExitStack()
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None

    @override
    async def prepare(self, *, consumes: bool) -> None:
        pa.array([b""], pa.binary())  # The first array looks for pandas, which takes a second.
        client = await self._stack.enter_async_context(connect(self._url))
        if not consumes:
            self._producer = await self._stack.enter_async_context(client.producer(self._topic))
            return
        # Loaded now, rather than when batches are first asked for, which is measured.
        importlib.import_module("pydanube.client.batch_consumer")
        self._consumer = await self._stack.enter_async_context(
            client.consumer(
                self._topic, "bench", subscription_type="Exclusive", start_position="earliest"
            )
        )

    @override
    async def publish(self, payload: bytes, window: int, stop: Stop) -> int:
        assert self._producer is not None, "not prepared"
        send, pending = self._producer.send_nowait, deque[asyncio.Future[SentMessage]]()
        sent = 0
        while not stop():
            if len(pending) >= window:
                await pending.popleft()
            pending.append(send(payload))
            sent += 1
        for answer in pending:
            await answer
        return sent

    @override
    async def publish_batches(self, payloads: list[bytes], window: int, stop: Stop) -> int:
        assert self._producer is not None, "not prepared"
        rows = pa.table({"payload": pa.array(payloads, pa.binary())})
        sent = 0

        async def send_in_turn(producer: Producer) -> None:
            nonlocal sent
            while not stop():
                await producer.send_batch(rows)
                sent += len(payloads)

        await asyncio.gather(*(send_in_turn(self._producer) for _ in range(window)))
        return sent

    @override
    async def send(self, payload: bytes) -> None:
        assert self._producer is not None, "not prepared"
        await self._producer.send(payload)

    @override
    async def consume(self, handle: Handle) -> None:
        assert self._consumer is not None, "not prepared"
        loop, acks = asyncio.get_running_loop(), deque[asyncio.Task[None]]()
        async for batch in self._consumer.batches():
            goes_on = handle(batch.payloads())
            acks.append(loop.create_task(self._consumer.ack_batch(batch)))
            if len(acks) >= ACKS_UNDER_WAY:
                await acks.popleft()
            if not goes_on:
                break
        for ack in acks:
            await ack

    @override
    async def close(self) -> None:
        await self._stack.aclose()
