"""An open file on a simulated disk."""

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from typing_extensions import override

from pydanube.runtime.files import AppendFile, NoRoom
from pydanube.runtime.simulation.contents import FileContents
from pydanube.runtime.simulation.disk_faults import OperationName
from pydanube.runtime.simulation.machine import Machine

_BLOCK_BYTES = 64


@dataclass(slots=True)
class _Step:
    name: OperationName
    apply: Callable[[], None]
    fail: Callable[[], None]


@dataclass(slots=True)
class _Call:
    steps: deque[_Step]
    outcome: asyncio.Future[None]


class SimulatedAppendFile(AppendFile):
    """Calls are carried out one after another, as by a thread: also when nobody waits any more.

    After a failed call every later one fails. A handle that outlives its machine's crash is dead;
    closing it is harmless.
    """

    def __init__(
        self, machine: Machine, incarnation: int, path: str, contents: FileContents
    ) -> None:
        self._machine = machine
        self._incarnation = incarnation
        self._path = path
        self._contents = contents
        self._calls: deque[_Call] = deque()
        self._failure: OSError | None = None
        self._closed = False

    @override
    def padding_before(self, part: bytes | memoryview, place: int) -> int:
        """Ask for what would be asked of a file if all memory began at a whole block."""
        return -place % _BLOCK_BYTES

    @override
    async def append(self, parts: Sequence[bytes | memoryview]) -> None:
        await self._submit(self._append_step(parts))

    @override
    async def sync(self) -> None:
        await self._submit(self._sync_step())

    @override
    async def append_and_sync(self, parts: Sequence[bytes | memoryview]) -> None:
        await self._submit(self._append_step(parts), self._sync_step())

    @override
    async def reserve(self, length: int) -> None:
        """This disk has no room to set aside: it is full when it is told to be."""

    @override
    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._take_turn()

    def _append_step(self, parts: Sequence[bytes | memoryview]) -> _Step:
        data = b"".join(parts)
        return _Step("append", lambda: self._append(data), lambda: self._append_some(data))

    def _sync_step(self) -> _Step:
        return _Step("sync", self._contents.sync, self._contents.fail_sync)

    def _append(self, data: bytes) -> None:
        free = self._machine.free_bytes()
        if free is not None and len(data) > free:
            self._append_some(data[:free])
            raise NoRoom(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        self._contents.append(data)

    def _append_some(self, data: bytes) -> None:
        """Write what a failing call managed to write: anything from nothing to everything."""
        self._contents.append(data[: self._machine.randomness.below(len(data) + 1)])

    async def _submit(self, *steps: _Step) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "file is closed", self._path)
        await self._take_turn(*steps)

    async def _take_turn(self, *steps: _Step) -> None:
        """Take the steps after those of all earlier calls; without steps, just wait for these."""
        loop = asyncio.get_running_loop()
        call = _Call(deque(steps), loop.create_future())
        self._calls.append(call)
        if len(self._calls) == 1:
            loop.call_soon(self._go_on)
        await call.outcome

    def _go_on(self) -> None:
        while self._calls and not self._calls[0].steps:
            outcome = self._calls.popleft().outcome
            if not outcome.done():
                outcome.set_result(None)
        if self._calls:
            self._machine.after_delay(self._calls[0].steps[0].name, self._take_step, self._path)

    def _take_step(self) -> None:
        call = self._calls[0]
        step = call.steps.popleft()
        try:
            self._carry_out(step)
        except OSError as error:
            self._failure = error
            call.steps.clear()
            if not call.outcome.done():
                call.outcome.set_exception(error)
        self._go_on()

    def _carry_out(self, step: _Step) -> None:
        self._machine.require(self._incarnation)
        if self._failure is not None:
            raise OSError(errno.EIO, f"an earlier call failed ({self._failure})", self._path)
        self._machine.faults.carry_out(step.name, self._path, step.apply, step.fail)
