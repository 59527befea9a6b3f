"""Installs the Debian packages whose programs some tests talk to, where that can be done.

    python tools/install_peers.py

It needs root and apt-get. Where either is missing, or a package cannot be had, it says which tests
will be skipped, and ends well: the suite runs without them.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PACKAGES = {
    "nghttp2-client": "usr/bin/h2load",
    "etcd-server": "usr/bin/etcd",
    "postgresql": "usr/lib/postgresql/*/bin/initdb",
}
"""Each package, and what is there once it is installed."""


@dataclass(frozen=True)
class Machine:
    """What matters of the machine: its files, and whether packages can be installed."""

    root: Path
    can_install: bool

    def missing(self) -> list[str]:
        """Return the packages whose programs are not there."""
        return [name for name, place in PACKAGES.items() if not list(self.root.glob(place))]


def main() -> None:
    """Install what is missing; tell what could not be installed."""
    can_install = os.geteuid() == 0 and shutil.which("apt-get") is not None
    machine = Machine(Path("/"), can_install)
    if machine.can_install and (missing := machine.missing()):
        _apt_get("update", "-qq")
        for package in missing:
            _apt_get("install", "-y", "-qq", package)
    for line in told(machine):
        print(line, flush=True)


def told(machine: Machine) -> list[str]:
    """Return a line for each package that is still missing."""
    remedy = "it could not be installed" if machine.can_install else "install it as root"
    return [
        f"{package} is not installed ({remedy}); its tests are skipped"
        for package in machine.missing()
    ]


def _apt_get(*arguments: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", *arguments], env=environment, capture_output=True, check=False)


if __name__ == "__main__":
    main()
