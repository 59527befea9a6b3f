"""The metadata of a cluster: agreed on by Raft, held by every node."""

import asyncio
from contextlib import suppress
from typing import Self

from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from pydanube.errors import DanubeError, Unavailable
from pydanube.metadata.commands import (
    Command,
    ExpireLeases,
    GrantLease,
    RenewLease,
    decode_command,
    encode_command,
)
from pydanube.metadata.forwarding import Forwarding
from pydanube.metadata.founding import founding_membership
from pydanube.metadata.leases import LeaseTimer
from pydanube.metadata.local_import import local_state
from pydanube.metadata.machine_store import MachineStore
from pydanube.metadata.member_changes import MemberChanges
from pydanube.metadata.node import NodeSettings, RaftNode, Replicated
from pydanube.metadata.raft.entries import EntryKind, LogEntry, Stored, founded, nothing_stored
from pydanube.metadata.raft.leader import Leader
from pydanube.metadata.raft.membership import Membership
from pydanube.metadata.raft_calls import NodeInfo
from pydanube.metadata.raft_disk import RaftDisk
from pydanube.metadata.raft_service import RaftService
from pydanube.metadata.state_machine import Result, StateMachine
from pydanube.metadata.transport import Connect, Transport
from pydanube.metadata.watches import Watches, WatchLimits
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.files import Files
from pydanube.runtime.machine import Machine
from pydanube.runtime.room import describe
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.calls import Engine, HandlerTable, Server

NODE_IDS = 2**53 - 1
HAND_OVER_SECONDS = 1.0
STOP_GRACE_SECONDS = 0.5

_log = get_logger(__name__)


class RaftPlace(Struct, frozen=True, kw_only=True):
    """Where a node lives: its directory, its port, and how the others reach it."""

    directory: str
    host: str
    port: int
    address: str
    """host:port, as the other nodes know it."""
    seed_nodes: tuple[str, ...] = ()
    """Addresses of all founders, this one included; empty: the node is alone."""
    join: bool = False
    """Wait to be added to a cluster, and found none."""
    cluster_name: str = ""
    """Nodes whose clusters have other names do not talk to each other."""


class _Named(Struct, frozen=True):
    """The latest instant that a command has named, and when it was seen to."""

    time_ms: int
    seen_ms: int
    """By this node's own monotonic clock."""


class FollowerStatus(Struct, frozen=True, kw_only=True):
    """What the leader knows of another member."""

    match: int
    """How far its synced log is known to equal the leader's."""
    active: bool
    """Whether it was heard from lately."""


class RaftStatus(Struct, frozen=True, kw_only=True):
    """What a node knows of its cluster."""

    node: int
    address: str
    """Where the other nodes reach this one."""
    leader: int
    """0 while nobody is known to lead."""
    term: int
    applied: int
    committed: int
    membership: Membership
    followers: dict[int, FollowerStatus]
    """Every other member, on the leader; empty elsewhere."""


