"""Runs the test suite in stages, prints one line for each, and a total.

    python tools/run_tests.py                 everything
    python tools/run_tests.py -k journal      everything whose name matches
    python tools/run_tests.py tests/unit/wire those tests alone, in one stage

Quick tests share two processes; those that measure time, use ports or start processes run alone.
With CI=true a test may be skipped only for a reason listed in ALLOWED_SKIPS.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent

ALONE = ("integration", "simulation", "e2e")
NO_TESTS = ("chaos", "support", "__pycache__")
PROTOCOL = "tests/integration/protocol"
"""Hundreds of small brokers that mostly wait: they run many at a time."""
SPARK = "tests/integration/spark"
"""One Java for all of them, and Spark uses every core by itself."""
OPTIONS = {
    "integration": (f"--ignore={PROTOCOL}", f"--ignore={SPARK}"),
    # Worlds with a clock of their own do not notice their neighbours.
    "simulation": ("-n", "2"),
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


@dataclass
class Result:
    """What became of one stage."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    skip_reasons: list[str] = field(default_factory=list)
    seconds: float = 0.0
    exit_code: int = 0

    @property
    def line(self) -> str:
        """The counts, as every stage and the total show them."""
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def main(arguments: list[str]) -> int:
    """Run what the arguments ask for; return the exit code."""
    results = [run_stage(name, options) for name, options in plan(arguments)]
    total = Result(
        passed=sum(result.passed for result in results),
        failed=sum(result.failed for result in results),
        skipped=sum(result.skipped for result in results),
    )
    unlisted = unlisted_skips(results) if os.environ.get("CI") == "true" else []
    for reason in unlisted:
        print(f"skipped in CI without a listed reason: {reason}")
    print(f"total: {total.line}")
    broken = any(result.exit_code not in (0, NOTHING_COLLECTED) for result in results)
    nothing = total.passed + total.failed + total.skipped == 0
    return 1 if broken or total.failed or unlisted or nothing else 0


def plan(arguments: list[str]) -> list[tuple[str, list[str]]]:
    """Return stages as (name, arguments for pytest)."""
    paths = [argument for argument in arguments if (ROOT / argument.partition("::")[0]).exists()]
    if paths:
        return [("chosen", arguments)]
    folders = sorted(path.name for path in (ROOT / "tests").iterdir() if path.is_dir())
    quick = [f"tests/{name}" for name in folders if name not in (*ALONE, *NO_TESTS)]
    alone = [(name, [f"tests/{name}", *OPTIONS.get(name, ()), *arguments]) for name in ALONE]
    return [
        ("quick", [*quick, "-n", "2", *arguments]),
        ("protocol", [PROTOCOL, "-n", "4", *arguments]),
        *((name, options) for name, options in alone if name in folders),
        ("spark", [SPARK, *arguments]),
    ]


def run_stage(name: str, options: list[str]) -> Result:
    """Run pytest once, and print its outcome in one line."""
    print(f"== {name}: pytest {' '.join(options)}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *options]
        exit_code = subprocess.run(command, cwd=ROOT, check=False).returncode
        result = read_report(report) if report.exists() else Result()
    result.exit_code = exit_code
    result.seconds = time.monotonic() - started
    print(f"{name}: {result.line} in {result.seconds:.1f} s", flush=True)
    return result


def read_report(path: Path) -> Result:
    """Count the cases of a JUnit report, and gather why some were skipped."""
    result = Result()
    for case in ElementTree.parse(path).iter("testcase"):
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            result.failed += 1
        elif skip is not None:
            result.skipped += 1
            result.skip_reasons.append(f"{case.get('name')}: {skip.get('message')}")
        else:
            result.passed += 1
    return result


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
