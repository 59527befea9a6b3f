"""The same broker on both engines, in interleaved rounds: rates, ratios, server CPU per message.

python -m benchmarks.engines [--rounds 5] [--quick] [--only publish receive]
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.__main__ import h2load
from benchmarks.go_client import build
from benchmarks.machine import describe_machine
from tests.support.broker_process import BrokerProcess

ENGINES = ("grpcio", "http2")
PARTS = ("publish", "receive")
BACKLOG_MESSAGES = 9_000
LARGE = 100 * 1024


def on_one_core() -> None:
    """Keep a client on one core.

    Free to use two, the threads of grpc.aio wake each other across them, twice a message; on a
    virtual machine that costs more than the message.
    """
    os.sched_setaffinity(0, {0})


class Round:
    """One broker on one engine, and what was measured on it."""

    def __init__(self, broker: BrokerProcess, scale: float, go_client: Path | None) -> None:
        self.broker = broker
        self.scale = scale
        self.go_client = go_client
        self.results: dict[str, tuple[float, float]] = {}
        """By figure: rate, and CPU microseconds of the broker per message."""

    def count(self, full: int) -> int:
        return max(200, int(full * self.scale))

    def measure(self, figure: str, count: int, work: Callable[[], float]) -> None:
        process = psutil.Process(self.broker.pid)
        before = process.cpu_times()
        rate = work()
        after = process.cpu_times()
        spent = after.user + after.system - before.user - before.system
        self.results[figure] = (rate, spent / count * 1e6)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.broker.client_port}"

    def stock(
        self, name: str, client: str = "stock_client", *, pinned: bool = False, **arguments: object
    ) -> dict[str, float]:
        target = self.broker.url if client == "wheel_client" else self.target
        command = [sys.executable, "-m", f"benchmarks.{client}", name, target]
        return self._client([*command, json.dumps(arguments)], pinned=pinned)

    def _client(self, command: list[str], *, pinned: bool = False) -> dict[str, float]:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
            preexec_fn=on_one_core if pinned else None,
        )
        result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return result

    def run(self, parts: Sequence[str]) -> None:
        if "publish" in parts:
            self._run_publish()
        if "receive" in parts:
            self._run_receive()

    def _run_publish(self) -> None:
        self._publish("publish, grpc.aio, 64 in flight, best effort", False, 6_000, 64, 1024)
        self._publish("publish, grpc.aio, 64 in flight, reliable", True, 6_000, 64, 1024)
        for reliable, name in ((False, "best effort"), (True, "reliable")):
            count = self.count(10_000)
            self.measure(
                f"publish, h2load, 32 in flight, {name}",
                count,
                lambda reliable=reliable, count=count: h2load(
                    self.broker, count, 32, reliable=reliable
                ),
            )
        large = self.count(2_000)
        self.measure(
            "publish, h2load, 8 in flight, 100 KiB, best effort",
            large,
            lambda: h2load(self.broker, large, 8, reliable=False, size=LARGE),
        )
        self._publish("publish, grpc.aio, 8 in flight, 100 KiB, reliable", True, 600, 8, LARGE)
        self._put("DoPut stream, grpc.aio, 32 unanswered, 100 KiB, best effort", 2_000)

    def _run_receive(self) -> None:
        small, large = self.count(BACKLOG_MESSAGES), self.count(2_000)
        for size, count in ((1024, small), (LARGE, large)):
            topic = f"/default/backlog-{size}"
            self.stock("publish", topic=topic, reliable=True, count=count, window=64, size=size)
        self._receive("receive, grpc.aio, 1 KiB", 1024, small)
        self._receive("receive, grpc.aio on one core, 1 KiB", 1024, small, pinned=True)
        self._receive(
            "receive, grpc.aio, all of it there before, 1 KiB", 1024, small, ahead_seconds=1.0
        )
        self._receive("receive, grpcio with threads, 1 KiB", 1024, small, "threaded_client")
        self.measure(
            "receive, danube-client, 1 KiB",
            small,
            lambda: (
                small
                / self.stock(
                    "receive", "wheel_client", topic="/default/wheel", count=small, size=1024
                )["seconds"]
            ),
        )
        if self.go_client is not None:
            go_client = [str(self.go_client), self.target, "/default/backlog-1024", str(small)]
            self.measure(
                "receive, Go grpc, 1 KiB", small, lambda: small / self._client(go_client)["seconds"]
            )
        for client, name in (("stock_client", "grpc.aio"), ("own_client", "our channel")):
            for pinned, where in ((False, ""), (True, " on one core")):
                figure = f"receive stream, {name}{where}, 100 KiB"
                self._receive(figure, LARGE, large, client, pinned=pinned)

    def _publish(self, figure: str, reliable: bool, full: int, window: int, size: int) -> None:
        count = self.count(full)
        topic = f"/default/publish-{size}-{reliable}"
        arguments = {"topic": topic, "reliable": reliable, "window": window, "size": size}
        self.measure(figure, count, lambda: self.stock("publish", count=count, **arguments)["rate"])

    def _put(self, figure: str, full: int) -> None:
        arguments = {"topic": "/default/put", "count": self.count(full), "size": LARGE, "ahead": 32}
        self.measure(figure, self.count(full), lambda: self.stock("put", **arguments)["rate"])

    def _receive(
        self,
        figure: str,
        size: int,
        count: int,
        client: str = "stock_client",
        *,
        pinned: bool = False,
        **more: object,
    ) -> None:
        arguments = {"topic": f"/default/backlog-{size}", "count": count, **more}

        def work() -> float:
            return count / self.stock("receive", client, pinned=pinned, **arguments)["seconds"]

        self.measure(figure, count, work)


@contextmanager
def broker_on(engine: str, root: Path) -> Iterator[BrokerProcess]:
    directory = Path(tempfile.mkdtemp(dir=root))
    config = directory / "broker.yml"
    config.write_text(
        f"cluster_name: BENCH\nbroker: {{}}\nmeta_store: {{data_dir: {directory}/raft}}\n"
        f"bootstrap_namespaces: [default]\nauth: {{mode: none}}\npolicies: {{}}\n"
        f"storage: {{local_wal_root: {directory}/wal}}\n"
        # A window as large as a backlog: what is measured is the stream, not the acks.
        "dispatch: {max_unacked_messages: 10000}\n"
    )
    broker = BrokerProcess(
        directory / "data", "--mode", "cluster", "--config-file", str(config), engine=engine
    )
    try:
        with broker:
            yield broker
            broker.terminate()
    finally:
        shutil.rmtree(directory)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--data-dir", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    rates: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    costs: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as folder:
        go_client = build(Path(folder)) if "receive" in arguments.only else None
        for _ in range(arguments.rounds):
            for engine in ENGINES:
                with broker_on(engine, arguments.data_dir) as broker:
                    measured = Round(broker, 0.2 if arguments.quick else 1.0, go_client)
                    measured.run(arguments.only)
                for figure, (rate, cost) in measured.results.items():
                    rates[figure][engine].append(rate)
                    costs[figure][engine].append(cost)
    print(f"{arguments.rounds} interleaved rounds, medians; {describe_machine()}\n")
    print("| figure | grpcio msg/s | http2 msg/s | ratio | grpcio CPU us | http2 CPU us | ratio |")
    print("|---|---|---|---|---|---|---|")
    for figure, by_engine in rates.items():
        old, new = (statistics.median(by_engine[engine]) for engine in ENGINES)
        cost_old, cost_new = (statistics.median(costs[figure][engine]) for engine in ENGINES)
        print(
            f"| {figure} | {old:,.0f} | {new:,.0f} | {new / old:.1f} "
            f"| {cost_old:.0f} | {cost_new:.1f} | 1/{cost_old / max(cost_new, 0.1):.0f} |"
        )


if __name__ == "__main__":
    main()
