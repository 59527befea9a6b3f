"""Adds, promotes and removes nodes, and hands leadership over: at the leader, wherever it is."""

from pydanube.errors import Conflict, DanubeError, InvalidRequest, Unavailable
from pydanube.metadata.node import RaftNode
from pydanube.metadata.raft.errors import NotLeader
from pydanube.metadata.raft.leader import Leader
from pydanube.metadata.raft.membership import Membership
from pydanube.metadata.raft_calls import (
    CHANGE,
    Changed,
    ChangeMembers,
    decode,
    encode,
    error_of,
    failure_of,
)
from pydanube.metadata.transport import Transport
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock
from pydanube.wire.calls import CallRefused

CHANGE_SECONDS = 30.0
AGAIN_SECONDS = 0.1
CONFLICTS_MAX = 50

_log = get_logger(__name__)


class MemberChanges:
    """One change after another. A change that ends in Unavailable may happen yet."""

    def __init__(self, clock: Clock, node: RaftNode, transport: Transport) -> None:
        self._clock = clock
        self._node = node
        self._transport = transport

    async def change(self, verb: str, node: int, address: str) -> Membership:
        """Carry a change out, here or at the leader; return the members after it."""
        deadline_ms = self._clock.monotonic_ms() + int(CHANGE_SECONDS * 1000)
        while True:
            changed = await self._attempt(ChangeMembers(verb, node, address))
            if changed.failure is not None:
                raise error_of(changed.failure)
            if changed.membership is not None:
                return changed.membership
            if self._clock.monotonic_ms() >= deadline_ms:
                raise Unavailable(f"no leader has taken the change ({verb} {node}); try again")
            await self._clock.sleep(AGAIN_SECONDS)

    async def _attempt(self, request: ChangeMembers) -> Changed:
        raft = self._node.raft
        if raft.is_leader:
            return await self.change_here(request)
        address = self._transport.address_of(raft.leader)
        if address is None:
            return Changed(raft.leader, None, None)
        try:
            reply = await self._transport.call(
                address, CHANGE, encode(request), timeout_seconds=CHANGE_SECONDS
            )
        except CallRefused as refused:
            raise Unavailable(f"the leader at {address} did not answer: {refused}") from refused
        return decode(reply, Changed)

    async def change_here(self, request: ChangeMembers) -> Changed:
        """Carry a change out as the leader."""
        try:
            if request.verb == "transfer" or (
                request.verb == "remove" and request.node == self._node.node
            ):
                await self._leave_lead(request)
                if request.verb == "remove" and not self._node.raft.is_leader:
                    return Changed(self._node.raft.leader, None, None)
            else:
                await self._propose(request)
        except NotLeader as error:
            return Changed(error.leader, None, None)
        except DanubeError as error:
            return Changed(None, None, failure_of(error))
        return Changed(None, self._node.raft.membership, None)

    async def _leave_lead(self, request: ChangeMembers) -> None:
        raft = self._node.raft
        if request.verb == "transfer":
            if request.node != self._node.node:
                await self._transfer(request.node)
            return
        raft.membership.without(self._node.node)
        successor = self._most_advanced()
        if successor is None:
            raise Conflict(f"node {self._node.node} is the last voter and cannot be removed")
        await self._transfer(successor)

    async def _transfer(self, to: int) -> None:
        self._node.transfer(to)
        for _ in range(CONFLICTS_MAX):
            await self._clock.sleep(AGAIN_SECONDS)
            if self._node.raft.leader == to:
                return
            if self._node.raft.is_leader and not self._is_transferring():
                self._node.transfer(to)
        raise Unavailable(f"node {to} has not become the leader; check that it runs")

    def _is_transferring(self) -> bool:
        role = self._node.raft.role
        return isinstance(role, Leader) and role.transferring_to != 0

    async def _propose(self, request: ChangeMembers) -> None:
        for attempt in range(CONFLICTS_MAX):
            wanted = self._wanted(request)
            if wanted == self._node.raft.membership:
                break
            try:
                await self._node.change_members(wanted)
            except Conflict:
                if attempt == CONFLICTS_MAX - 1:
                    raise
                await self._clock.sleep(AGAIN_SECONDS)
            else:
                _log.info("the members have changed", verb=request.verb, node=request.node)
                break
        if request.verb == "add":
            await self._wait_caught_up(request.node)

    def _wanted(self, request: ChangeMembers) -> Membership:
        members = self._node.raft.membership
        match request.verb:
            case "add":
                return members.with_member(request.node, request.address)
            case "promote":
                return members.with_voter(request.node)
            case "remove":
                return members.without(request.node)
            case verb:
                raise InvalidRequest(f"members are added, promoted or removed, not {verb!r}")

    async def _wait_caught_up(self, node: int) -> None:
        target = self._node.raft.log.committed
        deadline_ms = self._clock.monotonic_ms() + int(CHANGE_SECONDS * 1000) // 2
        while self._clock.monotonic_ms() < deadline_ms:
            role = self._node.raft.role
            if not isinstance(role, Leader) or node == self._node.node:
                return
            progress = role.progress.get(node)
            if progress is None or progress.match >= target:
                return
            await self._clock.sleep(AGAIN_SECONDS)
        raise Unavailable(f"node {node} is a member now but has not caught up; check that it runs")

    def _most_advanced(self) -> int | None:
        raft = self._node.raft
        if not isinstance(raft.role, Leader):
            return None
        matches = {
            node: progress.match
            for node, progress in raft.role.progress.items()
            if node in raft.membership.voters and progress.active
        }
        return max(matches, key=lambda node: (matches[node], node), default=None)

    async def hand_over(self, seconds: float) -> None:
        """Let another voter lead before this node goes, if it leads and one is well."""
        successor = self._most_advanced()
        if successor is None:
            return
        self._node.transfer(successor)
        deadline_ms = self._clock.monotonic_ms() + int(seconds * 1000)
        while self._node.raft.is_leader and self._clock.monotonic_ms() < deadline_ms:
            await self._clock.sleep(AGAIN_SECONDS / 10)
