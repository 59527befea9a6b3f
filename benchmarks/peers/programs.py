"""Where the servers of peers are found: in the cache of this benchmark, or on the machine."""

import os
import shutil
from pathlib import Path

CACHE = Path(os.environ.get("DANUBE_BENCH_CACHE", "~/.cache/pydanube-bench")).expanduser()
"""`bin/` holds programs, `kafka/` the server's jars; see `benchmarks.peers.install`."""


def find_program(name: str) -> str | None:
    places = [str(CACHE / "bin"), os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]
    return shutil.which(name, path=os.pathsep.join(places))


def absence_of(system: str, program: str, hint: str) -> str | None:
    if find_program(program) is not None:
        return None
    return f"{system}: not measured, {program} is not installed ({hint})"
