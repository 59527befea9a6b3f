"""Lives through simulated clusters, seed by seed, and says what broke.

python -m tests.support.cluster_seeds --first 10000 --count 500 [--minutes 8] [--log seeds.txt]

Each seed gets a line in the log at once, so that nothing is lost when the run is ended. The report
of a seed that broke a law is printed whole, with the command that lives through it again. The exit
status is 1 if there was one.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.support.cluster_world import ClusterWorld
from tests.support.world import Outcome


def main(words: Sequence[str] | None = None) -> int:
    """Run the seeds that were asked for; return the exit status."""
    given = _arguments(words)
    deadline = time.monotonic() + given.minutes * 60
    totals: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(given.first, given.first + given.count):
        if time.monotonic() >= deadline:
            break
        world = ClusterWorld(seed)
        outcome = world.run()
        totals.update(
            seeds=1,
            brokers=world.plan.brokers,
            operations=outcome.operations,
            starts=outcome.boots,
            failed=bool(outcome.violations),
        )
        faults.update(outcome.faults)
        if given.log is not None:
            with given.log.open("a", encoding="utf-8") as log:
                log.write(f"{seed} {_laws(outcome)} {outcome.boots} {outcome.faults}\n")
        if outcome.violations:
            print(outcome.report(), flush=True)
    print(", ".join(f"{count} {name}" for name, count in totals.items()))
    print("injected: " + ", ".join(f"{count} {name}" for name, count in sorted(faults.items())))
    return 1 if totals["failed"] else 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--log", type=Path)
    return parser.parse_args(words)


def _laws(outcome: Outcome) -> str:
    return ",".join(sorted({each.law.replace(" ", "-") for each in outcome.violations})) or "ok"


if __name__ == "__main__":
    sys.exit(main())
