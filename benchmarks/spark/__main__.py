"""Prints ratios of the data source to Spark's native ways, on topics of 1 KiB messages.

python -m benchmarks.spark [--rows N] [--sessions N] [--rounds N] [--only scans|sink|streams]
    [--diagnose] [--cores shared|divided]

All variants take turns within a round, in another order every time, so that what else the machine
does, and what one leaves behind, hits all of them. How fast a plan is also depends on what Java has
made of it in that session: several sessions, each with a Java of its own, follow each other, and
the median of all their rounds counts. Everything goes into Spark's noop sink unless said otherwise.
One broker seals its topics at once, the other, a new one for each session, keeps them as a tail.
What is written into a topic are payloads alone, of which the target is asked, and two wide frames:
all columns of a topic, and messages of a topic of their own that have a key and two attributes
each.

The session is promised that rows have no more than 4 KiB (`row_bytes_max`), so that Spark need not
measure them on their way to Python; the same without that promise takes its turns, too.

Shared, brokers and Spark run on all cores: what a broker does, Spark cannot. Divided, Spark with
its Python workers has one core and the brokers, which stand for other machines, another one. With
--diagnose the same payloads also go into a bare process that only receives, writes and syncs: what
a topic takes beyond that is its own. And rows are thrown away in Spark's Python workers: that much
is Spark's. A run takes 40 GB of disk while it lasts.
"""

import argparse
import multiprocessing
import os
import signal
import statistics
import sys
from pathlib import Path

from benchmarks.cores import CHOICES
from benchmarks.machine import describe_machine
from benchmarks.spark.bare import bare_process
from benchmarks.spark.one_session import Seconds, Wanted, run_session
from benchmarks.spark.topics import (
    KEYED,
    PAYLOAD_BYTES,
    TOPIC,
    fill,
    keyed,
    payload_batches,
    segment_files,
)
from benchmarks.spark.variants import Places
from pydanube.testing.broker import Broker
from tests.support.spark_topics import Topics

SESSIONS, ROUNDS = 3, 5
"""The same plan may be faster by a fifth in one session than in another: see `history()`."""
SEALING = {"storage.segments.seal_bytes": 16 << 20, "storage.segments.seal_seconds": 1}
NEVER_SEALING = {
    "storage.segments.seal_bytes": 1 << 40,
    "storage.segments.seal_seconds": 86_400,
    "storage.local_retention.size_mb": 1 << 20,
}


def report(sessions: list[Seconds]) -> None:
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
            "aim 0.4",
        ),
        ("all columns, measured by Spark", "rows", "rows measured", "aim 0.4"),
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
            "aim 0.4",
        ),
        ("messages, measured by Spark", "messages", "messages measured", "aim 0.4"),
        ("messages discarded in Spark's workers", "messages", "messages discarded", ""),
        ("messages discarded, measured by Spark", "messages", "messages discarded, measured", ""),
        ("trigger time of danube to rate-micro-batch", "danube stream", "rate stream", "≤ 1.5"),
    )
    print("\n| Figure | Target | Ratio | in each session | Seconds |\n|---|---|---|---|---|")
    for title, above, below, target in lines:
        if above not in sessions[0] or below not in sessions[0]:
            continue
        whole, part = pooled(sessions, above), pooled(sessions, below)
        each = ", ".join(f"{pooled([one], above) / pooled([one], below):.2f}" for one in sessions)
        print(f"| {title} | {target} | {whole / part:.2f} | {each} | {whole:.2f} / {part:.2f} |")


def pooled(sessions: list[Seconds], name: str) -> float:
    """Return the median of a variant's rounds in all sessions."""
    return statistics.median(value for one in sessions for value in one[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", choices=("scans", "sink", "streams"))
    parser.add_argument("--diagnose", action="store_true")
    parser.add_argument("--cores", choices=CHOICES, default="shared")
    given = parser.parse_args()
    # Who stops a run does not mean to keep what the brokers have stored.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    batches = payload_batches()
    with Broker(settings=SEALING) as sealed, bare_process() as bare_port:
        fill(sealed.url, TOPIC, batches, given.rows)
        fill(sealed.url, KEYED, [keyed(batch) for batch in batches], given.rows)
        topics = Topics(sealed.url)
        topics.publish(f"{TOPIC}-live", range(100))
        topics.close()
        files = segment_files(sealed.url, TOPIC)
        keyed_files = segment_files(sealed.url, KEYED)
        size = sum(Path(file.removeprefix("file://")).stat().st_size for file in files)
        print(
            f"{describe_machine()}; {given.rows} messages of {PAYLOAD_BYTES} bytes, "
            f"{len(files)} segments of {size / 1e6:.0f} MB together, median of {given.sessions} "
            f"sessions of {given.rounds} rounds, cores {given.cores}",
            flush=True,
        )
        sessions: list[Seconds] = []
        # A process of its own has a Java of its own.
        processes = multiprocessing.get_context("spawn")
        for _ in range(given.sessions):
            with Broker(settings=NEVER_SEALING) as fresh, processes.Pool(1) as pool:
                fill(fresh.url, TOPIC, batches, given.rows)
                places = Places(sealed.url, fresh.url, files, keyed_files, bare_port, given.rows)
                wanted = Wanted(
                    given.only, given.diagnose, given.cores, given.rounds, places, os.getpid()
                )
                sessions.append(pool.apply(run_session, (wanted,)))
        report(sessions)


if __name__ == "__main__":
    main()
