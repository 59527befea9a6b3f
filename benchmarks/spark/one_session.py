"""One session of `benchmarks.spark`: a Spark, and with it a Java, of its own."""

import os
import random
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.cores import Cores, keep_on
from benchmarks.spark.bare import BareSource
from benchmarks.spark.variants import Bench, Places, Variant
from pydanube.spark import session
from pydanube.spark.ending import stop_session

ROW_BYTES_MAX = "4k"
WARM_UP_ROUNDS = 5
"""Java compiles most of what it runs often in the first rounds, beside the tasks."""

Seconds = Mapping[str, list[float]]
"""What each variant took in each round."""


class Wanted(NamedTuple):
    """What a session is to do, and where it finds it."""

    only: str | None
    diagnose: bool
    cores: str
    rounds: int
    places: Places
    brokers: int
    """The process that they run in."""


def measure(variants: Mapping[str, Variant], rounds: int) -> Seconds:
    """Return the seconds of each variant's rounds that count."""
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
    return seconds


def run_session(wanted: Wanted) -> Seconds:
    """Measure in a Spark of this process's own."""
    quiet = {
        "spark.ui.enabled": False,
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": False,
    }
    spark = session("bench", "local[2,4]", row_bytes_max=ROW_BYTES_MAX, **quiet)
    spark.dataSource.register(BareSource)
    divide(spark, Cores.chosen(wanted.cores), wanted.brokers)
    bench = Bench(spark, wanted.places)
    parts = {"scans": bench.scans, "sink": bench.sink, "streams": bench.streams}
    variants: dict[str, Variant] = {}
    for name, part in parts.items():
        if wanted.only in (None, name):
            variants |= part()
    if wanted.diagnose:
        variants |= bench.diagnosis()
    seconds = measure(variants, wanted.rounds)
    stop_session(spark)
    return seconds


def divide(spark: Any, cores: Cores, brokers: int) -> None:
    """Give Spark and the process that the brokers run in their cores."""
    keep_on(cores.broker, brokers)  # This process and its Java, too; so they are next.
    keep_on(cores.others, os.getpid())
