"""A disk in memory that forgets, tears, fills up and fails as a seed or a test decides."""

import asyncio
import copy
import errno
import os
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from typing_extensions import override

from pydanube.runtime.files import AppendFile, FileLock, Files, NoRoom
from pydanube.runtime.randomness import Randomness, SeededRandomness
from pydanube.runtime.simulation.append_file import SimulatedAppendFile
from pydanube.runtime.simulation.contents import FileContents
from pydanube.runtime.simulation.disk_faults import DiskFaults, Operation, OperationName
from pydanube.runtime.simulation.machine import Machine
from pydanube.runtime.simulation.medium import Directory, Medium, parent_of
from pydanube.runtime.tasks import wait_out

_Result = TypeVar("_Result")
_ENDLESS_BYTES = 1 << 50


class SimulatedFiles(Files):
    """The files of a machine, as one of its incarnations sees them.

    Every operation takes a little time, decided by seed, and happens at one instant of it. Once the
    machine has crashed, operations of the incarnation that crashed fail, also those under way.
    """

    def __init__(self, machine: Machine, incarnation: int | None) -> None:
        self._machine = machine
        self._medium = machine.medium
        self._bound_to = incarnation

    @override
    async def list_names(self, directory: str) -> list[str]:
        return await self._operate(
            "list_names", directory, lambda: self._medium.names_in(directory)
        )

    @override
    async def exists(self, path: str) -> bool:
        return await self._operate("exists", path, lambda: self._medium.find(path) is not None)

    @override
    async def size(self, path: str) -> int:
        return await self._operate("size", path, lambda: len(self._medium.file(path).data))

    @override
    async def read(self, path: str, position: int, length: int) -> bytes:
        def read() -> bytes:
            data = self._medium.file(path).data
            if position < 0:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
            return bytes(data[position : position + max(0, length)])

        return await self._operate("read", path, read)

    @override
    async def make_directory(self, path: str) -> None:
        await self._hop("make_directory", lambda: self._make_directory(path))

    @override
    async def create(self, path: str) -> AppendFile:
        def create(path: str) -> FileContents:
            if self._machine.free_bytes() == 0:
                raise NoRoom(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            return self._medium.create(path)

        return await self._open("create", path, create)

    @override
    async def open_append(self, path: str) -> AppendFile:
        return await self._open("open_append", path, self._medium.file)

    @override
    async def truncate(self, path: str, length: int) -> None:
        def truncate() -> None:
            contents = self._medium.file(path)
            faults = self._machine.faults
            faults.carry_out("truncate", path, lambda: contents.truncate(length))
            faults.carry_out("sync", path, contents.sync, contents.fail_sync)

        await self._hop("truncate", truncate)

    @override
    async def rename(self, source: str, target: str) -> None:
        await self._operate("rename", target, lambda: self._medium.rename(source, target))

    @override
    async def remove(self, path: str) -> None:
        await self._operate("remove", path, lambda: self._medium.remove(path))

    @override
    async def sync_directory(self, path: str) -> None:
        await self._hop("sync_directory", lambda: self._sync_directory(path))

    @override
    async def forget_cached(self, path: str, position: int, length: int) -> None:
        await self._operate("forget_cached", path, lambda: self._medium.file(path))

    @override
    async def free_bytes(self, directory: str) -> int:
        def free_bytes() -> int:
            free = self._machine.free_bytes()
            return _ENDLESS_BYTES if free is None else free

        return await self._operate("free_bytes", directory, free_bytes)

    @override
    async def lock(self, path: str) -> FileLock | None:
        def lock() -> FileLock | None:
            if self._medium.find(path) is None:
                self._machine.faults.carry_out("create", path, lambda: self._medium.create(path))
            contents = self._medium.file(path)
            if contents in self._machine.locks:
                return None
            self._machine.locks[contents] = self._machine.incarnation
            return SimulatedFileLock(self._machine, contents)

        return await self._operate("lock", path, lock)

    async def _open(
        self, name: OperationName, path: str, find: Callable[[str], FileContents]
    ) -> AppendFile:
        incarnation = self._incarnation()
        contents = await self._operate(name, path, lambda: find(path))
        return SimulatedAppendFile(self._machine, incarnation, path, contents)

    def _make_directory(self, path: str) -> None:
        missing = []
        while not isinstance(self._medium.find(path), Directory):
            missing.append(path)
            path = parent_of(path)
        # A process killed between making this directory and syncing it left it undurable.
        self._sync_directory(parent_of(path))
        for directory in reversed(missing):
            make = partial(self._medium.make_directory, directory)
            self._machine.faults.carry_out("make_directory", directory, make)
            self._sync_directory(parent_of(directory))

    def _sync_directory(self, path: str) -> None:
        sync = partial(self._medium.sync_directory, path)
        self._machine.faults.carry_out("sync_directory", path, sync)

    async def _operate(
        self, name: OperationName, path: str, apply: Callable[[], _Result]
    ) -> _Result:
        return await self._hop(name, lambda: self._machine.faults.carry_out(name, path, apply))

    async def _hop(self, name: OperationName, work: Callable[[], _Result]) -> _Result:
        incarnation = self._incarnation()
        outcome: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()

        def happen() -> None:
            try:
                self._machine.require(incarnation)
                outcome.set_result(work())
            except Exception as error:  # noqa: BLE001  The waiter is told, whatever it is.
                outcome.set_exception(error)

        self._machine.after_delay(name, happen)
        return await wait_out(outcome)

    def _incarnation(self) -> int:
        return self._machine.incarnation if self._bound_to is None else self._bound_to


class SimulatedDisk(SimulatedFiles):
    """The disk of one simulated machine, and the switches of its faults.

    Used as `Files` it serves whoever calls, also after a crash. Give each incarnation of a program
    its own `mount()`, so that what is left of a crashed one cannot touch the disk of its successor.
    """

    def __init__(
        self,
        randomness: Randomness | None = None,
        *,
        capacity_bytes: int | None = None,
        delay_seconds: tuple[float, float] = (0.00005, 0.001),
        medium: Medium | None = None,
    ) -> None:
        super().__init__(
            Machine(
                medium or Medium(), randomness or SeededRandomness(0), capacity_bytes, delay_seconds
            ),
            None,
        )

    def mount(self) -> Files:
        """Return the files of the present incarnation; they die with it."""
        return SimulatedFiles(self._machine, self._machine.incarnation)

    def crash(self, randomness: Randomness) -> None:
        """Cut the power and start again: what was not synced is lost, torn or kept, by seed."""
        self._machine.begin_incarnation()
        self._medium.crash(randomness)

    def kill(self) -> None:
        """Kill the process and start again: the machine still has what was written."""
        self._machine.begin_incarnation()

    def after_crash(self, randomness: Randomness) -> "SimulatedDisk":
        """Return the disk as a power loss now would leave it; this one goes on untouched."""
        medium = copy.deepcopy(self._medium)
        medium.crash(randomness)
        machine = self._machine
        return SimulatedDisk(
            randomness,
            capacity_bytes=machine.capacity_bytes,
            delay_seconds=machine.delay_seconds,
            medium=medium,
        )

    def crash_at(self, number: int, *, after: bool = False) -> None:
        """Stop the machine before, or right after, the changing operation of that number.

        Whoever does that operation, or any later one, gets SimulatedCrash, until `crash` or
        `kill` starts the next incarnation.
        """
        self._faults.crash_at(number, after=after)

    @property
    def stopped(self) -> bool:
        """Tell whether `crash_at` has stopped the machine."""
        return self._faults.stopped.is_set()

    async def wait_until_stopped(self) -> None:
        """Wait until `crash_at` has stopped the machine."""
        await self._faults.stopped.wait()

    @property
    def operations(self) -> int:
        """Count the operations so far that changed something, those that failed included."""
        return self._faults.operations

    @property
    def operation_log(self) -> list[Operation]:
        """Return the latest changing operations; the last one has the number `operations`."""
        return list(self._faults.log)

    def fail_next(self, name: OperationName, error: OSError, *, under: str = "") -> None:
        """Let the next such operation fail, on a path that begins with `under`."""
        self._faults.fail_next(name, error, under)

    def exhaust(self, number: int | None) -> None:
        """Open nothing any more, as without descriptors (EMFILE) or memory; None: do so again."""
        self._faults.exhaust(number)

    def slow(self, name: OperationName, seconds: float) -> None:
        """Let each such operation take that much longer, until told otherwise."""
        self._faults.slow(name, seconds)

    def hang(self, *, under: str = "") -> None:
        """Let writes and syncs of open files hang, on paths that begin with `under`.

        They go on after `let_go`, and those of an incarnation that ends are over with it.
        """
        self._faults.hang(under)

    def let_go(self) -> None:
        """Let go on what hangs."""
        self._faults.let_go()

    @property
    def capacity_bytes(self) -> int | None:
        """How much the disk holds; None is without limit."""
        return self._machine.capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, capacity_bytes: int | None) -> None:
        self._machine.capacity_bytes = capacity_bytes

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        """Damage one bit of a file on the medium."""
        self._medium.file(path).flip_bit(position, bit)

    def contents(self, path: str) -> bytes:
        """Return all that a reader sees of a file."""
        return bytes(self._medium.file(path).data)

    def replace_contents(self, path: str, data: bytes) -> None:
        """Put other bytes into a file on the medium, durably: damage of any shape."""
        self._medium.file(path).replace(data)

    @property
    def _faults(self) -> DiskFaults:
        return self._machine.faults


class SimulatedFileLock(FileLock):
    """A lock that ends with the incarnation that took it."""

    def __init__(self, machine: Machine, contents: object) -> None:
        self._machine = machine
        self._contents = contents
        self._incarnation = machine.incarnation

    @override
    async def release(self) -> None:
        if self._machine.locks.get(self._contents) == self._incarnation:
            del self._machine.locks[self._contents]
