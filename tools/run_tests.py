"""Runs the test suite in stages, tells how far they are, and prints a total.

    python tools/run_tests.py                 everything
    python tools/run_tests.py -k journal      everything whose name matches
    python tools/run_tests.py tests/unit/wire those tests alone, in one stage

Stages that compute and stages that wait run side by side, in lanes. At the end the ten slowest
tests are named. With CI=true a test may be skipped only for a reason listed in ALLOWED_SKIPS.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.stages import Result, Stage, run_lanes  # noqa: E402  (found through the line above)

ALONE = ("integration", "simulation", "e2e")
NO_TESTS = ("chaos", "support", "__pycache__")
PROTOCOL = "tests/integration/protocol"
"""Hundreds of small brokers that mostly wait: they run many at a time."""
SPARK = "tests/integration/spark"
"""One Java for each worker, and Spark uses every core by itself."""
OPTIONS = {
    # Tests of one file share servers; files differ in ports and directories.
    "integration": (f"--ignore={PROTOCOL}", f"--ignore={SPARK}", "-n", "2", "--dist", "loadfile"),
    # Worlds with a clock of their own do not notice their neighbours.
    "simulation": ("-n", "2"),
    "e2e": ("-n", "2", "--dist", "loadfile"),
}

ALLOWED_SKIPS: tuple[str, ...] = (
    "h2spec cannot be built",
    "azurite is not installed",
    "etcd is not installed",
    "mounting a small file system needs root",
    "network namespaces need root",
    "nghttp2's tools are not installed",
    "openssl is not installed",
    "PostgreSQL is not installed",
)
"""Beginnings of reasons for which a test may be skipped in CI."""

NOTHING_COLLECTED = 5
SLOWEST = 10


def main(arguments: list[str]) -> int:
    """Run what the arguments ask for; return the exit code."""
    results = run_lanes(plan(arguments), show)
    total = Result(
        passed=sum(result.passed for result in results),
        failed=sum(result.failed for result in results),
        skipped=sum(result.skipped for result in results),
    )
    for line in slowest(results):
        print(line)
    unlisted = unlisted_skips(results) if os.environ.get("CI") == "true" else []
    for reason in unlisted:
        print(f"skipped in CI without a listed reason: {reason}")
    print(f"total: {total.line}")
    broken = any(result.exit_code not in (0, NOTHING_COLLECTED) for result in results)
    nothing = total.passed + total.failed + total.skipped == 0
    return 1 if broken or total.failed or unlisted or nothing else 0


def plan(arguments: list[str]) -> list[list[Stage]]:
    """Return lanes of stages: what computes, and what mostly waits.

    Spark fills the disk's queue, so that syncs of brokers take seconds beside it: it comes last,
    when those have ended that watch leases.
    """
    paths = [argument for argument in arguments if (ROOT / argument.partition("::")[0]).exists()]
    if paths:
        return [[Stage("chosen", tuple(arguments))]]
    folders = sorted(path.name for path in (ROOT / "tests").iterdir() if path.is_dir())
    quick = [f"tests/{name}" for name in folders if name not in (*ALONE, *NO_TESTS)]
    whole = {
        name: Stage(name, (f"tests/{name}", *OPTIONS[name], *arguments))
        for name in ALONE
        if name in folders
    }
    return [
        [
            Stage("quick", (*quick, "-n", "2", *arguments)),
            whole["simulation"],
            Stage("spark", (SPARK, *arguments)),
        ],
        [
            Stage("protocol", (PROTOCOL, "-n", "4", *arguments)),
            whole["integration"],
            whole["e2e"],
        ],
    ]


def show(stage: Stage, result: Result) -> None:
    """Tell what became of a stage; of one that failed, all that pytest wrote."""
    if result.exit_code not in (0, NOTHING_COLLECTED):
        print(result.output)
    print(f"{stage.name}: {result.line} in {result.seconds:.1f} s", flush=True)


def slowest(results: list[Result]) -> list[str]:
    """Return a line for each of the slowest tests of a whole run."""
    if len(results) < 2:
        return []
    durations = sorted((each for result in results for each in result.durations), reverse=True)
    return [f"slow: {seconds:6.1f} s  {name}" for seconds, name in durations[:SLOWEST]]


def unlisted_skips(results: list[Result]) -> list[str]:
    """Return the skips that CI does not accept."""
    return [
        text
        for result in results
        for text in result.skip_reasons
        if not text.partition(": ")[2].startswith(ALLOWED_SKIPS)
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
