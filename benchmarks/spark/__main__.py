"""Prints ratios of the data source to Spark's native ways, on one topic of 1 KiB messages.

python -m benchmarks.spark [--rows N] [--rounds N] [--only scans|sink|streams]

Variants take turns within a round, so that what else the machine does hits all of them; the median
of the rounds counts. Everything goes into Spark's noop sink unless said otherwise.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.machine import describe_machine
from pydanube.spark import history, session
from pydanube.testing.broker import Broker
from tests.support.spark_topics import Topics

PAYLOAD_BYTES = 1024
TOPIC = "/default/bench"
Variants = dict[str, Callable[[], Any]]


def fill(url: str, rows: int) -> None:
    """Publish messages that compress about as well as JSON does."""
    words = [bytes(random.choices(b"abcdefghij0123456789", k=32)) for _ in range(4_000)]
    client = flight.connect(url.replace("http://", "grpc://"))
    writer, results = client.do_put(
        flight.FlightDescriptor.for_path(TOPIC), pa.schema([("payload", pa.binary())])
    )
    for first in range(0, rows, 1_000):
        count = min(1_000, rows - first)
        payloads = [b"".join(random.choices(words, k=PAYLOAD_BYTES // 32)) for _ in range(count)]
        writer.write_batch(pa.record_batch({"payload": pa.array(payloads, pa.binary())}))
        results.read()
    writer.close()


def measure(variants: Variants, rounds: int) -> dict[str, float]:
    """Return the median seconds of each variant."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        # In another order every time: what one leaves behind, such as garbage, hits all of them.
        for name in random.sample(list(variants), len(variants)):
            started = time.perf_counter()
            variants[name]()
            if number:  # The first round warms Java and the workers.
                seconds[name].append(time.perf_counter() - started)
    for name, each in seconds.items():
        print(f"{name}: {', '.join(f'{value:.2f}' for value in each)}", file=sys.stderr)
    return {name: statistics.median(each) for name, each in seconds.items()}


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def report(title: str, ratio: float, target: str, detail: str) -> None:
    print(f"| {title} | {ratio:.2f} | {target} | {detail} |", flush=True)


def scans(spark: Any, url: str, files: list[str], tail_url: str, rows: int, rounds: int) -> None:
    start, end = rows // 2, rows // 2 + rows // 100
    bounds = {
        "startingOffsets": f'{{"{TOPIC}": {start}}}',
        "endingOffsets": f'{{"{TOPIC}": {end}}}',
    }

    def source(place: str, **options: str) -> Any:
        return spark.read.format("danube").options(url=place, topic=TOPIC, **options).load()

    found = measure(
        {
            "native": lambda: noop(spark.read.parquet(*files)),
            "history": lambda: noop(history(spark, TOPIC, url=url)),
            "tail": lambda: noop(source(tail_url, segmentAccess="broker")),
            "source": lambda: noop(source(url)),
            "range": lambda: noop(source(url, **bounds)),
            "history range": lambda: noop(history(spark, TOPIC, start, end, url=url)),
            "two columns": lambda: noop(
                history(spark, TOPIC, columns=["offset", "publish_time"], url=url)
            ),
        },
        rounds,
    )
    native = found["native"]
    detail = f"{native:.2f} s native"
    report("`history()` to native Parquet", native / found["history"], "≥ 0.9", detail)
    report("tail over Flight to native Parquet", native / found["tail"], "≥ 0.5", detail)
    report("segments through the source to native", native / found["source"], "none", detail)
    whole = f"{found['source']:.2f} s whole"
    report(
        "1 % of the offsets, time to the full scan",
        found["range"] / found["source"],
        "≤ 0.35",
        whole,
    )
    whole = f"{found['history']:.2f} s whole"
    report("the same with `history()`", found["history range"] / found["history"], "≤ 0.35", whole)
    report("whole rows, time to two columns", found["history"] / found["two columns"], "≥ 3", whole)


def sink(spark: Any, url: str, files: list[str], rounds: int) -> None:
    frame = spark.read.parquet(*files).select("payload")

    def write() -> None:
        options = {"url": url, "topic": "/default/bench-out"}
        frame.write.format("danube").options(**options).mode("append").save()

    found = measure({"noop": lambda: noop(frame), "topic": write}, rounds)
    detail = f"{found['noop']:.2f} s into noop"
    report("native Parquet into a topic, to noop", found["noop"] / found["topic"], "≥ 0.4", detail)


def streams(spark: Any, url: str) -> None:
    def trigger_ms(frame: Any, batches: int = 12) -> float:
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", tempfile.mkdtemp())
            .start()
        )
        deadline = time.monotonic() + 60
        while len([each for each in query.recentProgress if each["numInputRows"]]) < batches:
            assert time.monotonic() < deadline, query.recentProgress
            topics.publish(TOPIC, range(100))
            time.sleep(0.02)
        busy = [each for each in query.recentProgress if each["numInputRows"]][2:]
        query.stop()
        return statistics.median(each["durationMs"]["triggerExecution"] for each in busy)

    topics = Topics(url)
    ours = spark.readStream.format("danube").options(url=url, topic=TOPIC, pollMs=20).load()
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    both = [(trigger_ms(ours), trigger_ms(rate)) for _ in range(2)]
    danube, native = (statistics.median(each) for each in zip(*both, strict=True))
    detail = f"{danube:.0f} ms to {native:.0f} ms"
    report("trigger time of danube to rate-micro-batch", danube / native, "≤ 1.5", detail)
    topics.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("scans", "sink", "streams"))
    wanted = parser.parse_args()
    sealing = {"storage.segments.seal_bytes": 16 << 20, "storage.segments.seal_seconds": 1}
    with Broker(settings=sealing) as sealed, Broker() as fresh:
        fill(sealed.url, wanted.rows)
        fill(fresh.url, wanted.rows)
        topics = Topics(sealed.url)
        topics.wait_sealed(TOPIC)
        keys = {key for _, _, key in topics.segments(TOPIC) if key}
        root = Path(topics.store(TOPIC).removeprefix("file://"))
        topics.close()
        files = [f"file://{root / key}" for key in sorted(keys)]
        quiet = {"spark.ui.enabled": False, "spark.log.level": "ERROR"}
        spark = session("bench", "local[2,4]", **quiet)
        print(
            f"{describe_machine()}; {wanted.rows} messages of {PAYLOAD_BYTES} bytes, "
            f"{len(files)} segments, median of {wanted.rounds}"
        )
        print("\n| Figure | Ratio | Target | |\n|---|---|---|---|")
        if wanted.only in (None, "scans"):
            scans(spark, sealed.url, files, fresh.url, wanted.rows, wanted.rounds)
        if wanted.only in (None, "sink"):
            sink(spark, fresh.url, files, wanted.rounds)
        if wanted.only in (None, "streams"):
            streams(spark, fresh.url)
        spark.stop()


if __name__ == "__main__":
    main()
