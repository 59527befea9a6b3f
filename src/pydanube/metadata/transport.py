"""Carries messages between Raft nodes: in order while they arrive, lost when they do not."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from pydanube.metadata.raft.entries import Snapshot
from pydanube.metadata.raft.membership import Membership
from pydanube.metadata.raft.messages import Append, InstallSnapshot, Message
from pydanube.metadata.raft.settings import MIB
from pydanube.metadata.raft_calls import (
    MESSAGES,
    SNAPSHOT,
    Letters,
    SnapshotPiece,
    encode,
    envelope,
)
from pydanube.observability.logging import get_logger
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import TaskScope
from pydanube.wire.calls import CallRefused, Channel
from pydanube.wire.http2.limits import Http2Limits

CALL_SECONDS = 2.0
PAUSE_SECONDS = 0.1
"""Between attempts to reach a node that was not reached."""
PIECE_BYTES = MIB
LETTER_BYTES_MAX = 4 * MIB
"""Per call; one message always passes."""
RAFT_LIMITS = Http2Limits(message_bytes_max=72 * MIB, request_bytes_buffered_max=128 * MIB)
"""For the engine that serves the Raft port: the largest transaction and the largest batch pass."""
LETTERS_MAX = 1_000
WAITING_MAX = 4_096
STRANGERS_MAX = 256
SNAPSHOT_BYTES_MAX = 1024 * MIB

_log = get_logger(__name__)

Connect = Callable[[str], Channel]
"""Makes a channel to an address, host:port."""


class Transport:
    """One sender per node. What cannot be sent is dropped, and the node is told so."""

    def __init__(
        self, clock: Clock, tasks: TaskScope, connect: Connect, lost: Callable[[int], None]
    ) -> None:
        self._clock = clock
        self._tasks = tasks
        self._connect = connect
        self._lost = lost
        self._senders: dict[str, _Sender] = {}
        self._strangers: dict[int, str] = {}
        self._membership = Membership({}, {})
        self.address = ""
        self.cluster = ""
        """Its name goes with every request: nodes of another cluster take none of them."""
        self._closed = False

    def set_members(self, membership: Membership) -> None:
        """Know where the members are; whoever left is not written to any more."""
        self._membership = membership
        known = {*membership.voters.values(), *membership.learners.values()}
        known |= set(self._strangers.values())
        for address in [address for address in self._senders if address not in known]:
            self._tasks.start(self._senders.pop(address).close(), f"leave {address}")

    def meet(self, node: int, address: str) -> None:
        """Note where a node said it is that may not be a member yet."""
        if node not in self._strangers and len(self._strangers) >= STRANGERS_MAX:
            self._strangers.pop(next(iter(self._strangers)))
        self._strangers[node] = address

    def address_of(self, node: int) -> str | None:
        """Return where a node is reached."""
        return self._membership.address_of(node) or self._strangers.get(node)

    async def call(
        self, address: str, path: str, request: bytes, *, timeout_seconds: float
    ) -> bytes:
        """Ask the node at an address and return its answer; raises CallRefused."""
        return await self._sender(address).channel.unary(
            path, envelope(self.cluster, request), timeout_seconds=timeout_seconds
        )

    def send(self, messages: Sequence[Message]) -> None:
        """Put messages on their way."""
        if self._closed:
            return
        for message in messages:
            address = self.address_of(message.to)
            if address is not None:
                self._sender(address).put(message)

    def _sender(self, address: str) -> "_Sender":
        sender = self._senders.get(address)
        if sender is None:
            sender = _Sender(self._clock, self._connect(address), address, self._lost)
            sender.own_address = self.address
            sender.cluster = self.cluster
            self._senders[address] = sender
            self._tasks.start(sender.run(), f"raft messages to {address}")
        return sender

    async def close(self) -> None:
        """Let go of all channels."""
        self._closed = True
        for sender in list(self._senders.values()):
            await sender.close()


class _Sender:
    """Sends to one address, one call at a time: what gathers meanwhile shares the next."""

    def __init__(
        self, clock: Clock, channel: Channel, address: str, lost: Callable[[int], None]
    ) -> None:
        self.channel = channel
        self.own_address = ""
        self.cluster = ""
        self._clock = clock
        self._address = address
        self._lost = lost
        self._waiting: deque[Message] = deque()
        self._snapshot: InstallSnapshot | None = None
        self._wakeup = asyncio.Event()
        self._reachable = True
        self._closed = False

    def put(self, message: Message) -> None:
        """Queue a message; with too many waiting, the oldest is lost."""
        if isinstance(message, InstallSnapshot):
            self._snapshot = message
        else:
            if len(self._waiting) >= WAITING_MAX:
                self._lost(self._waiting.popleft().to)
            self._waiting.append(message)
        self._wakeup.set()

    async def run(self) -> None:
        """Send until closed."""
        while not self._closed:
            if self._waiting:
                await self._send_letters()
            elif self._snapshot is not None:
                snapshot, self._snapshot = self._snapshot, None
                await self._send_snapshot(snapshot)
            else:
                self._wakeup.clear()
                await self._wakeup.wait()

    async def _send_letters(self) -> bool:
        letters: list[Message] = []
        size = 0
        while self._waiting and len(letters) < LETTERS_MAX:
            size += _size(self._waiting[0])
            if letters and size > LETTER_BYTES_MAX:
                break
            letters.append(self._waiting.popleft())
        return await self._call(MESSAGES, encode(Letters(self.own_address, letters)), letters[0].to)

    async def _send_snapshot(self, message: InstallSnapshot) -> None:
        snapshot = message.snapshot
        for start in range(0, len(snapshot.state) or 1, PIECE_BYTES):
            piece = _piece(self.own_address, message, snapshot, start)
            if not await self._call(SNAPSHOT, encode(piece), message.to):
                return
            # Heartbeats must not wait for a large state.
            if self._waiting and not await self._send_letters():
                return

    async def _call(self, path: str, request: bytes, to: int) -> bool:
        try:
            await self.channel.unary(
                path, envelope(self.cluster, request), timeout_seconds=CALL_SECONDS
            )
        except CallRefused as refused:
            if self._closed:
                return False
            if self._reachable:
                _log.warning("a node is unreachable", address=self._address, error=str(refused))
            self._reachable = False
            # What waited meanwhile is old, and may be a lot.
            self._waiting.clear()
            self._lost(to)
            await self._clock.sleep(PAUSE_SECONDS)
            return False
        if not self._reachable:
            _log.info("a node is reachable again", address=self._address)
        self._reachable = True
        return True

    async def close(self) -> None:
        self._closed = True
        self._wakeup.set()
        await self.channel.close()


def _size(message: Message) -> int:
    return sum(entry.size for entry in message.entries) if isinstance(message, Append) else 0


def _piece(address: str, message: InstallSnapshot, snapshot: Snapshot, start: int) -> SnapshotPiece:
    return SnapshotPiece(
        address,
        message.term,
        message.sender,
        message.to,
        snapshot.index,
        snapshot.term,
        snapshot.membership,
        len(snapshot.state),
        start,
        snapshot.state[start : start + PIECE_BYTES],
    )


class SnapshotPieces:
    """Puts pieces together. One snapshot at a time: another one begins anew."""

    def __init__(self) -> None:
        self._key: tuple[int, int, int, int] | None = None
        self._state = bytearray()

    def add(self, piece: SnapshotPiece) -> InstallSnapshot | None:
        """Take a piece; return the message once it is whole. ValueError if pieces are missing."""
        key = (piece.sender, piece.message_term, piece.index, piece.size)
        if piece.size > SNAPSHOT_BYTES_MAX:
            raise ValueError(f"a snapshot of {piece.size} bytes exceeds {SNAPSHOT_BYTES_MAX}")
        if piece.start == 0:
            self._key, self._state = key, bytearray()
        if self._key != key or len(self._state) != piece.start:
            self._key, self._state = None, bytearray()
            raise ValueError("pieces of the snapshot are missing")
        self._state += piece.data
        if len(self._state) < piece.size:
            return None
        state = bytes(self._state)
        self._key, self._state = None, bytearray()
        snapshot = Snapshot(piece.index, piece.term, piece.membership, state)
        return InstallSnapshot(piece.message_term, piece.sender, piece.to, snapshot)
