"""Apache Kafka 4 in KRaft mode, through confluent-kafka."""

import asyncio
import subprocess
import time
from pathlib import Path

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.peers.programs import CACHE, find_program
from pydanube.bench.driver import Handle, Stop
from pydanube.bench.results import SystemNotes
from pydanube.bench.servers import ServerProcess, free_ports
from pydanube.errors import NotSupported

FETCH = 500
POLL_SECONDS = 0.0002
FSYNC = {"flush": "before reply (flush.messages=1)", "default": "by the operating system"}
SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={directory}/kafka
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class KafkaSystem:
    link = "benchmarks.peers.kafka:KafkaLink"
    jobs = ("publish", "backlog", "end_to_end", "one_in_flight", "latency")

    def __init__(self, kind: str) -> None:
        self.name = f"kafka-{kind}" if kind != "default" else "kafka"
        self._flush = kind == "flush"
        client = f"confluent-kafka {confluent_kafka.version()}"
        client = client if isinstance(client, str) else str(client)
        self.notes = SystemNotes(
            name=self.name,
            title=f"Apache Kafka {_jar_version()}, KRaft, acks=all; {client}",
            fsync=FSYNC[kind],
            batching={
                "publish": "callbacks; librdkafka batches, linger.ms 0",
                "backlog": f"consume of {FETCH}, a commit for each",
                "end_to_end": f"callbacks; linger.ms 0; consume of {FETCH}, a commit for each",
                "latency": f"one by one; consume of up to {FETCH}, a commit for each",
            },
        )

    def absence(self) -> str | None:
        if not list((CACHE / "kafka").glob("kafka_2.13-*.jar")):
            return f"{self.name}: not measured, its jars are absent (benchmarks.peers.install)"
        if find_program("java") is None:
            return f"{self.name}: not measured, there is no java"
        return None

    def start(self, directory: Path) -> ServerProcess:
        port, controller = free_ports(2)
        text = SETTINGS.format(port=port, controller=controller, directory=directory)
        if self._flush:
            text += "log.flush.interval.messages=1\n"
        config = directory / "server.properties"
        config.write_text(text)
        java = ["java", "-Xmx1g", "-Xms1g", "-cp", f"{CACHE}/kafka/*"]
        kind = ["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c"]
        subprocess.run([*java, *kind, str(config)], check=True, capture_output=True)
        server = ServerProcess(
            [*java, "kafka.Kafka", str(config)], f"127.0.0.1:{port}", directory / "kafka.log"
        )
        server.wait_for_port(port)
        return server


def _jar_version() -> str:
    jars = sorted((CACHE / "kafka").glob("kafka_2.13-*.jar"))
    return jars[-1].stem.partition("-")[2] if jars else ""


class KafkaLink:
    def __init__(self, url: str, topic: str) -> None:
        self._url = url
        self._topic = topic
        self._failure: KafkaError | None = None
        self._delivered = 0

    async def prepare(self, *, consumes: bool) -> None:
        common = {"bootstrap.servers": self._url}
        if consumes:
            self._consumer = Consumer(
                {
                    **common,
                    "group.id": "bench",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "fetch.wait.max.ms": 10,
                }
            )
            self._consumer.subscribe([self._topic])
            return
        admin = AdminClient(common)
        for done in admin.create_topics([NewTopic(self._topic, 1, 1)]).values():
            done.result(30)
        self._producer = Producer({**common, "acks": "all", "linger.ms": 0})

    def _reported(self, error: KafkaError | None, message: object) -> None:
        self._failure = self._failure or error
        self._delivered += 1

    async def publish(self, payload: bytes, window: int, stop: Stop) -> int:
        producer, first, sent = self._producer, self._delivered, 0
        while not stop():
            while sent - (self._delivered - first) >= window:
                producer.poll(1)
            producer.produce(self._topic, payload, on_delivery=self._reported)
            producer.poll(0)
            sent += 1
        self._wait(first + sent)
        return sent

    def _wait(self, delivered: int) -> None:
        end = time.monotonic() + 60
        while self._delivered < delivered and time.monotonic() < end:
            self._producer.poll(1)
        if self._failure is not None or self._delivered < delivered:
            raise RuntimeError(f"Kafka did not deliver: {self._failure}")

    async def publish_batches(self, payloads: list[bytes], window: int, stop: Stop) -> int:
        raise NotSupported("librdkafka makes its batches itself")

    async def send(self, payload: bytes) -> None:
        delivered: list[object] = []

        def reported(error: KafkaError | None, message: object) -> None:
            self._reported(error, message)
            delivered.append(message)

        self._producer.produce(self._topic, payload, on_delivery=reported)
        while not delivered:
            self._producer.poll(0)
            await asyncio.sleep(POLL_SECONDS)

    async def consume(self, handle: Handle) -> None:
        goes_on = True
        while goes_on:
            # Asked for many, it waits for many; so one is waited for, and the rest is taken along.
            first = self._consumer.poll(60)
            messages = [first, *self._consumer.consume(FETCH - 1, 0)] if first is not None else []
            for message in messages:
                if message.error() is not None:
                    raise RuntimeError(str(message.error()))
            if messages:
                goes_on = handle([message.value() for message in messages])
                self._consumer.commit(messages[-1], asynchronous=True)
        self._consumer.commit(asynchronous=False)

    async def close(self) -> None:
        if hasattr(self, "_consumer"):
            self._consumer.close()
