"""Topics as tables: how fresh a table is, how much a core brings into it, what a union read shows.

python -m benchmarks.spark.tables [--seconds 30] [--rows 1000000] [--only freshness|rate|live|idle]

Broker and exporter run in processes of their own, but for the broker of `idle`. A message counts as
in the table when somebody who opens the table anew finds it there. The exporter of `rate` is
`danube table backfill` without Spark, in bytes of payload per second of its own CPU.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.machine import describe_machine
from benchmarks.memory import BATCH_ROWS, MIB, PAYLOAD, payload_batches
from benchmarks.spark.replay import own_broker
from pydanube.bench.servers import free_ports
from pydanube.spark import session, table
from pydanube.spark.ending import stop_session
from pydanube.tables.catalog_settings import CatalogSetting
from pydanube.tables.catalogs import read_catalogs
from pydanube.tables.opening import open_tables_of
from pydanube.tables.settings import TableSetting
from pydanube.testing.broker import Broker
from tests.support.spark_topics import Topics

FORMATS = ("delta", "iceberg")
PUBLISH_SECONDS = 0.1
LOOK_SECONDS = 0.02
UNION_READS = 5
UNION_DELAY_SECONDS = 0.25
IDLE_SECONDS = 20
DANUBE = (sys.executable, "-c", "from pydanube.cli.main import danube; danube()")


class Lake:
    """Where the tables are, and how many rows each has for whoever opens it now."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.catalogs_file = root / "catalogs.yaml"
        properties = {
            "uri": f"sqlite:///{root}/catalog.db",
            "warehouse": f"file://{root}/warehouse",
        }
        lake = {"type": "sql", "properties": properties}
        self.catalogs_file.write_text(json.dumps({"catalogs": {"lake": lake}}))

    @property
    def catalogs(self) -> dict[str, CatalogSetting]:
        return dict(read_catalogs(str(self.catalogs_file)))

    def setting(self, kind: str, name: str) -> TableSetting:
        if kind == "delta":
            return TableSetting(format="delta", table=self._path(name), freshness_ms=1_000)
        return TableSetting(
            format="iceberg", table=f"default.{name}", catalog="lake", freshness_ms=1_000
        )

    def counter(self, kind: str, name: str) -> Callable[[], int]:
        """Return what opens the table and counts its rows."""
        if kind == "delta":
            from deltalake import DeltaTable

            def count() -> int:
                actions = pa.table(DeltaTable(self._path(name)).get_add_actions(flatten=True))
                return int(sum(actions["num_records"].to_pylist()))

            return count
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("lake", type="sql", **self.catalogs["lake"].properties)
        return lambda: int(catalog.load_table(f"default.{name}").scan().count())

    def _path(self, name: str) -> str:
        return str(self._root / name)


@contextmanager
def running(*arguments: str) -> Iterator[psutil.Process]:
    """Run `danube` beside this process; end it if it has not ended itself."""
    process = subprocess.Popen([*DANUBE, *arguments], stderr=subprocess.DEVNULL)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


class Ages:
    """How old messages are when they show in a table: published here, counted there."""

    def __init__(self, topics: Topics, topic: str, count: Callable[[], int]) -> None:
        self._topics = topics
        self._topic = topic
        self._count = count
        self._published: list[float] = []
        self._over = threading.Event()

    def measure(self, seconds: float) -> list[float]:
        """Publish for so long; return the age of each message when it was seen."""
        ages: list[float] = []
        publisher = threading.Thread(target=self._publish)
        ended = time.monotonic() + seconds
        publisher.start()
        while time.monotonic() < ended or len(ages) < len(self._published):
            assert time.monotonic() < ended + 30, f"{len(ages)} of {len(self._published)} seen"
            seen_at, seen = time.monotonic(), self._count() - 1
            ages += [seen_at - acked for acked in self._published[len(ages) : seen]]
            if time.monotonic() >= ended:
                self._over.set()
            time.sleep(LOOK_SECONDS)
        publisher.join()
        return ages

    def _publish(self) -> None:
        while not self._over.wait(PUBLISH_SECONDS):
            self._topics.publish_payloads(self._topic, [b"x" * PAYLOAD])
            self._published.append(time.monotonic())


def freshness(root: Path, seconds: float) -> None:
    lake = Lake(root)
    with own_broker(root / "fresh") as broker:
        topics = Topics(broker.url)
        for kind in FORMATS:
            topic, name = f"/default/fresh-{kind}", f"fresh_{kind}"
            topics.publish_payloads(topic, [b"first"])
            with open_tables_of(broker.url, lake.catalogs) as tables:
                tables.enable(topic, lake.setting(kind, name))
                tables.backfill(topic, report=lambda progress: None)
                where = ("--service-addr", broker.url, "--catalogs", str(lake.catalogs_file))
                with running("table", "run", "--spark", "never", *where):
                    ages = Ages(topics, topic, lake.counter(kind, name)).measure(seconds)
                tables.disable(topic)
            p50, p99 = statistics.median(ages), statistics.quantiles(ages, n=100)[98]
            print(
                f"| {kind}, `--freshness 1s`: age when shown | {p50:.2f} s p50, {p99:.2f} s p99 |"
            )
        topics.close()


