"""What three brokers do when one dies, stops, freezes or gets too much: by real processes.

    python -m benchmarks.cluster [failover] [moves] [rolling] [frozen] [replicas] [balance]

Without a name all parts run, one after the other. Brokers, clients and disk share one machine.
Every part ends by reading all topics: what was acknowledged and is not at its offset is lost.
"""

import argparse
import asyncio
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from pydanube import Client, Producer, connect
from pydanube.admin.operations import Operations
from pydanube.client.client import http2_channel
from pydanube.errors import DanubeError
from tests.support.cluster_processes import FAST, ClusterProcesses

TOPICS = 12
PAYLOAD = b"x" * 1024
FROZEN_SECONDS = 30.0
MANY_TOPICS = 1_000
BALANCE_SECONDS = 150.0
EAGER = {
    "load_manager": {
        "assignment_strategy": "fair",
        "load_report_interval_seconds": 2,
        "rebalancing": {
            "enabled": True,
            "aggressiveness": "aggressive",
            "check_interval_seconds": 1,
            "max_moves_per_hour": 1_000,
            "max_moves_per_cycle": 50,
            "cooldown_seconds": 0,
            "min_topic_age_seconds": 0,
        },
    }
}


class Flow:
    """Publishes to one topic, one message after the other, and keeps what was acknowledged."""

    def __init__(self, topic: str, producer: Producer[bytes], pause_seconds: float) -> None:
        self.topic = topic
        self._producer = producer
        self._pause_seconds = pause_seconds
        self.acknowledged: dict[int, int] = {}
        self.longest_gap = 0.0
        self.failed = 0
        self._last = time.monotonic()

    def forget_gap(self) -> None:
        """Measure the longest silence from now on."""
        self.longest_gap = 0.0
        self._last = time.monotonic()

    async def run(self) -> None:
        """Publish until cancelled."""
        number = 0
        while True:
            try:
                sent = await self._producer.send(b"%d" % number)
            except DanubeError:
                self.failed += 1
            else:
                now = time.monotonic()
                self.longest_gap = max(self.longest_gap, now - self._last)
                self._last = now
                assert sent.offset is not None
                self.acknowledged[sent.offset] = number
            number += 1
            await asyncio.sleep(self._pause_seconds)

    async def lost(self, client: Client) -> int:
        """Return how many acknowledged messages are not where they should be."""
        while True:
            with suppress(DanubeError):  # It may be changing hands.
                table = await client.reader(self.topic).to_arrow()
                break
            await asyncio.sleep(0.5)
        stored = dict(enumerate(int(each) for each in table["payload"].to_pylist()))
        return sum(stored.get(offset) != number for offset, number in self.acknowledged.items())


class Load:
    """Flows to many topics, for as long as the block lasts."""

    def __init__(self, client: Client, topics: int, pause_seconds: float = 0.005) -> None:
        self._client = client
        self._topics = topics
        self._pause_seconds = pause_seconds
        self.flows: list[Flow] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Load":
        for number in range(self._topics):
            topic = f"/default/load-{number}"
            producer = await self._client.producer(topic)
            self.flows.append(Flow(topic, producer, self._pause_seconds))
        self._tasks = [asyncio.create_task(flow.run()) for flow in self.flows]
        await asyncio.sleep(2.0)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def gaps(self, harm: Callable[[], Awaitable[None]], seconds: float) -> list[float]:
        """Return the longest silence of each topic around some harm."""
        for flow in self.flows:
            flow.forget_gap()
        await harm()
        await asyncio.sleep(seconds)
        return [flow.longest_gap for flow in self.flows]

    async def tell_lost(self) -> None:
        """Print what became of all that was acknowledged."""
        lost = sum([await flow.lost(self._client) for flow in self.flows])
        acknowledged = sum(len(flow.acknowledged) for flow in self.flows)
        failed = sum(flow.failed for flow in self.flows)
        print(f"  {acknowledged} acknowledged, {lost} lost, {failed} refused", flush=True)


def summary(gaps: list[float]) -> str:
    ordered = sorted(gaps)
    return (
        f"median {statistics.median(ordered):.2f} s, longest {ordered[-1]:.2f} s "
        f"({', '.join(f'{gap:.2f}' for gap in ordered)})"
    )


async def leader_of(cluster: ClusterProcesses) -> int:
    """Return the number of the broker that leads the metadata."""
    for broker in cluster.brokers:
        with suppress(DanubeError):
            async with Operations(http2_channel(broker.admin_url), broker.admin_url) as operations:
                status = await operations.cluster.status()
                infos = await operations.brokers.list_brokers()
            leading = next(i.broker_addr for i in infos if i.broker_id == str(status.leader_id))
            return [each.url for each in cluster.brokers].index(leading)
    raise AssertionError("no broker answers")


async def failover(directory: Path) -> None:
    """Kill brokers that own topics: once a follower, once the leader of the metadata."""
    for name, times in (("default times", {}), ("fast times", FAST)):
        with ClusterProcesses(directory / name.replace(" ", "-"), 3, times=times) as cluster:
            async with connect(",".join(cluster.urls)) as client, Load(client, TOPICS) as load:
                for role in ("a follower", "the leader"):
                    leader = await leader_of(cluster)
                    number = leader if role == "the leader" else (leader + 1) % 3

                    async def kill(number: int = number) -> None:
                        cluster.brokers[number].kill()

                    gaps = await load.gaps(kill, 8.0)
                    print(f"failover, {name}, {role} killed: {summary(gaps)}", flush=True)
                    await asyncio.to_thread(cluster.brokers[number].start)
                    await asyncio.sleep(3.0)
                await load.__aexit__()
                await load.tell_lost()


