"""Messages of 1 KiB replayed from segments into a Delta table: time, rate, memory.

python -m benchmarks.spark.replay [--rows 10000000] [--commit-rows N] [--directory DIR --only …]

With `--only fill` the topic is left in DIR, and `--only replay` takes it from there; the first may
run on a busy machine, the second is measured. The payloads do not compress, so what is read and
written is what was published. It takes three times the messages' bytes on disk (journal, segments,
table), which are removed at the end.
"""

import argparse
import multiprocessing
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.machine import describe_machine
from benchmarks.memory import BATCH_ROWS, MIB, PAYLOAD, payload_batches
from pydanube.spark import replay, session
from pydanube.spark.ending import stop_session
from pydanube.spark.replaying import Replayed
from pydanube.testing.broker import Broker
from tests.support.spark_topics import Topics

TOPIC = "/default/replayed"
IN_FLIGHT = 4
AHEAD_ROWS_MAX = 2_000_000
"""How far publishing may be ahead of the segments: the journal keeps what is not in them yet."""
SEAL_SECONDS_MAX = 300.0


class OwnBroker(NamedTuple):
    """A broker in a process of its own."""

    url: str
    pid: int


def serve(directory: str, told: Connection) -> None:
    """Run a broker until the other end of the connection closes."""
    settings = {"storage.segments.seal_seconds": 5, "storage.local_retention.size_mb": 6144}
    with Broker(directory, settings=settings) as broker:
        told.send(broker.url)
        told.poll(None)


@contextmanager
def own_broker(directory: Path) -> Iterator[OwnBroker]:
    """Run a broker beside this process, so that its memory can be told apart."""
    spawning = multiprocessing.get_context("spawn")
    here, there = spawning.Pipe()
    process = spawning.Process(target=serve, args=(str(directory), there))
    process.start()
    there.close()
    try:
        assert here.poll(60), "the broker does not start"
        assert process.pid is not None
        yield OwnBroker(here.recv(), process.pid)
    finally:
        here.close()
        process.join(60)


def fill(url: str, rows: int) -> None:
    """Publish so many messages, a few batches under way at a time."""
    client = flight.connect(url.replace("http://", "grpc://"))
    descriptor = flight.FlightDescriptor.for_path(TOPIC)
    writer, results = client.do_put(descriptor, pa.schema([("payload", pa.binary())]))
    waiting: deque[int] = deque()
    topics = Topics(url)
    for number, batch in enumerate(islice(payload_batches(), -(-rows // BATCH_ROWS))):
        if number and number % 64 == 0:
            wait_sealed(topics, AHEAD_ROWS_MAX)
        count = min(rows, BATCH_ROWS)
        rows -= count
        writer.write_batch(batch.slice(0, count))
        waiting.append(count)
        while len(waiting) >= IN_FLIGHT or (not rows and waiting):
            assert results.read() is not None, "the broker took no batch"
            waiting.popleft()
    writer.close()
    topics.close()


def wait_sealed(topics: Topics, rows_max: int = 0) -> None:
    """Wait until no more than so many messages are in no segment yet."""
    deadline = time.monotonic() + SEAL_SECONDS_MAX
    while sum(end - start for start, end, key in topics.segments(TOPIC) if not key) > rows_max:
        assert time.monotonic() < deadline, "the topic is not sealed"
        time.sleep(0.5)


@contextmanager
def memory_watched(**processes: psutil.Process) -> Iterator[dict[str, float]]:
    """Note the most resident memory of each, in MiB."""
    most = dict.fromkeys(processes, 0.0)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            for name, process in processes.items():
                most[name] = max(most[name], process.memory_info().rss / MIB)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        ended.set()
        watcher.join()


def measure(spark: Any, broker: OwnBroker, table: Path, commit_rows: int) -> None:
    java = psutil.Process(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    started = time.monotonic()

    def show(state: Replayed) -> None:
        spent = time.monotonic() - started
        print(f"step {state.steps_done} of {state.steps} after {spent:.1f} s", flush=True)

    with memory_watched(java=java, driver=psutil.Process(), broker=psutil.Process(broker.pid)) as (
        most
    ):
        done = replay(
            spark, TOPIC, str(table), url=broker.url, commit_rows=commit_rows, progress=show
        )
    seconds = time.monotonic() - started
    size = sum(path.stat().st_size for path in table.rglob("*.parquet"))
    print("\n| | |\n|---|---|")
    print(f"| messages | {done.rows_added:,} of {PAYLOAD} bytes, in {done.steps} commits |")
    print(f"| time | {seconds:.1f} s |")
    rate = done.rows_added * PAYLOAD / seconds / 1e6
    print(f"| rate | {rate:.0f} MB/s, {done.rows_added / seconds:,.0f} messages/s |")
    print(f"| the table's files | {size / 1e9:.2f} GB, {len(list(table.rglob('*.parquet')))} |")
    for name, mib in most.items():
        print(f"| the most memory of {name} | {mib:,.0f} MiB |")


def check(spark: Any, table: Path, rows: int) -> None:
    """Each message once: as many rows as offsets, all of them different."""
    from deltalake import DeltaTable

    files = DeltaTable(str(table)).file_uris()
    found = spark.read.parquet(*files).selectExpr(
        "count(*)", "count(distinct offset)", "min(offset)", "max(offset)"
    )
    assert tuple(found.first()) == (rows, rows, 0, rows - 1), found.first()
    print(f"| checked | {rows:,} rows, each offset once |", flush=True)


def prepare(directory: Path, rows: int) -> None:
    """Publish, and wait until all of it is in segments."""
    with own_broker(directory / "data") as broker:
        started = time.monotonic()
        fill(broker.url, rows)
        topics = Topics(broker.url)
        wait_sealed(topics)
        topics.close()
        print(f"published and sealed in {time.monotonic() - started:.0f} s", flush=True)


def run(directory: Path, commit_rows: int) -> None:
    """Replay what is there, and see that it is all there."""
    settings = {
        "spark.ui.enabled": False,
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": False,
        "spark.driver.memory": "3g",
    }
    spark = session("replay", "local[2,4]", **settings)
    with own_broker(directory / "data") as broker:
        topics = Topics(broker.url)
        rows = topics.frontier(TOPIC)
        topics.close()
        measure(spark, broker, directory / "table", commit_rows)
        check(spark, directory / "table", rows)
    stop_session(spark)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--commit-rows", type=int, default=2_500_000)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--only", choices=("fill", "replay"))
    wanted = parser.parse_args()
    directory = wanted.directory or Path(tempfile.mkdtemp())
    directory.mkdir(exist_ok=True)
    print(describe_machine(), flush=True)
    try:
        if wanted.only != "replay":
            prepare(directory, wanted.rows)
        if wanted.only != "fill":
            run(directory, wanted.commit_rows)
    finally:
        if wanted.only != "fill":
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