def rate(root: Path, rows: int) -> None:
    lake = Lake(root)
    rows -= rows % BATCH_ROWS
    with own_broker(root / "rate") as broker:
        for kind in FORMATS:
            topic, name = f"/default/rate-{kind}", f"rate_{kind}"
            fill(broker.url, topic, rows)
            with open_tables_of(broker.url, lake.catalogs) as tables:
                tables.enable(topic, lake.setting(kind, name))
            where = ("--service-addr", broker.url, "--catalogs", str(lake.catalogs_file))
            started = time.monotonic()
            with running("table", "backfill", topic, "--spark", "never", *where) as exporter:
                cpu = cpu_until_end(exporter)
            seconds = time.monotonic() - started
            count = lake.counter(kind, name)()
            assert count == rows, f"{count} rows of {rows}"
            mib = rows * PAYLOAD / MIB
            print(
                f"| {kind}: {rows:,} messages of {PAYLOAD} bytes | {mib / cpu:.0f} MiB/s per core, "
                f"{mib / seconds:.0f} MiB/s with {cpu / seconds:.2f} cores |"
            )


def fill(url: str, topic: str, rows: int) -> None:
    client = flight.connect(url.replace("http://", "grpc://"))
    schema = pa.schema([("payload", pa.binary())])
    writer, results = client.do_put(flight.FlightDescriptor.for_path(topic), schema)
    for batch in islice(payload_batches(), rows // BATCH_ROWS):
        writer.write_batch(batch)
        assert results.read() is not None, "the broker took no batch"
    writer.close()
    client.close()


def cpu_until_end(process: psutil.Process) -> float:
    """Wait for a process; return the CPU seconds that it was last seen with."""
    spent = 0.0
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        used = process.cpu_times()
        spent = used.user + used.system
        time.sleep(LOOK_SECONDS)
    return spent


def live(root: Path, spark: Any) -> None:
    """Publish, wait a quarter of a second after the ack, and ask table and tail for the message."""
    lake = Lake(root)
    with own_broker(root / "live") as broker:
        topics, topic = Topics(broker.url), "/default/live"
        topics.publish_payloads(topic, [b"first"])
        with open_tables_of(broker.url, lake.catalogs) as tables:
            tables.enable(topic, lake.setting("delta", "live"))
            tables.backfill(topic, report=lambda progress: None)
            shown, took = 0, []
            for number in range(UNION_READS + 1):
                topics.publish_payloads(topic, [b"live"])
                time.sleep(UNION_DELAY_SECONDS)
                started = time.monotonic()
                found = table(spark, topic, url=broker.url).selectExpr("max(offset)").first()[0]
                if number:
                    took.append(time.monotonic() - started)
                    shown += found == number + 1
            tables.disable(topic)
        topics.close()
    print(
        f"| union reads 250 ms after an ack that show the message | {shown} of {UNION_READS}, "
        f"{statistics.median(took):.2f} s each |"
    )


def idle(spark: Any) -> None:
    """Count what a query that has nothing to do asks of the broker."""
    (port,) = free_ports(1)
    settings = {"broker.ports.prometheus": port}
    with Broker(settings=settings) as broker, tempfile.TemporaryDirectory() as checkpoint:
        topics, topic = Topics(broker.url), "/default/idle"
        topics.publish_payloads(topic, [b"first"])
        options = {"url": broker.url, "topic": topic, "startingOffsets": "earliest"}
        frame = spark.readStream.format("danube").options(**options).load()
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        query.processAllAvailable()
        before = rpc_calls(port)
        time.sleep(IDLE_SECONDS)
        calls = (rpc_calls(port) - before) / IDLE_SECONDS
        ran = [each for each in query.recentProgress if "addBatch" in each["durationMs"]]
        empty = sum(not each["numInputRows"] for each in ran)
        query.stop()
        topics.close()
    print(f"| a query with nothing to do | {calls:.1f} calls a second, {empty} empty batches |")


def rpc_calls(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("danube_broker_rpc_"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--only", choices=("freshness", "rate", "live", "idle"))
    wanted = parser.parse_args()
    print(f"{describe_machine()}\n\n| | |\n|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        if wanted.only in (None, "freshness"):
            freshness(root, wanted.seconds)
        if wanted.only in (None, "rate"):
            rate(root, wanted.rows)
        if wanted.only in (None, "live", "idle"):
            settings = {"spark.ui.enabled": False, "spark.log.level": "ERROR"}
            spark = session("tables", "local[2,4]", **settings)
            if wanted.only != "idle":
                live(root, spark)
            if wanted.only != "live":
                idle(spark)
            stop_session(spark)


if __name__ == "__main__":
    main()
