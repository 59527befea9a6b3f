"""Prints the figures of one broker: rates, latencies, memory, restart.

python -m benchmarks [--engine http2|grpcio] [--quick] [--only NAME …] [--data-dir DIR]
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.machine import describe_machine
from pydanube.broker.server import DEFAULT_ENGINE, engine_named
from pydanube.wire.danube import services
from pydanube.wire.danube.generated import DanubeAdmin_pb2 as admin
from pydanube.wire.grpcio.channel import GrpcioChannel
from tests.support.broker_process import BrokerProcess

PAYLOAD = 1024
MIB = 2**20


class Bench:
    def __init__(self, engine: str, scale: float, root: Path) -> None:
        self.engine = engine
        self.scale = scale
        self.root = root

    def count(self, full: int) -> int:
        return max(100, int(full * self.scale))

    @contextmanager
    def broker(self, *arguments: str) -> Iterator[BrokerProcess]:
        directory = Path(tempfile.mkdtemp(dir=self.root))
        try:
            with BrokerProcess(directory / "data", *arguments, engine=self.engine) as broker:
                yield broker
                broker.terminate()
        finally:
            shutil.rmtree(directory)


def row(what: str, value: str, how: str) -> None:
    print(f"| {what} | {value} | {how} |", flush=True)


def client(module: str, name: str, url: str, **arguments: int) -> dict[str, float]:
    command = [sys.executable, "-m", f"benchmarks.{module}", name, url, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


@contextmanager
def cpu_of(broker: BrokerProcess, count: int, into: list[float]) -> Iterator[None]:
    process = psutil.Process(broker.pid)
    before = process.cpu_times()
    yield
    after = process.cpu_times()
    into.append((after.user + after.system - before.user - before.system) / count * 1e6)


def resident(broker: BrokerProcess) -> float:
    return psutil.Process(broker.pid).memory_info().rss / MIB


def publish_wheel(bench: Bench) -> None:
    count, window = bench.count(10_000), 64
    with bench.broker() as broker:
        cpu: list[float] = []
        with cpu_of(broker, count, cpu):
            result = client(
                "wheel_client", "publish", broker.url, count=count, window=window, size=PAYLOAD
            )
        how = f"danube-client 0.5.0, {window} in flight, 1 KiB, fsync; broker CPU {cpu[0]:.0f} us"
        row("acknowledged publish", f"{result['rate']:,.0f} msg/s", how)


def publish_raw(bench: Bench) -> None:
    for window, full in ((1, 2_000), (32, 40_000), (256, 100_000)):
        count = bench.count(full)
        with bench.broker() as broker:
            cpu: list[float] = []
            with cpu_of(broker, count, cpu):
                result = client(
                    "raw_client", "publish", broker.url, count=count, window=window, size=PAYLOAD
                )
            how = f"raw client, {window} in flight, 1 KiB, fsync; broker CPU {cpu[0]:.1f} us"
            row("acknowledged publish", f"{result['rate']:,.0f} msg/s", how)


def publish_h2load(bench: Bench) -> None:
    if shutil.which("h2load") is None:
        row("acknowledged publish", "not run", "h2load is not installed (nghttp2-client)")
        return
    for window, full in ((32, 40_000), (256, 200_000)):
        count = bench.count(full)
        with bench.broker() as broker:
            cpu: list[float] = []
            with cpu_of(broker, count, cpu):
                rate = h2load(broker, count, window)
            how = f"h2load, {window} in flight, 1 KiB, fsync; broker CPU {cpu[0]:.1f} us"
            row("acknowledged publish", f"{rate:,.0f} msg/s", how)


def h2load(
    broker: BrokerProcess, count: int, window: int, *, reliable: bool = True, size: int = PAYLOAD
) -> float:
    """Publish the same message `count` times and return the rate."""
    from benchmarks.raw_client import TOPIC
    from pydanube.wire.danube.generated import DanubeApi_pb2 as api

    topic = TOPIC if reliable else f"{TOPIC}-best-effort"

    async def create() -> int:
        channel = GrpcioChannel(broker.url)
        request = api.ProducerRequest(
            producer_name="h2load", topic_name=topic, dispatch_strategy=int(reliable)
        )
        reply = await services.invoke(channel, services.CREATE_PRODUCER, request)
        await channel.close()
        return reply.producer_id

    message = api.StreamMessage(
        msg_id=api.MsgID(producer_id=asyncio.run(create()), topic_name=topic),
        payload=bytes(size),
        publish_time=int(time.time() * 1000),
        producer_name="h2load",
    ).SerializeToString()
    body = broker.data_dir.parent / "request"
    body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    url = f"{broker.url}{services.SEND_MESSAGE.path}"
    started = time.perf_counter()
    done = subprocess.run(
        ["h2load", "-n", str(count), "-c", "1", "-m", str(window), "-d", str(body), *headers, url],
        capture_output=True,
        text=True,
        timeout=900,
        check=True,
    )
    if f"{count} succeeded" not in done.stdout:
        raise RuntimeError(done.stdout)
    return count / (time.perf_counter() - started)


def end_to_end(bench: Bench) -> None:
    count = bench.count(10_000)
    for module, name, window in (
        ("wheel_client", "danube-client 0.5.0", 64),
        ("raw_client", "raw client", 256),
    ):
        with bench.broker() as broker:
            result = client(
                module, "end_to_end", broker.url, count=count, window=window, size=PAYLOAD
            )
            how = f"{name}, publish, deliver, ack; window of 10 unacked, 1 KiB, fsync"
            row("end to end", f"{result['rate']:,.0f} msg/s", how)


def latency(bench: Bench) -> None:
    with bench.broker() as broker:
        result = client(
            "raw_client",
            "latency",
            broker.url,
            rate=1000,
            seconds=bench.count(1000) // 100,
            size=PAYLOAD,
        )
        for what in ("ack", "end_to_end"):
            row(
                f"{what.replace('_', ' ')} latency p50 / p99",
                f"{result[f'{what}_p50_ms']:.2f} / {result[f'{what}_p99_ms']:.2f} ms",
                "raw client, open loop at 1,000 msg/s, 1 KiB, fsync",
            )


def idle_memory(bench: Bench) -> None:
    with bench.broker() as broker:
        time.sleep(1)
        row("idle memory", f"{resident(broker):.0f} MiB", "target: below 120 MiB")


def many_topics(bench: Bench) -> None:
    count = bench.count(10_000)
    with bench.broker() as broker:
        started = time.perf_counter()
        asyncio.run(_create_topics(broker.admin_url, count))
        seconds = time.perf_counter() - started
        how = f"created in {seconds:.1f} s; target: below 400 MiB"
        row(f"memory with {count:,} reliable topics", f"{resident(broker):.0f} MiB", how)
        broker.kill()
        started = time.perf_counter()
        broker.start()
        row(
            f"restart with {count:,} topics",
            f"{time.perf_counter() - started:.2f} s",
            f"after SIGKILL, process start to ready; then {resident(broker):.0f} MiB",
        )


async def _create_topics(url: str, count: int) -> None:
    channel = GrpcioChannel(url)
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            request = admin.NewTopicRequest(name=f"/default/topic-{number}", dispatch_strategy=1)
            await services.invoke(channel, services.CREATE_TOPIC, request)

    await asyncio.gather(*(worker() for _ in range(64)))
    await channel.close()


def restart(bench: Bench) -> None:
    count = bench.count(1_000_000)
    with bench.broker() as broker:
        if shutil.which("h2load") is not None:
            h2load(broker, count, 512)
        else:
            client("raw_client", "publish", broker.url, count=count, window=512, size=PAYLOAD)
        for how, end in (("SIGKILL", broker.kill), ("SIGTERM", broker.terminate)):
            end()
            started = time.perf_counter()
            broker.start()
            row(
                f"restart with {count:,} messages",
                f"{time.perf_counter() - started:.2f} s",
                f"after {how}, process start to ready, 1 KiB; target: below 3 s",
            )


def broker_inside(bench: Bench) -> None:
    """Start to first acknowledgement of a broker in the process of its user, imports done."""
    import pydanube.testing.broker

    engine_named(bench.engine)  # Its imports are not what is measured here.

    async def publish(url: str) -> None:
        async with pydanube.connect(url) as link, link.producer("/default/first") as producer:
            await producer.send(b"first")

    for turn in ("first in the process", "second"):
        started = time.perf_counter()
        with pydanube.Broker(engine=bench.engine) as broker:
            asyncio.run(publish(broker.url))
            seconds = time.perf_counter() - started
        row("in-process broker, first ack", f"{seconds * 1000:.0f} ms", f"{turn}; target: 100 ms")


FIGURES: dict[str, Callable[[Bench], None]] = {
    each.__name__: each
    for each in (
        publish_wheel,
        publish_raw,
        publish_h2load,
        end_to_end,
        latency,
        idle_memory,
        many_topics,
        restart,
        broker_inside,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--engine", default=DEFAULT_ENGINE, choices=["grpcio", "http2"])
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    parser.add_argument("--only", nargs="*", choices=sorted(FIGURES), default=list(FIGURES))
    parser.add_argument("--data-dir", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    bench = Bench(arguments.engine, 0.1 if arguments.quick else 1.0, arguments.data_dir)
    print(f"Engine {arguments.engine}; {describe_machine()}\n")
    print("| figure | value | how |\n|---|---|---|")
    for name in arguments.only:
        FIGURES[name](bench)


if __name__ == "__main__":
    main()
