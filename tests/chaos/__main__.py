"""Runs chaos, prints a table, and ends with 1 when a law is broken.

    python -m tests.chaos --minutes 20 --seed S

The same seed draws the same schedule; `--schedule` prints it and does nothing else.
"""

import argparse
import multiprocessing
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.ground import possible_faults
from tests.chaos.run import FOUND, Limits, report_and_exit
from tests.chaos.schedule import FAULTS, TOPIC_DEEDS, Schedule, Storage, draw_schedule

MODES: tuple[Storage, ...] = ("local", "object_store")


def main() -> int:
    asked = _arguments()
    modes = MODES if asked.storage == "both" else (asked.storage,)
    seconds = asked.minutes * 60 / len(modes)
    possible = [fault for fault in possible_faults() if fault in asked.faults]
    for fault in asked.faults:
        if fault not in possible:
            print(f"this machine cannot do {fault}: it is left out")
    directory = Path(asked.directory or tempfile.mkdtemp(prefix="danube-chaos-"))
    print(f"seed {asked.seed}, {asked.minutes:g} minutes; everything is in {directory}", flush=True)
    kept = True
    for mode in modes:
        schedule = draw_schedule(
            asked.seed, seconds, mode, faults=possible, deeds=asked.deeds, topics=asked.topics
        )
        print(f"\n{schedule}\n", flush=True)
        if not asked.schedule:
            kept = _live_through(schedule, directory / mode, asked) and kept
    if kept and not asked.keep:
        shutil.rmtree(directory, ignore_errors=True)
    elif not kept:
        print(f"a law is broken; the brokers' logs and the history are in {directory}")
    return 0 if kept else FOUND


def _live_through(schedule: Schedule, directory: Path, asked: argparse.Namespace) -> bool:
    """Run each mode in a process of its own, which may move to another machine's network."""
    directory.mkdir(parents=True)
    command = asked.command.split() if asked.command else None
    if asked.plant:
        command = [sys.executable, "-m", "tests.chaos.planted", asked.plant]
    limits = Limits(asked.rate, asked.pause_max, asked.drain_max)
    process = multiprocessing.get_context("spawn").Process(
        target=report_and_exit, args=(schedule, directory, limits, command)
    )
    process.start()
    process.join()
    return process.exitcode == 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=20.0, help="under load, of all storage modes together")
    add("--seed", default="1", help="draws the schedule")
    add("--storage", choices=[*MODES, "both"], default="both")
    add("--topics", type=int, default=3)
    add("--faults", type=_kinds(FAULTS), default=FAULTS, help="of brokers, with commas between")
    add("--deeds", type=_kinds(TOPIC_DEEDS), default=TOPIC_DEEDS, help="with topics")
    add("--rate", type=float, default=20.0, help="messages a second of each topic")
    add("--pause-max", type=float, default=30.0, help="seconds that no fault explains")
    add("--drain-max", type=float, default=90.0, help="seconds until all is delivered in the end")
    add("--directory", help="where to work; it must not hold a run already")
    add("--command", help="what runs a broker, instead of danube")
    add("--plant", help="a bug of tests/support/planted_cluster_bugs.py, for all brokers")
    add("--keep", action="store_true", help="keep logs and history of a good run, too")
    add("--schedule", action="store_true", help="print the schedule alone")
    return parser.parse_args()


def _kinds(known: tuple[str, ...]):
    def kinds(text: str) -> tuple[str, ...]:
        wanted = tuple(filter(None, (each.strip() for each in text.split(","))))
        if unknown := [each for each in wanted if each not in known]:
            raise argparse.ArgumentTypeError(f"{unknown} are none of {', '.join(known)}")
        return wanted

    return kinds


if __name__ == "__main__":
    sys.exit(main())
