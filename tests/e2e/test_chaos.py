"""Chaos, shortly: the same seed each time, real brokers, both clients, and no law is broken.

Longer runs are made by hand; `docs/reliability.md` tells of the last one.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.run import FOUND
from tests.e2e.test_wheel import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

RUN_SECONDS_MAX = 420.0
WITHOUT_SYNC = f"{sys.executable} -m tests.support.volatile_broker --without-sync"


def chaos(directory: Path, *arguments: str) -> tuple[int, str]:
    """Run it in a process of its own; return how it ended, and what it printed.

    It says what a machine without root, or without a C compiler, leaves out.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--directory", str(directory), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_short_run_keeps_every_law(tmp_path: Path) -> None:
    code, printed = chaos(
        tmp_path / "run",
        *("--minutes", "1.2", "--seed", "ci", "--storage", "object_store", "--topics", "2"),
        *("--faults", "kill,pause,partition,restart,EIO,ENOSPC,slow sync,stuck sync"),
    )
    assert code == 0, printed
    assert "| lost | 0 |" in printed
    assert "| unseen | 0 |" in printed
    assert not (tmp_path / "run").exists(), "a good run leaves nothing behind"


@pytest.mark.parametrize(
    ("law", "brokers", "faults", "deeds"),
    [
        ("lost|two values", ("--command", WITHOUT_SYNC), "kill", ""),
        ("stuck", ("--plant", "a_stuck_journal_keeps_the_lease"), "EIO", ""),
    ],
)
def test_a_run_finds_a_planted_bug(
    tmp_path: Path, law: str, brokers: tuple[str, str], faults: str, deeds: str
) -> None:
    code, printed = chaos(
        tmp_path / "run",
        *("--minutes", "0.35", "--seed", "bug", "--storage", "local", "--topics", "2", *brokers),
        *("--faults", faults, "--deeds", deeds, "--drain-max", "15"),
    )
    assert code == FOUND, printed
    assert re.search(rf"\*\*({law})\*\*", printed), printed
    assert str(tmp_path / "run") in printed, "the logs of a run that found something are kept"
    assert (tmp_path / "run" / "local" / "conductor.history").exists()
