"""Microsoft's emulator of Azure Blob, installed once into the repository's cache by npm."""

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

VERSION = "3.37.0"
_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "azurite"
_INSTALL_SECONDS_MAX = 180


def azurite_program() -> str:
    """Return how to start it; skip the test where it can neither be found nor installed."""
    found = shutil.which("azurite-blob")
    if found is not None:
        return found
    program = _CACHE / VERSION / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        _install(program.parents[2])
    return str(program)


def _install(directory: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("azurite is not installed, nor is npm, which would install it")
    _CACHE.mkdir(parents=True, exist_ok=True)
    # Tests run in several processes, and one of them shall install it.
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.exists():
            return
        unfinished = directory.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        command = [npm, "install", "--no-audit", "--no-fund", "--silent", f"azurite@{VERSION}"]
        try:
            subprocess.run(
                command,
                cwd=unfinished,
                check=True,
                capture_output=True,
                timeout=_INSTALL_SECONDS_MAX,
            )
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"azurite is not installed, and npm could not install it: {error}")
        unfinished.rename(directory)
