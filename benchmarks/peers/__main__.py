"""Runs one job on PyDanube and its peers, interleaved in rounds, and prints a table.

    python -m benchmarks.peers --rounds 3 --seconds 3 --systems danube,redis-always

Servers that are not installed are left out, with a line that says so.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pydanube.bench.danube import DanubeSystem
from pydanube.bench.driver import System
from pydanube.bench.jobs import JOBS
from pydanube.bench.progress import shown
from pydanube.bench.report import load, save, show
from pydanube.bench.results import merged
from pydanube.bench.rounds import Plan, run_rounds


def _redis(kind: str) -> System:
    from benchmarks.peers.redis_streams import RedisSystem

    return RedisSystem(kind)


def _nats(kind: str) -> System:
    from benchmarks.peers.nats_jetstream import NatsSystem

    return NatsSystem(kind)


def _rabbit(kind: str) -> System:
    from benchmarks.peers.rabbitmq import RabbitSystem

    return RabbitSystem(kind)


def _kafka(kind: str) -> System:
    from benchmarks.peers.kafka import KafkaSystem

    return KafkaSystem(kind)


SYSTEMS: dict[str, Callable[[], System]] = {
    "danube": DanubeSystem,
    "redis-always": lambda: _redis("always"),
    "redis-everysec": lambda: _redis("everysec"),
    "nats-file": lambda: _nats("file"),
    "nats-sync-always": lambda: _nats("sync-always"),
    "rabbitmq": lambda: _rabbit("quorum"),
    "rabbitmq-classic": lambda: _rabbit("classic"),
    "kafka": lambda: _kafka("default"),
    "kafka-flush": lambda: _kafka("flush"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ",".join(SYSTEMS)
    parser.add_argument("--systems", default=names, help=f"separated by commas; all: {names}")
    parser.add_argument("--jobs", default=",".join(job.name for job in JOBS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of publishing, per job")
    parser.add_argument("--data-dir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--output", choices=["text", "markdown", "json"], default="text")
    parser.add_argument("--json", type=Path, help="write the report there as well")
    parser.add_argument(
        "--merge", type=Path, nargs="+", help="show several reports as one, without measuring"
    )
    parser.add_argument("--plot", type=Path, help="draw the rates into this file, svg or png")
    chosen = parser.parse_args()
    unknown = set(chosen.systems.split(",")) - SYSTEMS.keys()
    if unknown:
        parser.error(f"no such system: {', '.join(sorted(unknown))}; there are {names}")
    systems = [SYSTEMS[name]() for name in chosen.systems.split(",")]
    plan = Plan(
        rounds=chosen.rounds,
        seconds=chosen.seconds,
        jobs=tuple(chosen.jobs.split(",")),
        directory=chosen.data_dir,
    )
    if chosen.merge:
        report = merged([load(path) for path in chosen.merge])
    else:
        with shown(plan.steps(systems)) as step:
            report = run_rounds(plan, systems, step, lambda line: print(line, file=sys.stderr))
    if chosen.json is not None:
        save(report, chosen.json)
    if chosen.plot is not None:
        from pydanube.bench.plot import draw

        draw(report, chosen.plot)
    show(report, chosen.output)


if __name__ == "__main__":
    main()
