"""Runs stages of the suite side by side, and tells how far each one is."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tools.stage_progress import VARIABLE

ROOT = Path(__file__).resolve().parent.parent

PROGRESS_SECONDS = 30.0
"""How often a line tells where the stages are."""


@dataclass(frozen=True)
class Stage:
    """One run of pytest: its name, and what pytest is told."""

    name: str
    options: tuple[str, ...]


@dataclass
class Result:
    """What became of one stage."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    skip_reasons: list[str] = field(default_factory=list)
    durations: list[tuple[float, str]] = field(default_factory=list)
    seconds: float = 0.0
    exit_code: int = 0
    output: str = ""

    @property
    def line(self) -> str:
        """The counts, as every stage and the total show them."""
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


class RunningStage:
    """One pytest process, with its output and its progress in files of its own."""

    def __init__(self, stage: Stage, directory: Path, *, is_shown: bool) -> None:
        self.stage = stage
        self._report = directory / f"{stage.name}.xml"
        self._output = directory / f"{stage.name}.txt"
        self._progress = directory / f"{stage.name}.progress"
        self._is_shown = is_shown

    def run(self) -> Result:
        """Run it to its end."""
        started = time.monotonic()
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "tools.stage_progress"),
            *(f"--junitxml={self._report}", *self.stage.options),
        ]
        environment = {**os.environ, VARIABLE: str(self._progress)}
        with self._output.open("wb") as output:
            target = None if self._is_shown else output
            exit_code = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=target, stderr=target, check=False
            ).returncode
        result = read_report(self._report) if self._report.exists() else Result()
        result.exit_code = exit_code
        result.seconds = time.monotonic() - started
        result.output = self._output.read_text(encoding="utf-8", errors="replace")
        return result

    @property
    def progress(self) -> str:
        """How far it is: done of all, and failures if there are any."""
        try:
            done, total, failed = self._progress.read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            return f"{self.stage.name} collects"
        mark = f" ({failed} failed)" if failed != "0" else ""
        return f"{self.stage.name} {done} of {total}{mark}"


def run_lanes(
    lanes: Sequence[Sequence[Stage]], on_end: Callable[[Stage, Result], None]
) -> list[Result]:
    """Run every lane's stages one after another, and the lanes side by side.

    `on_end` hears of each stage when it is over, one at a time. Every 30 seconds a line tells how
    far the running ones are. A single stage writes where this process writes.
    """
    is_shown = sum(map(len, lanes)) == 1
    results: list[Result] = []
    running: dict[str, RunningStage] = {}
    turn = threading.Lock()

    def run_lane(lane: Sequence[Stage], directory: Path) -> None:
        for stage in lane:
            current = RunningStage(stage, directory, is_shown=is_shown)
            with turn:
                running[stage.name] = current
            result = current.run()
            with turn:
                del running[stage.name]
                results.append(result)
                on_end(stage, result)

    with tempfile.TemporaryDirectory() as directory:
        threads = [
            threading.Thread(target=run_lane, args=(lane, Path(directory)), daemon=True)
            for lane in lanes
        ]
        for thread in threads:
            thread.start()
        ended = _watch(threads, lambda: [] if is_shown else list(running.values()), turn)
        assert ended, "every lane runs to its end"
    return results


def _watch(
    threads: Sequence[threading.Thread],
    current: Callable[[], list[RunningStage]],
    turn: threading.Lock,
) -> bool:
    told = time.monotonic()
    while alive := [thread for thread in threads if thread.is_alive()]:
        alive[0].join(timeout=1.0)
        if time.monotonic() - told >= PROGRESS_SECONDS:
            told = time.monotonic()
            with turn:
                if stages := current():
                    print(" · ".join(stage.progress for stage in stages), flush=True)
    return True


def read_report(path: Path) -> Result:
    """Count the cases of a JUnit report; gather why some were skipped, and how long each took."""
    result = Result()
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name')}"
        result.durations.append((float(case.get("time") or 0.0), name))
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            result.failed += 1
        elif skip is not None:
            result.skipped += 1
            result.skip_reasons.append(f"{case.get('name')}: {skip.get('message')}")
        else:
            result.passed += 1
    return result
