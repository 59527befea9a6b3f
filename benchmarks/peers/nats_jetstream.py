"""NATS JetStream with file storage, through nats-py."""

import asyncio
import subprocess
from collections import deque
from importlib.metadata import version
from pathlib import Path

import nats
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
from nats.js.client import JetStreamContext

from benchmarks.peers.programs import absence_of, find_program
from pydanube.bench.driver import Handle, Stop
from pydanube.bench.results import SystemNotes
from pydanube.bench.servers import ServerProcess, free_ports
from pydanube.errors import NotSupported

FETCH = 256
FSYNC = {"file": "every two minutes, after the reply", "sync-always": "before reply"}


class NatsSystem:
    link = "benchmarks.peers.nats_jetstream:NatsLink"
    jobs = ("publish", "backlog", "end_to_end", "one_in_flight", "latency")

    def __init__(self, kind: str) -> None:
        self.name = f"nats-{kind}"
        self._kind = kind
        self.notes = SystemNotes(
            name=self.name,
            title=self._title(),
            fsync=FSYNC[kind],
            batching={
                "publish": "publish_async futures",
                "backlog": f"pull of {FETCH}, one ack for all",
                "end_to_end": f"publish_async futures; pull of {FETCH}, one ack for all",
                "latency": f"one by one; pull of up to {FETCH}, one ack for all",
            },
        )

    def _title(self) -> str:
        program = find_program("nats-server")
        said = ""
        if program is not None:
            done = subprocess.run([program, "--version"], capture_output=True, text=True)
            said = done.stdout.strip().rpartition(" ")[2]
        sync = ", sync_interval always" if self._kind == "sync-always" else ""
        return f"NATS JetStream {said}, file storage{sync}; nats-py {version('nats-py')}"

    def absence(self) -> str | None:
        missing = absence_of(self.name, "nats-server", "Debian: nats-server")
        if missing is None and self._kind == "sync-always" and not self._syncs():
            return f"{self.name}: not measured, this nats-server is older than 2.10"
        return missing

    def _syncs(self) -> bool:
        found = self.notes.title.split()[2].removeprefix("v").rstrip(",").split(".")
        return tuple(map(int, found[:2])) >= (2, 10)

    def start(self, directory: Path) -> ServerProcess:
        (port,) = free_ports(1)
        sync = "sync_interval: always" if self._kind == "sync-always" else ""
        config = directory / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{directory}/js"\n{sync} }}\n'
        )
        program = find_program("nats-server")
        assert program is not None
        server = ServerProcess(
            [program, "-c", str(config)], f"nats://127.0.0.1:{port}", directory / "nats.log"
        )
        server.wait_for_port(port)
        return server


class NatsLink:
    def __init__(self, url: str, topic: str) -> None:
        self._url = url
        self._topic = topic
        self._nats = nats.NATS()
        self._stream: JetStreamContext | None = None

    async def prepare(self, *, consumes: bool) -> None:
        await self._nats.connect(self._url)
        self._stream = self._nats.jetstream(timeout=30)
        await self._stream.add_stream(
            StreamConfig(
                name=self._topic,
                subjects=[self._topic],
                storage=StorageType.FILE,
                retention=RetentionPolicy.LIMITS,
            )
        )
        if consumes:
            self._pull = await self._stream.pull_subscribe(
                self._topic,
                durable="bench",
                config=ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=100_000),
            )

    async def publish(self, payload: bytes, window: int, stop: Stop) -> int:
        assert self._stream is not None
        pending: deque[asyncio.Future] = deque()
        sent = 0
        while not stop():
            if len(pending) >= window:
                await pending.popleft()
            pending.append(await self._stream.publish_async(self._topic, payload))
            sent += 1
        for answer in pending:
            await answer
        return sent

    async def publish_batches(self, payloads: list[bytes], window: int, stop: Stop) -> int:
        raise NotSupported("JetStream has no batches")

    async def send(self, payload: bytes) -> None:
        assert self._stream is not None
        await self._stream.publish(self._topic, payload)

    async def consume(self, handle: Handle) -> None:
        goes_on = True
        while goes_on:
            try:
                messages = await self._pull.fetch(FETCH, timeout=5)
            except nats.errors.TimeoutError:
                continue
            goes_on = handle([message.data for message in messages])
            await messages[-1].ack()
        await self._nats.flush()

    async def close(self) -> None:
        await self._nats.close()
