"""The Go client beside this file, built where there is a Go toolchain."""

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent
BUILD_SECONDS_MAX = 300


def build(folder: Path) -> Path | None:
    """Return the program; None, with a line that says so, where it cannot be built."""
    if shutil.which("go") is None:
        print("The Go client is not run: Go is not installed.\n")
        return None
    program = folder / "go_client"
    done = subprocess.run(
        ["go", "build", "-o", str(program), "."],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        print(f"The Go client is not run: {done.stderr.strip().splitlines()[-1]}\n")
        return None
    return program