class RaftStore(MachineStore, Replicated):
    """Writes are agreed on by a majority, then applied by every node; any node takes them.

    A write returns once a majority has synced it and this node has applied it: whoever wrote
    through this node reads it here. Other nodes may still read the state before; `read_barrier`
    waits until this one has all that was acknowledged anywhere. A write that ends in Unavailable
    may happen yet. Leases are counted by the leader. Their time goes on while nobody leads, but
    none ends before the next leader has given its holder time to renew it.
    After a failed write or sync the node takes no part any more, until it is opened again.
    """

    def __init__(
        self, clock: Clock, machine: StateMachine, watches: Watches, disk: RaftDisk
    ) -> None:
        super().__init__(clock, machine, watches)
        self._lease_timer.close()
        self._clock = clock
        self._named = _Named(machine.time_ms, clock.monotonic_ms())
        self._grace_ms = 0
        self._disk = disk
        self._leading = False
        self._closing = False
        self._node: RaftNode
        self._transport: Transport
        self._forwarding: Forwarding
        self._changes: MemberChanges
        self._server: Server | None = None
        self._place: RaftPlace

    @classmethod
    async def open(
        cls,
        machine: Machine,
        tasks: TaskScope,
        engine: Engine,
        connect: Connect,
        place: RaftPlace,
        *,
        settings: NodeSettings | None = None,
        watch_limits: WatchLimits | None = None,
        table: HandlerTable | None = None,
    ) -> Self:
        """Open the node and begin to serve its port; `wait_until_ready` tells when it is in order.

        What else is in `table`, now or later, is served there, too.

        Corruption if stored bytes are damaged or missing, InvalidRequest if the directory is
        somebody else's, NotSupported if a newer version wrote it, Conflict if another process
        uses it, Unavailable if the disk fails or the port is taken.
        """
        try:
            disk = await RaftDisk.open(machine.files, place.directory)
            try:
                stored, node = await _first_or_found(machine, disk, place)
                state = StateMachine()
                state.restore(stored.snapshot.state)
                await disk.begin(node, stored)
                watches = Watches(state.revision, watch_limits or WatchLimits())
                store = cls(machine.clock, state, watches, disk)
                store._place = place
                store._assemble(machine, tasks, connect, stored, settings or NodeSettings())
                await store._serve(engine, tasks, table or HandlerTable())
            except BaseException:
                await disk.release()
                raise
        except OSError as error:
            cause = describe(error)
            raise Unavailable(f"cannot open the metadata in {place.directory}: {cause}") from error
        return store

    def _assemble(
        self,
        machine: Machine,
        tasks: TaskScope,
        connect: Connect,
        stored: Stored,
        settings: NodeSettings,
    ) -> None:
        self._grace_ms = settings.lease_grace_ms
        self._transport = Transport(
            machine.clock, tasks, connect, lambda node: self._node.report_lost(node)
        )
        self._transport.address = self._place.address
        self._transport.cluster = self._place.cluster_name
        self._node = RaftNode(
            self._disk,
            stored,
            machine.clock,
            machine.randomness,
            self._transport,
            self,
            settings,
        )
        self._forwarding = Forwarding(
            machine.clock, self._node, self._transport, self.propose_here, settings.write_ms_max
        )
        self._changes = MemberChanges(machine.clock, self._node, self._transport)

    async def _serve(self, engine: Engine, tasks: TaskScope, table: HandlerTable) -> None:
        RaftService(self, self._node, self._transport, self._changes).add_to(table)
        host, port = self._place.host, self._place.port
        try:
            self._server = await engine.serve(table, host, port)
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {host}:{port} for the other nodes: {error.strerror or error}; "
                "stop what uses it, or choose another port (broker.ports.raft)"
            ) from error
        tasks.start(self._node.run(), f"metadata node {self._node.node}")
        tasks.start(self._forwarding.run(), "metadata writes to the leader")
        tasks.start(self._forwarding.sweep(), "metadata writes in time")
        tasks.start(self._settle_in(), "metadata founding")
        self._node.start_ticking()

    async def _settle_in(self) -> None:
        """Found a cluster with the others if that is due, and keep one's address known."""
        if self._place.seed_nodes and not self._place.join:
            membership = await founding_membership(
                self._clock, self.node_info, self._transport, self._place
            )
            if membership is not None:
                self._node.found(membership)
        try:
            await self.wait_until_ready()
        except Unavailable:
            return  # Closed, or stopped, before it was of any use.
        present = self._node.raft.membership.address_of(self._node.node)
        if present is not None and present != self._place.address:
            with suppress(DanubeError):
                await self._changes.change("add", self._node.node, self._place.address)

    # What brokers and operators ask.

    @property
    def node(self) -> int:
        """This node's number, which is the broker's too."""
        return self._node.node

    @property
    def is_leader(self) -> bool:
        """Whether this node leads and knows all that earlier leaders have committed."""
        return self._leading

    @property
    def failure(self) -> Unavailable | None:
        """Why this node takes no part any more, None while all is well; for health checks."""
        return self._node.failure

    @property
    def is_alone(self) -> bool:
        """Whether this node is the only member of its cluster."""
        return not self._node.raft.membership.others(self._node.node)

    @property
    def waits_to_be_added(self) -> bool:
        """Whether it does nothing until an operator adds it to a cluster."""
        is_member = self._node.raft.membership.address_of(self._node.node) is not None
        return self._place.join and not is_member

    @property
    def writing_since_ms(self) -> int | None:
        """Since when this node is busy with one group of entries; None while it is idle."""
        return self._node.writing_since_ms

    async def give_up_lead(self, seconds: float) -> None:
        """Let another voter lead, if this node leads, works, and one is there."""
        if self._node.failure is None:
            await self._changes.hand_over(seconds)

    @property
    def waiting_for(self) -> str | None:
        """What this node has no room for, and the remedy; None while it has."""
        return self._node.waiting_for

    def status(self) -> RaftStatus:
        """Return what this node knows of its cluster."""
        raft = self._node.raft
        progress = raft.role.progress if isinstance(raft.role, Leader) else {}
        return RaftStatus(
            node=self._node.node,
            address=self._place.address,
            leader=raft.leader,
            term=raft.term,
            applied=raft.log.applied,
            committed=raft.log.committed,
            membership=raft.membership,
            followers={
                node: FollowerStatus(match=one.match, active=one.active)
                for node, one in progress.items()
                if node != self._node.node
            },
        )

    def node_info(self) -> NodeInfo:
        """Return what other nodes may know of this one."""
        raft = self._node.raft
        return NodeInfo(
            self._node.node, self._place.address, raft.term, raft.leader, raft.membership
        )

    async def wait_until_ready(self) -> None:
        """Wait until this node has a leader and everything acknowledged so far."""
        while True:
            if self._closing:
                raise Unavailable("the metadata store is closed")
            if self._node.failure is not None:
                raise Unavailable(str(self._node.failure))
            with suppress(Unavailable):
                await self._forwarding.read_barrier()
                return

    async def read_barrier(self) -> None:
        """Return when reads from here see every write that was acknowledged before the call.

        Unavailable if no majority confirms that in time.
        """
        await self._forwarding.read_barrier()

    # Each of these works on any node and is carried out by the leader. Unavailable: no leader took
    # it in time, or the answer was lost and the change may happen yet; asking again is harmless.

    async def add_member(self, node: int, address: str) -> Membership:
        """Let a node learn; returns once it has caught up. A member is given the new address.

        Conflict if the cluster is full, InvalidRequest without an id or an address, Unavailable
        if the node is a member now but has not caught up: see whether it runs, and ask again.
        """
        return await self._changes.change("add", node, address)

    async def promote(self, node: int) -> Membership:
        """Make a learner a voter; a voter stays one.

        Conflict if it has not caught up, NotFound if it is no member.
        """
        return await self._changes.change("promote", node, "")

    async def remove_member(self, node: int) -> Membership:
        """Take a voter or a learner out of the cluster; a leader hands over first.

        Conflict if it is the last voter, NotFound if it is no member.
        """
        return await self._changes.change("remove", node, "")

    async def transfer_leadership(self, node: int) -> Membership:
        """Let a voter lead; returns once it does. Conflict if it is no voter."""
        return await self._changes.change("transfer", node, "")

    @override
    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        try:
            await self._forwarding.finish()
            await self._node.finish()
            if self._node.failure is None:
                await self._changes.hand_over(HAND_OVER_SECONDS)
        finally:
            self._lease_timer.close()
            await self._forwarding.close()
            await self._node.close()
            self._watches.end(None)
            await self._transport.close()
            if self._server is not None:
                await self._server.stop(STOP_GRACE_SECONDS)
            if self._node.failure is None:
                # The mark only helps the next start to tell damage; a full disk may go without.
                with suppress(OSError):
                    await self._disk.close_in_order()
            await self._disk.release()

    # Writing.

    @override
    async def _propose(self, command: Command) -> Result:
        if self._closing:
            raise Unavailable("the metadata store is closed")
        return await self._forwarding.write(encode_command(command))

    def propose_here(self, payload: bytes) -> asyncio.Future[tuple[int, Result | None]]:
        """Append a command as the leader; NotLeader if another one leads."""
        command = decode_command(payload)
        if isinstance(command, GrantLease | RenewLease):
            # Only the leader counts time, so that clocks of others do not matter.
            payload = encode_command(replace(command, now_ms=self._now_ms()))
        return self._node.propose(payload)

    def _now_ms(self) -> int:
        """Return the instant it is at least, by what earlier leaders have said of theirs.

        An instant was named before it was applied here: no lease that is counted from then on ends
        too early. A write that this node proposes as a new leader must go by the same time as the
        timer that it is about to start.
        """
        if self._leading:
            return self._lease_timer.now_ms()
        self._note_time()
        return self._named.time_ms + self._clock.monotonic_ms() - self._named.seen_ms

    def _note_time(self) -> None:
        if self._machine.time_ms != self._named.time_ms:
            self._named = _Named(self._machine.time_ms, self._clock.monotonic_ms())

    @override
    def _propose_expiry(self, now_ms: int) -> None:
        if self._leading and not self._closing:
            with suppress(DanubeError):
                outcome = self._node.propose(encode_command(ExpireLeases(now_ms)))
                outcome.add_done_callback(_forget)

    # What the node calls.

    @override
    def apply_entry(self, entry: LogEntry) -> Result | None:
        if entry.kind is not EntryKind.COMMAND:
            return None
        return self._apply(decode_command(entry.data))

    @override
    def restore_state(self, state: bytes) -> None:
        self._machine.restore(state)
        self._watches.compact(self._machine.revision)

    @override
    def capture_state(self) -> bytes:
        return self._machine.snapshot()

    @override
    def group_applied(self) -> None:
        self._note_time()
        if self._leading:
            self._applied()

    @override
    def leading_changed(self, leading: bool) -> None:
        self._leading = False
        self._lease_timer.close()
        if leading:
            self._lease_timer = LeaseTimer(
                self._clock, self._machine, self._propose_expiry, self._now_ms(), self._grace_ms
            )
            self._lease_timer.arm()
        self._leading = leading

    @override
    def stopped(self, failure: Unavailable) -> None:
        self._lease_timer.close()
        self._forwarding.stop(str(failure))
        self._watches.end(failure)


async def _first_or_found(machine: Machine, disk: RaftDisk, place: RaftPlace) -> tuple[Stored, int]:
    """Return what the node starts with, and its number."""
    found = disk.found
    node = found.node or 1 + machine.randomness.below(NODE_IDS)
    if found.stored is not None:
        return found.stored, node
    state = await _initial_state(machine.files, place.directory)
    if place.seed_nodes or place.join:
        return nothing_stored(state), node
    return founded(Membership({node: place.address}, {}), state), node


async def _initial_state(files: Files, directory: str) -> bytes:
    return await local_state(files, directory) or StateMachine().snapshot()


def _forget(outcome: asyncio.Future[tuple[int, Result | None]]) -> None:
    """Nobody waits for it, and the lease timer tries again."""
    if not outcome.cancelled():
        outcome.exception()
