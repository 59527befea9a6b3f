"""The tests that the guides show are tests that pass."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools import tidy

GUIDES = tidy.REPOSITORY / "docs" / "guides"


@pytest.mark.parametrize("page", ["testing.md", "handlers.md"])
def test_the_tests_in_a_guide_pass_in_a_project_that_only_installed_us(
    tmp_path: Path, page: str
) -> None:
    shown = [
        match["body"]
        for match in tidy.FENCE.finditer((GUIDES / page).read_text(encoding="utf-8"))
        if match["info"].split() == ["python", "pytest"]
    ]
    assert len(shown) == 1
    (tmp_path / "test_shown.py").write_text(shown[0], encoding="utf-8")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nfilterwarnings = error\n", encoding="utf-8"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "1 passed" in done.stdout, f"{done.stdout}{done.stderr}"
