"""Drives one Raft node: waits, feeds the core, and carries out what it decides."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from pydanube.errors import Overloaded, Unavailable
from pydanube.metadata.commands import MIB
from pydanube.metadata.raft.core import Raft
from pydanube.metadata.raft.entries import (
    EntryKind,
    LogEntry,
    Snapshot,
    Stored,
    founded,
)
from pydanube.metadata.raft.errors import NotLeader
from pydanube.metadata.raft.membership import Membership
from pydanube.metadata.raft.messages import Message
from pydanube.metadata.raft.ready import Ready
from pydanube.metadata.raft.settings import RaftSettings
from pydanube.metadata.raft_disk import RaftDisk
from pydanube.metadata.state_machine import Result
from pydanube.metadata.transport import Transport
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock, Timer
from pydanube.runtime.randomness import Randomness
from pydanube.runtime.room import Room, WaitEnded

_log = get_logger(__name__)


class NodeSettings(Struct, frozen=True, kw_only=True):
    """How a node keeps time and when it shortens its log."""

    tick_ms: int = 100
    raft: RaftSettings = RaftSettings()
    snapshot_entries: int = 1_000
    keep_entries: int = 100
    log_bytes_max: int = 8 * MIB
    write_ms_max: int = 10_000
    """After so long without an answer a write's outcome is called unknown."""
    proposals_max: int = 10_000
    lease_grace_ms: int = 500
    """A new leader lets leases end after so long only: nobody could renew them without one."""


class Replicated(Protocol):
    """The state that follows the log."""

    def apply_entry(self, entry: LogEntry) -> Result | None:
        """Carry out a committed entry; None if it holds no command."""

    def restore_state(self, state: bytes) -> None:
        """Become another state."""

    def capture_state(self) -> bytes:
        """Return the state after the last entry that was applied."""

    def group_applied(self) -> None:
        """Everything that was committed so far has been applied."""

    def leading_changed(self, leading: bool) -> None:
        """This node leads and has applied all that earlier leaders committed; or no longer."""

    def stopped(self, failure: Unavailable) -> None:
        """Nothing will be applied any more."""


class _Proposal(Struct, frozen=True, eq=False):
    term: int
    deadline_ms: int
    outcome: asyncio.Future[tuple[int, Result | None]]


