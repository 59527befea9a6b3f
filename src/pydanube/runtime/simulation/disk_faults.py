"""What can go wrong with an operation of a simulated disk, and which operation it will be."""

import asyncio
import errno
import os
import posixpath
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, TypeVar

from pydanube.runtime.files import NoRoom, naming_no_room

_Result = TypeVar("_Result")
_OPERATIONS_REMEMBERED = 100_000

OperationName = Literal[
    "append",
    "create",
    "exists",
    "forget_cached",
    "free_bytes",
    "list_names",
    "lock",
    "make_directory",
    "open_append",
    "read",
    "remove",
    "rename",
    "size",
    "sync",
    "sync_directory",
    "truncate",
]
_CHANGING: frozenset[OperationName] = frozenset(
    {
        "append",
        "create",
        "make_directory",
        "remove",
        "rename",
        "sync",
        "sync_directory",
        "truncate",
    }
)
_OPENING: frozenset[OperationName] = frozenset(
    {
        "create",
        "list_names",
        "lock",
        "open_append",
        "read",
        "sync_directory",
        "truncate",
    }
)
"""What takes a descriptor, and changes nothing if there is none."""
_NAMING_NO_ROOM: frozenset[OperationName] = frozenset(
    {"append", "create", "lock", "make_directory", "open_append", "rename"}
)
"""What fails for want of room when a test says so; a sync that fails has failed, for any reason."""


_HANGING: frozenset[OperationName] = frozenset({"append", "sync"})


class SimulatedCrash(OSError):
    """The machine has stopped; whoever still runs on it gets nothing done any more."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EIO, reason)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that changed the disk, or was about to; numbers start at 1."""

    number: int
    name: OperationName
    path: str


@dataclass(slots=True)
class _Failure:
    name: OperationName
    error: OSError
    under: str

    def concerns(self, name: OperationName, path: str) -> bool:
        return self.name == name and posixpath.normpath(path).startswith(self.under)


class DiskFaults:
    """Every operation passes here: it is counted, and fails or stops the machine as planned."""

    def __init__(self) -> None:
        self.operations = 0
        self.log: deque[Operation] = deque(maxlen=_OPERATIONS_REMEMBERED)
        self.stopped = asyncio.Event()
        self._failures: list[_Failure] = []
        self._exhausted: int | None = None
        self._slowness: dict[OperationName, float] = {}
        self._hanging: list[str] = []
        self._held: list[Callable[[], None]] = []
        self._crash_number: int | None = None
        self._crash_after = False

    def fail_next(self, name: OperationName, error: OSError, under: str = "") -> None:
        """Let the next such operation fail, on a path that begins with `under`."""
        self._failures.append(_Failure(name, error, under))

    def exhaust(self, number: int | None) -> None:
        """Open nothing any more, for the reason of that number; None: open everything again."""
        self._exhausted = number

    def slow(self, name: OperationName, seconds: float) -> None:
        """Let each such operation take that much longer, until told otherwise."""
        self._slowness[name] = seconds

    def extra_seconds(self, name: OperationName) -> float:
        """Return how much longer such an operation takes than usual."""
        return self._slowness.get(name, 0.0)

    def hang(self, under: str) -> None:
        """Let no write and no sync of files on paths that begin with `under` come to an end."""
        self._hanging.append(under)

    def holds(self, name: OperationName, path: str, happen: Callable[[], None]) -> bool:
        """Tell whether an operation hangs; then it happens when it is let go."""
        place = posixpath.normpath(path)
        hangs = name in _HANGING and any(place.startswith(under) for under in self._hanging)
        if hangs:
            self._held.append(happen)
        return hangs

    def let_go(self) -> None:
        """Let everything happen that hung."""
        held, self._held = self._held, []
        self._hanging.clear()
        for happen in held:
            asyncio.get_running_loop().call_soon(happen)

    def crash_at(self, number: int, *, after: bool) -> None:
        """Stop the machine before, or right after, the changing operation of that number."""
        if number <= self.operations:
            raise ValueError(f"operation {number} is past; {self.operations} were done")
        self._crash_number = number
        self._crash_after = after

    def start_again(self) -> None:
        """Let a machine that stopped work again; planned failures go with the old incarnation."""
        self.stopped.set()
        # A new event, because the next incarnation may live on another event loop.
        self.stopped = asyncio.Event()
        self._crash_number = None
        self._exhausted = None
        self._failures.clear()
        self.let_go()

    def carry_out(
        self,
        name: OperationName,
        path: str,
        apply: Callable[[], _Result],
        fail: Callable[[], None] | None = None,
    ) -> _Result:
        """Do it, unless a fault is due; `fail` does the damage that such a failure leaves."""
        if self.stopped.is_set():
            raise SimulatedCrash(f"{name} {path}: the machine has stopped")
        if self._exhausted is not None and name in _OPENING:
            raise NoRoom(self._exhausted, os.strerror(self._exhausted), path)
        changing = name in _CHANGING
        if changing:
            self.operations += 1
            self.log.append(Operation(self.operations, name, path))
        crashing = changing and self.operations == self._crash_number
        if crashing and not self._crash_after:
            self._stop(f"stopped before operation {self.operations}: {name} {path}")
        failure = self._take_failure(name, path)
        if failure is not None:
            if fail is not None:
                fail()
            with naming_no_room() if name in _NAMING_NO_ROOM else nullcontext():
                raise failure
        try:
            return apply()
        finally:
            if crashing:
                self._stop(f"stopped after operation {self.operations}: {name} {path}")

    def _take_failure(self, name: OperationName, path: str) -> OSError | None:
        for index, failure in enumerate(self._failures):
            if failure.concerns(name, path):
                del self._failures[index]
                return failure.error
        return None

    def _stop(self, reason: str) -> None:
        self.stopped.set()
        raise SimulatedCrash(reason)
