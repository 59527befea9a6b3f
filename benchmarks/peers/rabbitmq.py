"""RabbitMQ: quorum and durable classic queues with publisher confirms, through aio-pika."""

import asyncio
import os
import subprocess
from importlib.metadata import version
from pathlib import Path

import aio_pika

from benchmarks.peers.programs import absence_of, find_program
from pydanube.bench.driver import Handle, Stop
from pydanube.bench.results import SystemNotes
from pydanube.bench.servers import ServerProcess, free_ports
from pydanube.errors import NotSupported

PREFETCH = 256
FSYNC = {"quorum": "before confirm", "classic": "before confirm of a persistent message, grouped"}


class RabbitSystem:
    jobs = ("publish", "backlog", "end_to_end", "one_in_flight", "latency")

    def __init__(self, kind: str) -> None:
        self.name = f"rabbitmq-{kind}"
        self.link = f"benchmarks.peers.rabbitmq:{kind.capitalize()}Link"
        self.notes = SystemNotes(
            name=self.name,
            title=f"RabbitMQ {_server_version()}, {kind} queue; aio-pika {version('aio-pika')}",
            fsync=FSYNC[kind],
            batching={
                "publish": "confirms, a task per message of the window",
                "backlog": f"prefetch {PREFETCH}, multiple acks",
                "end_to_end": f"a task per message of the window; prefetch {PREFETCH}",
                "latency": f"one by one; prefetch {PREFETCH}",
            },
        )

    def absence(self) -> str | None:
        return absence_of(self.name, "rabbitmq-server", "Debian: rabbitmq-server")

    def start(self, directory: Path) -> ServerProcess:
        port, distribution = free_ports(2)
        program = "/usr/lib/rabbitmq/bin/rabbitmq-server"
        environment = {
            **os.environ,
            "HOME": str(directory),
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "logs"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(directory / "none"),
            "ERL_EPMD_PORT": str(free_ports(1)[0]),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        (directory / "plugins").write_text("[].")
        command = [program if Path(program).exists() else str(find_program("rabbitmq-server"))]
        url = f"amqp://guest:guest@127.0.0.1:{port}/"
        server = ServerProcess(command, url, directory / "rabbitmq.log", environment)
        server.wait_for_port(port)
        return server


def _server_version() -> str:
    if find_program("dpkg-query") is None:
        return ""
    query = ["dpkg-query", "-W", "-f=${Version}", "rabbitmq-server"]
    return subprocess.run(query, capture_output=True, text=True).stdout.partition("-")[0]


class RabbitLink:
    queue_type: str

    def __init__(self, url: str, topic: str) -> None:
        self._url = url
        self._topic = topic

    async def prepare(self, *, consumes: bool) -> None:
        self._connection = await aio_pika.connect(self._url)
        self._channel = await self._connection.channel(publisher_confirms=True)
        await self._channel.set_qos(prefetch_count=PREFETCH)
        self._queue = await self._channel.declare_queue(
            self._topic, durable=True, arguments={"x-queue-type": self.queue_type}
        )

    async def publish(self, payload: bytes, window: int, stop: Stop) -> int:
        sent = 0

        async def send_in_turn() -> None:
            nonlocal sent
            while not stop():
                await self.send(payload)
                sent += 1

        await asyncio.gather(*(send_in_turn() for _ in range(window)))
        return sent

    async def publish_batches(self, payloads: list[bytes], window: int, stop: Stop) -> int:
        raise NotSupported("RabbitMQ has no batches")

    async def send(self, payload: bytes) -> None:
        message = aio_pika.Message(payload, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await self._channel.default_exchange.publish(message, routing_key=self._topic)

    async def consume(self, handle: Handle) -> None:
        arrived: asyncio.Queue = asyncio.Queue()
        tag = await self._queue.consume(arrived.put)
        goes_on = True
        while goes_on:
            messages = [await arrived.get()]
            while not arrived.empty():
                messages.append(arrived.get_nowait())
            goes_on = handle([message.body for message in messages])
            await messages[-1].ack(multiple=True)
        await self._queue.cancel(tag)

    async def close(self) -> None:
        await self._connection.close()


class QuorumLink(RabbitLink):
    queue_type = "quorum"


class ClassicLink(RabbitLink):
    queue_type = "classic"
