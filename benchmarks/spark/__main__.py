"""Prints ratios of the data source to Spark's native ways, on topics of 1 KiB messages.

python -m benchmarks.spark [--rows N] [--rounds N] [--only scans|sink|streams] [--diagnose]
    [--cores shared|divided]

All variants take turns within a round, in another order every time, so that what else the machine
does, and what one leaves behind, hits all of them; the median of the rounds counts. Everything
goes into Spark's noop sink unless said otherwise. One broker seals its topics at once, the other
keeps them as a tail. What is written into a topic are payloads alone, all columns of a topic, and
messages of a topic of their own that have a key and two attributes each.

The session is promised that rows have no more than 4 KiB (`row_bytes_max`), so that Spark need not
measure them on their way to Python; the same without that promise takes its turns, too.

Shared, brokers and Spark run on all cores: what a broker does, Spark cannot. Divided, Spark with
its Python workers has one core and the brokers, which stand for other machines, another one. With
--diagnose the same payloads also go into a bare process that only receives, writes and syncs: what
a topic takes beyond that is its own. And rows are thrown away in Spark's Python workers: that much
is Spark's. A run takes 60 GB of disk while it lasts.
"""

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.cores import CHOICES, Cores, keep_on
from benchmarks.machine import describe_machine
from benchmarks.spark.bare import BareSource, bare_process
from pydanube.spark import history, session
from pydanube.spark.sessions import BATCH_BYTES_MAX, BYTES_PER_BATCH
from pydanube.spark.sink.frames import MESSAGE_COLUMNS
from pydanube.testing.broker import Broker
from tests.support.spark_topics import Topics

PAYLOAD_BYTES = 1024
ROW_BYTES_MAX = "4k"
BATCH_ROWS = 1_000
DIFFERENT_BATCHES = 50
TOPIC = "/default/bench"
KEYED = "/default/bench-keyed"
TARGET = "/default/bench-out"
STREAM_BATCHES = 10
WARM_UP_ROUNDS = 5
"""Java compiles most of what it runs often in the first rounds, beside the tasks."""
ROUNDS = 11
"""One variant's rounds differ by up to a third: a median of five moves by a tenth."""
SEALING = {"storage.segments.seal_bytes": 16 << 20, "storage.segments.seal_seconds": 1}
NEVER_SEALING = {
    "storage.segments.seal_bytes": 1 << 40,
    "storage.segments.seal_seconds": 86_400,
    "storage.local_retention.size_mb": 1 << 20,
}

Variant = Callable[[], float | None]
"""Does something, and returns the seconds that count; None: all it took."""


