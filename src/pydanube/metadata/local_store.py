"""The metadata of a broker that is alone: durable in one directory."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from msgspec import Struct
from typing_extensions import override

from pydanube.errors import Conflict, Overloaded, Unavailable
from pydanube.metadata.commands import MIB, Command, ExpireLeases, encode_command
from pydanube.metadata.local_format import LOCK_NAME
from pydanube.metadata.local_log import LocalLog, check_ours, recover
from pydanube.metadata.machine_store import MachineStore
from pydanube.metadata.state_machine import Result, StateMachine
from pydanube.metadata.watches import Watches, WatchLimits
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.files import FileLock, Files
from pydanube.runtime.room import Room, WaitEnded, describe
from pydanube.runtime.tasks import TaskScope

LOG_BYTES_MAX = 8 * MIB
WAITING_COMMANDS_MAX = 10_000
WAITING_BYTES_MAX = 64 * MIB

_log = get_logger(__name__)


class _Proposal(Struct, frozen=True, eq=False):
    command: Command
    payload: bytes
    reply: asyncio.Future[Result] | None


class LocalMetadataStore(MachineStore):
    """A write returns after its command was synced and applied. Reads see applied commands only.

    All commands that wait share one sync and are applied in the order in which they were asked
    for. After a failed write or sync nobody knows which bytes reached the disk: every later write
    is Unavailable and every watch ends, until the store is opened again. A write that failed so
    may be found to have happened then.
    """

    def __init__(
        self,
        clock: Clock,
        machine: StateMachine,
        watches: Watches,
        log: LocalLog,
        lock: FileLock,
        directory: str,
        log_bytes_max: int,
    ) -> None:
        super().__init__(clock, machine, watches)
        self._log = log
        self._lock = lock
        self._clock = clock
        self._directory = directory
        self._log_bytes_max = log_bytes_max
        self._waiting: list[_Proposal] = []
        self._waiting_bytes = 0
        self._wakeup = asyncio.Event()
        self._writing = False
        self._writer_ended = asyncio.Event()
        self._closing = False
        self._failure: Unavailable | None = None
        self.writing_since_ms: int | None = None
        """Since when the group that is being written is under way; None while none is."""

        self._room = Room(clock, self._wait_began, self._wait_ended)

    @classmethod
    async def open(
        cls,
        files: Files,
        clock: Clock,
        tasks: TaskScope,
        directory: str,
        *,
        log_bytes_max: int = LOG_BYTES_MAX,
        watch_limits: WatchLimits | None = None,
    ) -> Self:
        """Open the store in a directory, which is created if need be; `tasks` runs its writer.

        Corruption if stored bytes are damaged, InvalidRequest if the directory is somebody
        else's, NotSupported if a newer version wrote it, Conflict if another process uses it,
        Unavailable if the disk fails.
        """
        try:
            await check_ours(files, directory)
            await files.make_directory(directory)
            lock = await files.lock(f"{directory}/{LOCK_NAME}")
            if lock is None:
                raise Conflict(
                    f"the metadata in {directory} is in use by another process; stop that one, or "
                    "choose a data directory of its own (--data-dir)"
                )
            log = LocalLog(files, directory)
            try:
                machine, watches = await _replay(
                    files, directory, log, watch_limits or WatchLimits()
                )
            except BaseException:
                await log.release()
                await lock.release()
                raise
        except OSError as error:
            cause = describe(error)
            raise Unavailable(f"cannot open the metadata in {directory}: {cause}") from error
        store = cls(clock, machine, watches, log, lock, directory, log_bytes_max)
        tasks.start(store._write(), f"metadata log in {directory}")
        store._applied()
        return store

    @property
    def failure(self) -> Unavailable | None:
        """Why nothing can be written any more, None while all is well; for health checks."""
        return self._failure

    @property
    def waiting_for(self) -> str | None:
        """What there is no room for, and the remedy; None while there is. Writes are refused."""
        lacking = self._room.waiting_for
        return f"the metadata in {self._directory} wait for room: {lacking}" if lacking else None

    def _wait_began(self, lacking: str) -> None:
        _log.warning("the metadata wait for room", directory=self._directory, cause=lacking)

    def _wait_ended(self, waited_ms: int) -> None:
        _log.info("the metadata have room again", directory=self._directory, waited_ms=waited_ms)

    @override
    async def _propose(self, command: Command) -> Result:
        if self._failure is not None:
            raise self._repeated_failure()
        if self._closing:
            raise Unavailable("the metadata store is closed")
        if self.waiting_for is not None:
            raise Unavailable(self.waiting_for)
        payload = encode_command(command)
        if (
            len(self._waiting) >= WAITING_COMMANDS_MAX
            or self._waiting_bytes + len(payload) > WAITING_BYTES_MAX
        ):
            raise Overloaded(f"{len(self._waiting)} metadata writes are waiting for the disk")
        reply: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._enqueue(_Proposal(command, payload, reply))
        return await reply

    @override
    def _propose_expiry(self, now_ms: int) -> None:
        command = ExpireLeases(now_ms)
        self._enqueue(_Proposal(command, encode_command(command), None))

    def _enqueue(self, proposal: _Proposal) -> None:
        self._waiting.append(proposal)
        self._waiting_bytes += len(proposal.payload)
        self._wakeup.set()

    async def _write(self) -> None:
        """Write what waits, group by group, until the store closes or a write fails."""
        self._writing = True
        group: list[_Proposal] = []
        try:
            while self._waiting or not self._closing:
                if not self._waiting:
                    self._wakeup.clear()
                    await self._wakeup.wait()
                    continue
                group, self._waiting, self._waiting_bytes = self._waiting, [], 0
                self.writing_since_ms = self._clock.monotonic_ms()
                await self._commit(group)
                self.writing_since_ms = None
                group = []
        except WaitEnded as error:
            self._stop(error, [*group, *self._waiting])
        except BaseException as error:
            self._stop(error, [*group, *self._waiting])
            raise
        finally:
            self._writer_ended.set()

    async def _commit(self, group: Sequence[_Proposal]) -> None:
        payloads = [proposal.payload for proposal in group]
        await self._room.carry_out(lambda: self._log.append(payloads))
        for proposal in group:
            result = self._apply(proposal.command)
            # Whoever asked may have been cancelled meanwhile.
            if proposal.reply is not None and not proposal.reply.done():
                proposal.reply.set_result(result)
        self._applied()
        if self._log.size > self._log_bytes_max:
            state = self._machine.snapshot()
            await self._room.carry_out(lambda: self._log.start_anew(state))

    def _stop(self, cause: BaseException, unanswered: Sequence[_Proposal]) -> None:
        if isinstance(cause, asyncio.CancelledError):
            reason = "its tasks were cancelled"
        elif isinstance(cause, WaitEnded):
            reason = f"it was closed while it waited for room ({cause})"
        else:
            reason = f"writing failed ({cause}): restart the broker once the cause is removed"
        self._failure = Unavailable(f"the metadata in {self._directory} has stopped, as {reason}")
        self._failure.__cause__ = cause
        self._waiting = []
        self._lease_timer.close()
        for proposal in unanswered:
            if proposal.reply is not None and not proposal.reply.done():
                proposal.reply.set_exception(self._repeated_failure())
        self._watches.end(self._failure)

    def _repeated_failure(self) -> Unavailable:
        # A new one each time: one that is raised again and again keeps every traceback.
        failure = Unavailable(str(self._failure))
        failure.__cause__ = self._failure
        return failure

    @override
    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._lease_timer.close()
        self._wakeup.set()
        self._room.end()
        try:
            if self._writing:
                await self._writer_ended.wait()
            elif self._waiting:
                # The writer was cancelled before it could begin.
                self._stop(asyncio.CancelledError(), self._waiting)
            self._watches.end(None)
            if self._failure is None:
                # The mark only helps the next start to tell damage; a full disk may go without.
                with suppress(OSError):
                    await self._log.close_in_order()
        finally:
            await self._log.release()
            await self._lock.release()


async def _replay(
    files: Files, directory: str, log: LocalLog, limits: WatchLimits
) -> tuple[StateMachine, Watches]:
    recovered = await recover(files, directory)
    machine = StateMachine()
    if recovered.state is not None:
        machine.restore(recovered.state)
    watches = Watches(machine.revision, limits)
    for command in recovered.commands:
        _, changes = machine.apply(command)
        watches.publish(changes)
    await log.begin(recovered, machine.snapshot())
    return machine, watches
