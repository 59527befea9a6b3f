"""The tests that the guide shows are tests that pass."""

import subprocess
import sys
from pathlib import Path

from tools import tidy

GUIDE = tidy.REPOSITORY / "docs" / "guides" / "testing.md"


def test_the_tests_in_the_guide_pass_in_a_project_that_only_installed_us(tmp_path: Path) -> None:
    shown = [
        match["body"]
        for match in tidy.FENCE.finditer(GUIDE.read_text(encoding="utf-8"))
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