async def moves(directory: Path) -> None:
    """Unload every topic once."""
    with ClusterProcesses(directory, 3) as cluster:
        async with connect(",".join(cluster.urls)) as client, Load(client, TOPICS) as load:
            url = cluster.brokers[0].admin_url
            async with Operations(http2_channel(url), url) as operations:

                async def unload_all() -> None:
                    for flow in load.flows:
                        await operations.topics.unload(flow.topic)

                gaps = await load.gaps(unload_all, 1.0)
            print(f"moves, publish pause per topic: {summary(gaps)}", flush=True)
            await load.__aexit__()
            await load.tell_lost()


async def rolling(directory: Path) -> None:
    """Stop and start one broker after the other."""
    with ClusterProcesses(directory, 3) as cluster:
        async with connect(",".join(cluster.urls)) as client, Load(client, TOPICS) as load:
            for number, broker in enumerate(cluster.brokers):

                async def restart(number: int = number) -> None:
                    await asyncio.to_thread(cluster.brokers[number].terminate)
                    await asyncio.to_thread(cluster.brokers[number].start)

                gaps = await load.gaps(restart, 2.0)
                print(f"rolling restart, broker {number}: {summary(gaps)}", flush=True)
                assert broker.process is not None
            await load.__aexit__()
            await load.tell_lost()


async def frozen(directory: Path) -> None:
    """Freeze a broker for half a minute, and let it go on."""
    with ClusterProcesses(directory, 3) as cluster:
        async with connect(",".join(cluster.urls)) as client, Load(client, TOPICS) as load:
            process = cluster.brokers[1].process
            assert process is not None

            async def freeze() -> None:
                process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(FROZEN_SECONDS)
                process.send_signal(signal.SIGCONT)

            gaps = await load.gaps(freeze, 5.0)
            print(f"a broker frozen for {FROZEN_SECONDS:.0f} s: {summary(gaps)}", flush=True)
            await load.__aexit__()
            await load.tell_lost()


async def replicas(directory: Path) -> None:
    """Publish with one, two and three journals per message."""
    for count in (1, 2, 3):
        with ClusterProcesses(directory / f"replicas-{count}", 3, replicas=count) as cluster:
            async with connect(cluster.urls[0]) as client:
                producer = await client.producer("/default/cost", batch_messages_max=256)
                for _ in range(3):
                    await asyncio.gather(*(producer.send(PAYLOAD) for _ in range(256)))
                began, sent = time.monotonic(), 0
                cpu = cpu_seconds(cluster)
                while time.monotonic() - began < 3.0:
                    await asyncio.gather(*(producer.send(PAYLOAD) for _ in range(256)))
                    sent += 256
                rate = sent / (time.monotonic() - began)
                cost = (cpu_seconds(cluster) - cpu) / sent * 1e6
                alone = []
                for _ in range(300):
                    at = time.monotonic()
                    await producer.send(PAYLOAD)
                    alone.append((time.monotonic() - at) * 1000)
            alone.sort()
            print(
                f"replicas {count}: {rate:,.0f} msg/s in bursts of 256, {cost:.0f} us of broker "
                f"CPU per message; one in flight p50 {alone[150]:.2f} ms, p99 {alone[297]:.2f} ms",
                flush=True,
            )


def cpu_seconds(cluster: ClusterProcesses) -> float:
    """Return what all brokers have used."""
    import psutil

    times = [psutil.Process(broker.pid).cpu_times() for broker in cluster.brokers]
    return sum(each.user + each.system for each in times)


async def balance(directory: Path) -> None:
    """Have a thousand topics on one broker, some of them busy, and let them spread."""
    with ClusterProcesses(directory, 3, more=EAGER) as cluster:
        url = cluster.brokers[0].admin_url
        async with (
            Operations(http2_channel(url), url) as operations,
            connect(",".join(cluster.urls)) as client,
        ):
            infos = await operations.brokers.list_brokers()
            others = [info.broker_id for info in infos if info.broker_addr != cluster.urls[0]]
            for broker in others:
                await operations.brokers.unload(broker)
            began = time.monotonic()
            for number in range(MANY_TOPICS - TOPICS):
                await operations.topics.create(f"/default/quiet-{number}", dispatch="Reliable")
            async with Load(client, TOPICS, 0.02) as load:
                print(f"{MANY_TOPICS} topics after {time.monotonic() - began:.0f} s", flush=True)
                for broker in others:
                    await operations.brokers.activate(broker)
                before = await operations.brokers.balance()
                print(f"balance before: {before.coefficient_of_variation:.2f}", flush=True)
                began = time.monotonic()
                now = before
                while (
                    now.coefficient_of_variation >= 0.2
                    and time.monotonic() - began < BALANCE_SECONDS
                ):
                    await asyncio.sleep(2.0)
                    now = await operations.brokers.balance()
                seconds = time.monotonic() - began
                shares = [each.topic_count for each in now.brokers]
                print(
                    f"balance after {seconds:.0f} s: {now.coefficient_of_variation:.2f}, topics "
                    f"{shares}",
                    flush=True,
                )
                await load.__aexit__()
                await load.tell_lost()


PARTS = {
    "failover": failover,
    "moves": moves,
    "rolling": rolling,
    "frozen": frozen,
    "replicas": replicas,
    "balance": balance,
}


def main() -> None:
    """Run the parts that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster")
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    names = parser.parse_args().parts
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    for name in names or list(PARTS):
        with tempfile.TemporaryDirectory(prefix="danube-cluster-") as directory:
            asyncio.run(PARTS[name](Path(directory)))
        subprocess.run(["sync"], check=False)


if __name__ == "__main__":
    main()
