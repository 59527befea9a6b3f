"""What a node answers on its Raft port."""

import asyncio
from typing import Protocol

from pydanube.errors import DanubeError
from pydanube.metadata.member_changes import MemberChanges
from pydanube.metadata.node import RaftNode
from pydanube.metadata.raft.errors import NotLeader
from pydanube.metadata.raft_calls import (
    CHANGE,
    MESSAGES,
    NODE_INFO,
    READ_INDEX,
    SNAPSHOT,
    WRITE,
    ChangeMembers,
    Failure,
    Letters,
    NodeInfo,
    ReadAt,
    SnapshotPiece,
    Writes,
    Written,
    decode,
    encode,
    failure_of,
    open_envelope,
)
from pydanube.metadata.state_machine import Result
from pydanube.metadata.transport import SnapshotPieces, Transport
from pydanube.observability.logging import get_logger
from pydanube.wire.calls import Call, CallRefused, HandlerTable, Reply, StatusCode

_log = get_logger(__name__)


class Proposer(Protocol):
    """Who takes commands as the leader, and says who this node is."""

    def propose_here(self, payload: bytes) -> asyncio.Future[tuple[int, Result | None]]:
        """Append a command as the leader; NotLeader if another one leads."""

    def node_info(self) -> NodeInfo:
        """Return what other nodes may know of this one."""


class RaftService:
    """Translates calls of other nodes, hands them on, translates back."""

    def __init__(
        self, store: Proposer, node: RaftNode, transport: Transport, changes: MemberChanges
    ) -> None:
        self._store = store
        self._node = node
        self._transport = transport
        self._changes = changes
        self._pieces = SnapshotPieces()
        self._strangers_told = False
        """Whether the log says that somebody from elsewhere calls: once, for they go on."""

    def add_to(self, table: HandlerTable) -> None:
        """Serve all that nodes ask of each other."""
        table.add_direct(MESSAGES, self._messages)
        table.add_unary(SNAPSHOT, self._snapshot)
        table.add_unary(NODE_INFO, self._node_info)
        table.add_unary(WRITE, self._write)
        table.add_unary(READ_INDEX, self._read_index)
        table.add_unary(CHANGE, self._change)

    def _opened(self, request: bytes, call: Call) -> bytes:
        """Return what was asked, if the caller belongs to this cluster."""
        try:
            return open_envelope(request, self._transport.cluster)
        except CallRefused as refused:
            if not self._strangers_told:
                _log.warning(
                    "refused a call from outside the cluster", peer=call.peer, why=refused.text
                )
            self._strangers_told = True
            raise

    def _messages(self, request: bytes, call: Call, reply: Reply) -> None:
        try:
            letters = decode(self._opened(request, call), Letters)
        except CallRefused as refused:
            reply.refuse(refused.code, refused.text)
            return
        if letters.messages:
            self._transport.meet(letters.messages[0].sender, letters.address)
        self._node.receive(letters.messages)
        reply.send(b"")

    async def _snapshot(self, request: bytes, call: Call) -> bytes:
        piece = decode(self._opened(request, call), SnapshotPiece)
        self._transport.meet(piece.sender, piece.address)
        try:
            message = self._pieces.add(piece)
        except ValueError as error:
            raise CallRefused(StatusCode.FAILED_PRECONDITION, str(error)) from error
        if message is not None:
            self._node.receive([message])
        return b""

    async def _node_info(self, request: bytes, call: Call) -> bytes:
        self._opened(request, call)
        return encode(self._store.node_info())

    async def _write(self, request: bytes, call: Call) -> bytes:
        writes = decode(self._opened(request, call), Writes)
        proposed: list[asyncio.Future[tuple[int, Result | None]] | Failure] = []
        for command in writes.commands:
            try:
                appended = self._store.propose_here(command)
                appended.add_done_callback(_look_at)
                proposed.append(appended)
            except NotLeader as error:
                if not proposed:
                    return encode(Written(error.leader, 0, []))
                proposed.append(failure_of(error))
            except DanubeError as error:
                proposed.append(failure_of(error))
        outcomes = []
        last = 0
        for one in proposed:
            index, outcome = (0, one) if isinstance(one, Failure) else await _outcome(one)
            last = max(last, index)
            outcomes.append(outcome)
        return encode(Written(None, last, outcomes))

    async def _read_index(self, request: bytes, call: Call) -> bytes:
        self._opened(request, call)
        try:
            return encode(ReadAt(None, await self._node.read_index()))
        except NotLeader as error:
            return encode(ReadAt(error.leader, 0))
        except DanubeError as error:
            raise CallRefused(StatusCode.UNAVAILABLE, str(error)) from error

    async def _change(self, request: bytes, call: Call) -> bytes:
        return encode(
            await self._changes.change_here(decode(self._opened(request, call), ChangeMembers))
        )


def _look_at(outcome: asyncio.Future[tuple[int, Result | None]]) -> None:
    """Keep a failure from being reported as unseen: whoever asked may have gone meanwhile."""
    if not outcome.cancelled():
        outcome.exception()


async def _outcome(
    proposed: asyncio.Future[tuple[int, Result | None]],
) -> tuple[int, Result | Failure]:
    try:
        index, result = await proposed
    except DanubeError as error:
        return 0, failure_of(error)
    assert result is not None, "a command has a result"
    return index, result
