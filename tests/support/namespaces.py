"""A network of machines on one: a namespace for each, and a switch whose cables can be pulled."""

import ctypes
import os
import shutil
import subprocess
from types import TracebackType

import pytest

_SWITCH = "hub0"


class Machines:
    """Machines with an address each, reachable from each other and from nowhere else."""

    def __init__(self, count: int) -> None:
        if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter"))):
            pytest.skip("network namespaces need root, and the programs ip and nsenter")
        self._hub = f"danube-{os.getpid()}-hub"
        self._names = [f"danube-{os.getpid()}-{number}" for number in range(count)]

    def __enter__(self) -> "Machines":
        try:
            self._connect()
        except subprocess.CalledProcessError as error:
            self._remove()
            pytest.skip(f"network namespaces need root: {error.stderr.strip()}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def address(self, number: int) -> str:
        return f"10.77.0.{number + 1}"

    def on(self, number: int) -> list[str]:
        """Return the beginning of a command that runs on that machine.

        `ip netns exec` would give it a copy of all mounts as well, which keeps file systems alive
        that others unmount meanwhile.
        """
        return ["nsenter", f"--net=/var/run/netns/{self._names[number]}"]

    def enter(self, number: int) -> None:
        """Move this thread to that machine, with all threads and processes that it starts."""
        with open(f"/var/run/netns/{self._names[number]}", "rb") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), "setns failed")

    def cut_off(self, number: int) -> None:
        """Lose every packet from and to a machine, without a word to anybody."""
        _ip("-n", self._hub, "link", "set", f"port{number}", "nomaster")

    def heal(self, number: int) -> None:
        _ip("-n", self._hub, "link", "set", f"port{number}", "master", _SWITCH)

    def _connect(self) -> None:
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "add", _SWITCH, "type", "bridge")
        _ip("-n", self._hub, "link", "set", _SWITCH, "up")
        for number, name in enumerate(self._names):
            port = f"port{number}"
            _ip("netns", "add", name)
            cable = ["link", "add", "net0", "netns", name, "type", "veth"]
            _ip(*cable, "peer", "name", port, "netns", self._hub)
            _ip("-n", self._hub, "link", "set", port, "master", _SWITCH, "up")
            _ip("-n", name, "address", "add", f"{self.address(number)}/24", "dev", "net0")
            _ip("-n", name, "link", "set", "net0", "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def _remove(self) -> None:
        for name in (*self._names, self._hub):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30, check=True)
