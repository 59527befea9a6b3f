"""Brings writes and linearizable reads to the leader, wherever it is."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct

from pydanube.errors import DanubeError, Overloaded, Unavailable
from pydanube.metadata.commands import MIB
from pydanube.metadata.node import RaftNode
from pydanube.metadata.raft.errors import NotLeader
from pydanube.metadata.raft_calls import (
    READ_INDEX,
    WRITE,
    Failure,
    ReadAt,
    Writes,
    Written,
    decode,
    encode,
    error_of,
)
from pydanube.metadata.state_machine import Result
from pydanube.metadata.transport import Transport
from pydanube.runtime.clock import Clock
from pydanube.wire.calls import CallRefused, StatusCode

BATCH_COMMANDS_MAX = 500
BATCH_BYTES_MAX = 4 * MIB
"""Per call; one command always passes."""
WAITING_MAX = 10_000
AGAIN_SECONDS = 0.05
SWEEP_SECONDS = 0.5

ProposeHere = Callable[[bytes], asyncio.Future[tuple[int, Result | None]]]


class _Ask(Struct, frozen=True, eq=False):
    payload: bytes
    deadline_ms: int
    outcome: asyncio.Future[Result]


class Forwarding:
    """Writes go to the core if this node leads, else to the leader, many in one call.

    Only what certainly was not done is sent again; a call that broke leaves its writes unknown.
    """

    def __init__(
        self,
        clock: Clock,
        node: RaftNode,
        transport: Transport,
        propose_here: ProposeHere,
        write_ms_max: int,
    ) -> None:
        self._clock = clock
        self._node = node
        self._transport = transport
        self._propose_here = propose_here
        self._write_ms_max = write_ms_max
        self._waiting: deque[_Ask] = deque()
        self._unanswered: dict[_Ask, None] = {}
        self._wakeup = asyncio.Event()
        self._closed = False
        self._asking: dict[asyncio.Timeout, int] = {}
        """Calls under way, and the node that is asked."""
        node.on_leader = self._give_up_on_others

    async def write(self, payload: bytes) -> Result:
        """Return a command's result once it is applied on this node."""
        if self._node.failure is not None:
            raise Unavailable(str(self._node.failure))
        if self._closed:
            raise Unavailable("the metadata store is closed")
        if self._node.raft.is_leader and not self._waiting:
            try:
                _, result = await self._propose_here(payload)
            except NotLeader:
                pass  # Nothing was done: it is leaving, or has just left.
            else:
                assert result is not None, "a command has a result"
                return result
        return await self._enqueue(payload)

    async def _enqueue(self, payload: bytes) -> Result:
        if len(self._unanswered) >= WAITING_MAX:
            raise Overloaded(f"{len(self._unanswered)} metadata writes wait for the leader")
        outcome: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        ask = _Ask(payload, self._clock.monotonic_ms() + self._write_ms_max, outcome)
        self._waiting.append(ask)
        self._unanswered[ask] = None
        self._wakeup.set()
        try:
            return await outcome
        finally:
            self._unanswered.pop(ask, None)

    async def run(self) -> None:
        """Send what waits, batch by batch, until closed."""
        try:
            while not self._closed:
                batch = self._take()
                if not batch:
                    self._wakeup.clear()
                    await self._wakeup.wait()
                elif not await self._send(batch):
                    self._waiting.extendleft(reversed(batch))
                    await self._clock.sleep(AGAIN_SECONDS)
        finally:
            self.stop("the metadata store is closed")

    async def sweep(self) -> None:
        """Tell those who have waited too long, until closed."""
        while not self._closed:
            await self._clock.sleep(SWEEP_SECONDS)
            now_ms = self._clock.monotonic_ms()
            for ask in [ask for ask in self._unanswered if ask.deadline_ms <= now_ms]:
                _fail(
                    ask,
                    Unavailable("no leader has accepted the write in time; it may still happen"),
                )

    async def read_barrier(self) -> None:
        """Wait until this node has applied all that was acknowledged before the call."""
        deadline_ms = self._clock.monotonic_ms() + self._write_ms_max
        while True:
            index = await self._read_index()
            if index is not None:
                await self._node.wait_applied(index)
                return
            if self._clock.monotonic_ms() >= deadline_ms or self._closed:
                raise Unavailable("no majority of the metadata nodes has confirmed a leader")
            await self._clock.sleep(AGAIN_SECONDS)

    async def finish(self) -> None:
        """Wait until every write has its answer."""
        waiting = [ask.outcome for ask in self._unanswered]
        if waiting:
            await asyncio.wait(waiting)

    async def close(self) -> None:
        """Send no more."""
        self.stop("the metadata store is closed")

    def stop(self, reason: str) -> None:
        """Send no more, and tell those who wait."""
        self._closed = True
        self._wakeup.set()
        for ask in list(self._unanswered):
            _fail(ask, Unavailable(reason))

    def _take(self) -> list[_Ask]:
        batch: list[_Ask] = []
        size = 0
        while self._waiting and len(batch) < BATCH_COMMANDS_MAX:
            size += len(self._waiting[0].payload)
            if batch and size > BATCH_BYTES_MAX:
                break
            ask = self._waiting.popleft()
            if not ask.outcome.done():
                batch.append(ask)
        return batch

    async def _send(self, batch: Sequence[_Ask]) -> bool:
        """Return whether the batch was taken, whatever became of it."""
        raft = self._node.raft
        if raft.is_leader:
            return await self._write_here(batch)
        address = self._transport.address_of(raft.leader)
        if address is None:
            return False
        request = encode(Writes([ask.payload for ask in batch]))
        try:
            written = decode(await self._ask(raft.leader, address, WRITE, request), Written)
        except CallRefused as refused:
            _fail_all(batch, Unavailable(f"the leader at {address} did not answer: {refused}"))
            return True
        if written.leader is not None:
            return False
        try:
            await self._node.wait_applied(written.index)
        except Unavailable as error:
            _fail_all(batch, error)
        for ask, outcome in zip(batch, written.outcomes, strict=True):
            _settle(ask, outcome)
        return True

    async def _ask(self, leader: int, address: str, path: str, request: bytes) -> bytes:
        """Call the leader; CallRefused also once another node leads.

        A leader that was cut off answers nothing, and its connections stay open for long.
        """
        try:
            async with asyncio.timeout(None) as patience:
                self._asking[patience] = leader
                try:
                    return await self._transport.call(
                        address, path, request, timeout_seconds=self._write_ms_max / 1000
                    )
                finally:
                    self._asking.pop(patience, None)
        except TimeoutError:
            reason = "another leader was elected meanwhile; a write may happen yet"
            raise CallRefused(StatusCode.UNAVAILABLE, reason) from None

    def _give_up_on_others(self) -> None:
        leader = self._node.raft.leader
        for patience in [each for each, asked in self._asking.items() if asked != leader]:
            del self._asking[patience]
            patience.reschedule(asyncio.get_running_loop().time())

    async def _write_here(self, batch: Sequence[_Ask]) -> bool:
        for ask in batch:
            try:
                _, result = await self._propose_here(ask.payload)
            except NotLeader:
                if ask is batch[0]:
                    return False
                _fail(ask, Unavailable("the leader has just changed; try again"))
            except DanubeError as error:
                _fail(ask, error)
            else:
                assert result is not None, "a command has a result"
                _settle(ask, result)
        return True

    async def _read_index(self) -> int | None:
        """Return what the leader says; None if there is no leader, or it does not answer."""
        raft = self._node.raft
        if raft.is_leader:
            try:
                return await self._node.read_index()
            except NotLeader:
                return None
        address = self._transport.address_of(raft.leader)
        if address is None:
            return None
        try:
            reply = await self._ask(raft.leader, address, READ_INDEX, b"")
        except CallRefused:
            return None
        answer = decode(reply, ReadAt)
        return answer.index if answer.leader is None else None


def _settle(ask: _Ask, outcome: Result | Failure) -> None:
    if isinstance(outcome, Failure):
        _fail(ask, error_of(outcome))
    elif not ask.outcome.done():
        ask.outcome.set_result(outcome)


def _fail(ask: _Ask, error: DanubeError) -> None:
    if not ask.outcome.done():
        ask.outcome.set_exception(error)


def _fail_all(batch: Sequence[_Ask], error: DanubeError) -> None:
    for ask in batch:
        _fail(ask, type(error)(str(error)))
