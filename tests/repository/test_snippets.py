"""Every Python snippet of the pages that is marked to be run, runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools import tidy

SNIPPETS = list(tidy.snippets(tidy.REPOSITORY))


def test_the_pages_hold_snippets() -> None:
    assert SNIPPETS


@pytest.mark.parametrize(
    ("place", "code"), SNIPPETS, ids=[place.replace("/", ".") for place, _ in SNIPPETS]
)
def test_a_snippet_runs(place: str, code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{place}\n{done.stdout}{done.stderr}"