class RaftNode:
    """One node. After a failed write or sync it takes no part any more until it is opened anew."""

    def __init__(
        self,
        disk: RaftDisk,
        stored: Stored,
        clock: Clock,
        randomness: Randomness,
        transport: Transport,
        machine: Replicated,
        settings: NodeSettings,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._randomness = randomness
        self._transport = transport
        self._machine = machine
        self._settings = settings
        self.node = disk.node
        self.raft = self._core(stored)
        self._proposals: dict[int, _Proposal] = {}
        self._reads: dict[int, asyncio.Future[int]] = {}
        self._last_context = 0
        self._catching_up: list[tuple[int, int, asyncio.Future[None]]] = []
        """The index waited for, the deadline, and who waits."""
        self._wakeup = asyncio.Event()
        self._timer: Timer | None = None
        self._founding: Membership | None = None
        self._leading = False
        self._seen: tuple[int, int] = (0, 0)
        self._members_seen = Membership({}, {})
        self._closing = False
        self._running = False
        self._ended = asyncio.Event()
        self.failure: Unavailable | None = None
        self.writing_since_ms: int | None = None
        """Since when what the core decided last is being carried out; None while nothing is."""

        self._room = Room(clock, self._wait_began, self._wait_ended)
        self.changed = asyncio.Event()
        """Set whenever the leader, the term or the members have become others."""
        self.on_leader: Callable[[], None] = lambda: None
        """Called when another node leads than before."""
        self._observe()

    def _core(self, stored: Stored) -> Raft:
        return Raft(self.node, self._settings.raft, stored, self._randomness.below)

    @property
    def applied(self) -> int:
        """The index of the last entry applied."""
        return self.raft.log.applied

    def start_ticking(self) -> None:
        """Let time pass for the core; a node that is alone leads at once."""
        if list(self.raft.membership.voters) == [self.node]:
            self.raft.campaign()
            self._wakeup.set()
        self._tick_later()

    def receive(self, messages: Sequence[Message]) -> None:
        """Take in what another node said."""
        if self._closing or self.failure is not None:
            return
        try:
            for message in messages:
                if message.to == self.node:
                    self.raft.step(message)
        except Exception as error:  # noqa: BLE001  Whoever sent it must not be harmed by it.
            self._stop(error)
        self._observe()
        self._wakeup.set()

    def propose(self, payload: bytes) -> asyncio.Future[tuple[int, Result | None]]:
        """Append a command; the future has its index and result once it is applied here.

        NotLeader and Overloaded at once if nothing was done; Unavailable in the future if the
        outcome is not known, or the command was lost.
        """
        self._require_working()
        if len(self._proposals) >= self._settings.proposals_max:
            raise Overloaded(f"{len(self._proposals)} metadata writes are waiting")
        return self._note_proposal(*self.raft.propose(payload))

    def change_members(self, membership: Membership) -> asyncio.Future[tuple[int, Result | None]]:
        """Append new members; otherwise as `propose`. Conflict if that is not safe now."""
        self._require_working()
        outcome = self._note_proposal(*self.raft.propose_membership(membership))
        self._observe()
        return outcome

    def read_index(self) -> asyncio.Future[int]:
        """Return, later, the index from which on a read sees all that was acknowledged before."""
        self._require_working()
        context = self._last_context + 1
        self.raft.read_index(context)
        self._last_context = context
        future = asyncio.get_running_loop().create_future()
        self._reads[context] = future
        self._wakeup.set()
        return future

    def transfer(self, to: int) -> None:
        """Begin to hand leadership over."""
        self._require_working()
        self.raft.transfer(to)
        self._wakeup.set()

    def report_lost(self, node: int) -> None:
        """Say that something sent to a node did not arrive."""
        self.raft.report_lost(node)

    def found(self, membership: Membership) -> None:
        """Found a cluster of these members, unless a leader has been heard of by then."""
        self._founding = membership
        self._wakeup.set()

    async def wait_applied(self, index: int) -> None:
        """Wait until an entry is applied here; Unavailable if that takes too long."""
        self._require_working()
        if self.applied < index:
            future = asyncio.get_running_loop().create_future()
            deadline_ms = self._clock.monotonic_ms() + self._settings.write_ms_max
            self._catching_up.append((index, deadline_ms, future))
            await future

    async def run(self) -> None:
        """Carry out what the core decides, until closed or a write fails."""
        self._running = True
        try:
            while not self._closing:
                if self._founding is not None:
                    await self._found(self._founding)
                elif self.raft.has_ready():
                    self.writing_since_ms = self._clock.monotonic_ms()
                    await self._carry_out(self.raft.ready())
                    await self._shorten_log_if_due()
                else:
                    self.writing_since_ms = None
                    self._wakeup.clear()
                    await self._wakeup.wait()
        except WaitEnded as error:
            self._stop(error)
        except BaseException as error:
            self._stop(error)
            raise
        finally:
            self._ended.set()

    @property
    def waiting_for(self) -> str | None:
        """What its disk has no room for, and the remedy; None while it has.

        Until then the node says nothing to others that it could not keep, heartbeats included.
        """
        lacking = self._room.waiting_for
        return f"metadata node {self.node} waits for room: {lacking}" if lacking else None

    def _wait_began(self, lacking: str) -> None:
        _log.warning("the metadata wait for room", node=self.node, cause=lacking)

    def _wait_ended(self, waited_ms: int) -> None:
        _log.info("the metadata have room again", node=self.node, waited_ms=waited_ms)

    async def finish(self) -> None:
        """Wait until nothing that was begun is unanswered, or its time is over."""
        waiting = [proposal.outcome for proposal in self._proposals.values()]
        if waiting:
            await asyncio.wait(waiting)

    async def close(self) -> None:
        """Take no part any more; what is stored stays as it is."""
        self._closing = True
        self._wakeup.set()
        self._room.end()
        if self._timer is not None:
            self._timer.cancel()
        if self._running:
            await self._ended.wait()
        self._fail_all(Unavailable("the metadata store is closed"))

    async def _found(self, membership: Membership) -> None:
        self._founding = None
        if self.raft.term or self.raft.has_ready():
            return
        stored = founded(membership, self._machine.capture_state())
        # Whatever comes meanwhile reaches the core that is about to go, and is lost with it.
        await self._room.carry_out(lambda: self._disk.write_snapshot(stored.snapshot))
        await self._room.carry_out(lambda: self._disk.begin_log(stored))
        self.raft = self._core(stored)
        self._observe()
        self.raft.campaign()

    async def _carry_out(self, ready: Ready) -> None:
        self._transport.send(ready.send_first)
        if ready.snapshot is not None:
            await self._store_snapshot(ready, ready.snapshot)
        elif ready.must_sync:
            await self._room.carry_out(lambda: self._disk.write(ready.hard_state, ready.entries))
        self._transport.send(ready.send_after)
        if ready.snapshot is not None:
            self._machine.restore_state(ready.snapshot.state)
        for entry in ready.committed:
            self._apply(entry)
        raft = self.raft
        raft.advance(ready)
        self._answer_reads(ready)
        if ready.committed or ready.snapshot is not None:
            self._caught_up()
            self._machine.group_applied()
        self._observe()

    async def _store_snapshot(self, ready: Ready, snapshot: Snapshot) -> None:
        await self._room.carry_out(lambda: self._disk.write_snapshot(snapshot))
        hard_state = ready.hard_state or self.raft.stored_now().hard_state
        stored = Stored(hard_state, snapshot, snapshot.index, snapshot.term, ready.entries)
        await self._room.carry_out(lambda: self._disk.begin_log(stored))

    def _apply(self, entry: LogEntry) -> None:
        result = self._machine.apply_entry(entry)
        if entry.kind is EntryKind.NOTHING and entry.term == self.raft.term:
            self._set_leading(self.raft.is_leader)
        proposal = self._proposals.pop(entry.index, None)
        if proposal is None or proposal.outcome.done():
            return
        if proposal.term == entry.term:
            proposal.outcome.set_result((entry.index, result))
        else:
            proposal.outcome.set_exception(
                Unavailable("the write was not done: the leader changed; try again")
            )

    def _answer_reads(self, ready: Ready) -> None:
        for read in ready.reads:
            future = self._reads.pop(read.context, None)
            if future is None or future.done():
                continue
            if read.index is None:
                future.set_exception(NotLeader(self.raft.leader))
            else:
                future.set_result(read.index)

    def _caught_up(self) -> None:
        still = []
        for index, deadline_ms, future in self._catching_up:
            if index > self.applied:
                still.append((index, deadline_ms, future))
            elif not future.done():
                future.set_result(None)
        self._catching_up = still

    async def _shorten_log_if_due(self) -> None:
        log = self.raft.log
        entries, size = log.applied - log.snapshot.index, self._disk.grown_bytes
        if not entries or log.unstored_snapshot is not None:
            return
        is_long = entries >= self._settings.snapshot_entries or size >= self._settings.log_bytes_max
        # A large state is not written anew for a few small changes.
        if not is_long or size < len(log.snapshot.state) // 2:
            return
        term = log.term_at(log.applied)
        assert term is not None, "what was just applied is held"
        state = self._machine.capture_state()
        snapshot = Snapshot(log.applied, term, log.membership_at(log.applied), state)
        await self._room.carry_out(lambda: self._disk.write_snapshot(snapshot))
        if self.raft.cut_log(snapshot, self._settings.keep_entries):
            stored = self.raft.stored_now()
            await self._room.carry_out(lambda: self._disk.begin_log(stored))

    def _tick_later(self) -> None:
        self._timer = self._clock.call_later(self._settings.tick_ms / 1000, self._tick)

    def _tick(self) -> None:
        if self._closing or self.failure is not None:
            return
        self._tick_later()
        self.raft.tick()
        self._expire()
        self._observe()
        self._wakeup.set()

    def _note_proposal(self, index: int, term: int) -> asyncio.Future[tuple[int, Result | None]]:
        former = self._proposals.pop(index, None)
        if former is not None and not former.outcome.done():
            # Its entry was replaced, or this index could not have been given anew.
            former.outcome.set_exception(Unavailable("the write was not done; try again"))
        outcome: asyncio.Future[tuple[int, Result | None]] = (
            asyncio.get_running_loop().create_future()
        )
        deadline_ms = self._clock.monotonic_ms() + self._settings.write_ms_max
        self._proposals[index] = _Proposal(term, deadline_ms, outcome)
        self._wakeup.set()
        return outcome

    def _expire(self) -> None:
        """Tell those who have waited too long."""
        now_ms = self._clock.monotonic_ms()
        late = [
            index
            for index, proposal in self._proposals.items()
            if proposal.deadline_ms <= now_ms or proposal.outcome.done()
        ]
        for index in late:
            outcome = self._proposals.pop(index).outcome
            if not outcome.done():
                outcome.set_exception(
                    Unavailable(
                        "no majority of the metadata nodes has answered in time; the write may "
                        "still happen"
                    )
                )

        behind = [one for one in self._catching_up if one[1] <= now_ms or one[2].done()]
        self._catching_up = [one for one in self._catching_up if one not in behind]
        for index, _, future in behind:
            if not future.done():
                future.set_exception(
                    Unavailable(f"this node has not caught up to entry {index} in time")
                )

    def _observe(self) -> None:
        """Notice what has become of roles and members, and tell those concerned."""
        raft = self.raft
        if self._leading and not raft.is_leader:
            self._set_leading(False)
        if raft.membership is not self._members_seen:
            self._members_seen = raft.membership
            self._transport.set_members(raft.membership)
            self.changed.set()
        if (raft.term, raft.leader) != self._seen:
            if raft.leader != self._seen[1] and raft.leader:
                _log.info("the metadata have a leader", leader=raft.leader, term=raft.term)
                self.on_leader()
            self._seen = (raft.term, raft.leader)
            self.changed.set()

    def _set_leading(self, leading: bool) -> None:
        if leading != self._leading:
            self._leading = leading
            self._machine.leading_changed(leading)

    def _require_working(self) -> None:
        if self.failure is not None:
            raise Unavailable(str(self.failure)) from self.failure
        if self._closing:
            raise Unavailable("the metadata store is closed")

    def _stop(self, cause: BaseException) -> None:
        if self.failure is not None:
            return
        if isinstance(cause, asyncio.CancelledError):
            reason = "its tasks were cancelled"
        elif isinstance(cause, WaitEnded):
            reason = f"it was closed while it waited for room ({cause})"
        else:
            reason = f"it failed ({cause!r}): restart the broker once the cause is removed"
        self.failure = Unavailable(f"metadata node {self.node} has stopped, as {reason}")
        self.failure.__cause__ = cause
        self._set_leading(False)
        self._fail_all(self.failure)
        self._machine.stopped(self.failure)
        self._wakeup.set()
        self.changed.set()

    def _fail_all(self, failure: Unavailable) -> None:
        # Any: futures of several kinds, of which only the failure is set.
        waiting: list[asyncio.Future[Any]] = [
            proposal.outcome for proposal in self._proposals.values()
        ]
        waiting += self._reads.values()
        waiting += [future for _, _, future in self._catching_up]
        self._proposals.clear()
        self._reads.clear()
        self._catching_up.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(Unavailable(str(failure)))