def payload_batches() -> list[pa.RecordBatch]:
    """Messages that compress about as well as JSON does."""
    words = [bytes(random.choices(b"abcdefghij0123456789", k=32)) for _ in range(4_000)]

    def batch() -> pa.RecordBatch:
        payloads = [
            b"".join(random.choices(words, k=PAYLOAD_BYTES // 32)) for _ in range(BATCH_ROWS)
        ]
        return pa.record_batch({"payload": pa.array(payloads, pa.binary())})

    return [batch() for _ in range(DIFFERENT_BATCHES)]


def keyed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same payloads with what messages have beside them: a key, a type and a trace."""
    rows = range(batch.num_rows)
    keys = [f"customer-{random.randrange(10_000)}" for _ in rows]
    attributes = [
        [("content-type", "application/json"), ("trace", f"{random.getrandbits(64):016x}")]
        for _ in rows
    ]
    return batch.append_column("routing_key", pa.array(keys, pa.utf8())).append_column(
        "attributes", pa.array(attributes, pa.map_(pa.utf8(), pa.utf8()))
    )


def fill(url: str, topic: str, batches: list[pa.RecordBatch], rows: int) -> None:
    """Publish so many messages."""
    client = flight.connect(url.replace("http://", "grpc://"))
    writer, results = client.do_put(flight.FlightDescriptor.for_path(topic), batches[0].schema)
    for number in range(rows // BATCH_ROWS):
        writer.write_batch(batches[number % len(batches)])
        results.read()
    writer.close()


def segment_files(url: str, topic: str) -> list[str]:
    """Wait until a topic is sealed; return where its segments lie."""
    topics = Topics(url)
    keys = {key for _, _, key in topics.wait_sealed(topic) if key}
    root = Path(topics.store(topic).removeprefix("file://"))
    topics.close()
    return [f"file://{root / key}" for key in sorted(keys)]


def measure(variants: dict[str, Variant], rounds: int) -> dict[str, float]:
    """Return the median seconds of each variant."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(WARM_UP_ROUNDS + rounds):
        for name in random.sample(list(variants), len(variants)):
            started = time.perf_counter()
            counted = variants[name]()
            spent = time.perf_counter() - started
            if number >= WARM_UP_ROUNDS:
                seconds[name].append(spent if counted is None else counted)
    for name, each in seconds.items():
        print(f"{name}: {', '.join(f'{value:.2f}' for value in each)}", file=sys.stderr)
    return {name: statistics.median(each) for name, each in seconds.items()}


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


class Bench:
    """The variants, over a topic that is sealed at `sealed` and all tail at `fresh`.

    `files` are the segments of that topic, `keyed_files` those of the one with keys.
    """

    def __init__(
        self,
        spark: Any,
        sealed: str,
        fresh: str,
        files: list[str],
        keyed_files: list[str],
        bare_port: int,
        rows: int,
    ) -> None:
        self._spark = spark
        self._sealed = sealed
        self._fresh = fresh
        self._files = files
        self._rows_read = spark.read.parquet(*files)
        self._payloads = self._rows_read.select("payload")
        self._messages = spark.read.parquet(*keyed_files).select(*MESSAGE_COLUMNS)
        self._bare_port = bare_port
        self._rows = rows

    def scans(self) -> dict[str, Variant]:
        spark, sealed = self._spark, self._sealed
        start, end = self._rows // 2, self._rows // 2 + self._rows // 100
        bounds = {
            "startingOffsets": f'{{"{TOPIC}": {start}}}',
            "endingOffsets": f'{{"{TOPIC}": {end}}}',
        }
        two = ["offset", "publish_time"]
        return {
            "native": lambda: noop(spark.read.parquet(*self._files)),
            "history": lambda: noop(history(spark, TOPIC, url=sealed)),
            "tail": lambda: noop(self._source(self._fresh, segmentAccess="broker")),
            "source": lambda: noop(self._source(sealed)),
            "range": lambda: noop(self._source(sealed, **bounds)),
            "history range": lambda: noop(history(spark, TOPIC, start, end, url=sealed)),
            "two columns": lambda: noop(history(spark, TOPIC, columns=two, url=sealed)),
        }

    def sink(self) -> dict[str, Variant]:
        rows, payloads, messages = self._rows_read, self._payloads, self._messages
        return {
            "rows": lambda: noop(rows),
            "rows into topic": lambda: self._write(rows),
            "rows measured": lambda: self._measured(self._write, rows),
            "payloads": lambda: noop(payloads),
            "topic": lambda: self._write(payloads),
            "payloads measured": lambda: self._measured(self._write, payloads),
            "messages": lambda: noop(messages),
            "messages into topic": lambda: self._write(messages),
            "messages measured": lambda: self._measured(self._write, messages),
        }

    def diagnosis(self) -> dict[str, Variant]:
        """What tells where the time of writes into a topic goes."""
        rows, payloads, messages = self._rows_read, self._payloads, self._messages

        def write_bare() -> None:
            payloads.write.format("bare").option("port", self._bare_port).mode("append").save()

        def discard(frame: Any) -> None:
            frame.write.format("bare").mode("append").save()

        def write_sealing() -> float:
            started = time.perf_counter()
            self._write(payloads, self._sealed)
            spent = time.perf_counter() - started
            # What the broker has left to do is not to slow the next variant.
            topics = Topics(self._sealed)
            topics.wait_sealed(TARGET)
            topics.close()
            return spent

        return {
            "topic, sealing": write_sealing,
            "bare": write_bare,
            "discarded": lambda: discard(payloads),
            "rows discarded": lambda: discard(rows),
            "rows discarded, measured": lambda: self._measured(discard, rows),
            "messages discarded": lambda: discard(messages),
            "messages discarded, measured": lambda: self._measured(discard, messages),
        }

    def _write(self, frame: Any, url: str | None = None) -> None:
        options = {"url": url or self._fresh, "topic": TARGET}
        frame.write.format("danube").options(**options).mode("append").save()

    def _measured(self, work: Callable[[Any], None], frame: Any) -> None:
        """Do something in a session as it is without the promise."""
        promised = self._spark.conf.get(BYTES_PER_BATCH)
        self._spark.conf.set(BYTES_PER_BATCH, str(BATCH_BYTES_MAX))
        work(frame)
        self._spark.conf.set(BYTES_PER_BATCH, promised)

    def streams(self) -> dict[str, Variant]:
        def danube() -> float:
            options = {"url": self._sealed, "topic": f"{TOPIC}-live", "pollMs": "20"}
            return self._trigger_seconds(
                self._spark.readStream.format("danube").options(**options).load()
            )

        def rate() -> float:
            options = {"rowsPerBatch": 100}
            return self._trigger_seconds(
                self._spark.readStream.format("rate-micro-batch").options(**options).load()
            )

        return {"danube stream": danube, "rate stream": rate}

    def _source(self, url: str, **options: str) -> Any:
        return self._spark.read.format("danube").options(url=url, topic=TOPIC, **options).load()

    def _trigger_seconds(self, frame: Any) -> float:
        """Run a query while a hundred messages are published every now and then."""
        topics = Topics(self._sealed)
        checkpoint = tempfile.mkdtemp()
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        deadline = time.monotonic() + 120
        while len([each for each in query.recentProgress if each["numInputRows"]]) < STREAM_BATCHES:
            assert time.monotonic() < deadline, query.recentProgress
            topics.publish(f"{TOPIC}-live", range(100))
            time.sleep(0.02)
        query.stop()
        topics.close()
        busy = [each for each in query.recentProgress if each["numInputRows"]][2:]
        return statistics.median(each["durationMs"]["triggerExecution"] for each in busy) / 1000


def divide(spark: Any, cores: Cores) -> None:
    """Give Spark and the brokers, which run in this process, their cores."""
    keep_on(cores.broker, os.getpid())  # Java, too, which this process has started; so it is next.
    java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    keep_on(cores.others, java)


def report(found: dict[str, float]) -> None:
    """Print what was measured."""
    lines = (
        ("`history()` to native Parquet", "native", "history", "≥ 0.9"),
        ("tail over Flight to native Parquet", "native", "tail", "≥ 0.5"),
        ("segments through the source to native", "native", "source", ""),
        ("1 % of the offsets, time to the full scan", "range", "source", "≤ 0.35"),
        ("the same with `history()`", "history range", "history", "≤ 0.35"),
        ("whole rows with `history()`, time to two columns", "history", "two columns", "≥ 3"),
        (
            "all columns of a topic into a topic, to the same plan into noop",
            "rows",
            "rows into topic",
            "≥ 0.4",
        ),
        ("all columns, measured by Spark", "rows", "rows measured", "≥ 0.4"),
        ("all columns discarded in Spark's workers", "rows", "rows discarded", ""),
        ("all columns discarded, measured by Spark", "rows", "rows discarded, measured", ""),
        ("payloads into a topic, to the same plan into noop", "payloads", "topic", "≥ 0.4"),
        ("payloads, measured by Spark", "payloads", "payloads measured", "≥ 0.4"),
        ("the same while the broker makes segments of it", "payloads", "topic, sealing", ""),
        ("payloads into the bare process", "payloads", "bare", ""),
        ("payloads discarded in Spark's workers", "payloads", "discarded", ""),
        (
            "messages with a key and two attributes each, to the same plan into noop",
            "messages",
            "messages into topic",
            "≥ 0.4",
        ),
        ("messages, measured by Spark", "messages", "messages measured", "≥ 0.4"),
        ("messages discarded in Spark's workers", "messages", "messages discarded", ""),
        ("messages discarded, measured by Spark", "messages", "messages discarded, measured", ""),
        ("trigger time of danube to rate-micro-batch", "danube stream", "rate stream", "≤ 1.5"),
    )
    print("\n| Figure | Target | Ratio | Seconds |\n|---|---|---|---|")
    for title, above, below, target in lines:
        if above in found and below in found:
            ratio = found[above] / found[below]
            detail = f"{found[above]:.2f} / {found[below]:.2f}"
            print(f"| {title} | {target} | {ratio:.2f} | {detail} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", choices=("scans", "sink", "streams"))
    parser.add_argument("--diagnose", action="store_true")
    parser.add_argument("--cores", choices=CHOICES, default="shared")
    wanted = parser.parse_args()
    # Who stops a run does not mean to keep what the brokers have stored.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with (
        Broker(settings=SEALING) as sealed,
        Broker(settings=NEVER_SEALING) as fresh,
        bare_process() as bare_port,
    ):
        batches = payload_batches()
        for broker in (sealed, fresh):
            fill(broker.url, TOPIC, batches, wanted.rows)
        fill(sealed.url, KEYED, [keyed(batch) for batch in batches], wanted.rows)
        topics = Topics(sealed.url)
        topics.publish(f"{TOPIC}-live", range(100))
        topics.close()
        files = segment_files(sealed.url, TOPIC)
        keyed_files = segment_files(sealed.url, KEYED)
        size = sum(Path(file.removeprefix("file://")).stat().st_size for file in files)
        quiet = {
            "spark.ui.enabled": False,
            "spark.log.level": "ERROR",
            "spark.ui.showConsoleProgress": False,
        }
        spark = session("bench", "local[2,4]", row_bytes_max=ROW_BYTES_MAX, **quiet)
        spark.dataSource.register(BareSource)
        print(
            f"{describe_machine()}; {wanted.rows} messages of {PAYLOAD_BYTES} bytes, "
            f"{len(files)} segments of {size / 1e6:.0f} MB together, median of {wanted.rounds}, "
            f"cores {wanted.cores}",
            flush=True,
        )
        divide(spark, Cores.chosen(wanted.cores))
        bench = Bench(spark, sealed.url, fresh.url, files, keyed_files, bare_port, wanted.rows)
        parts = {"scans": bench.scans, "sink": bench.sink, "streams": bench.streams}
        variants: dict[str, Variant] = {}
        for name, part in parts.items():
            if wanted.only in (None, name):
                variants |= part()
        if wanted.diagnose:
            variants |= bench.diagnosis()
        report(measure(variants, wanted.rounds))
        spark.stop()


if __name__ == "__main__":
    main()
