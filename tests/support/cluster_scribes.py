"""Clients of a simulated cluster's metadata, and whether what they saw has one order."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from pydanube.errors import Conflict, DanubeError
from pydanube.metadata.raft_store import RaftStore
from pydanube.metadata.store import Expect, Put
from pydanube.runtime.randomness import Randomness
from tests.support.checkers import Violation
from tests.support.linearizability import READ, SWAP, WRITE, Operation, Undecided, is_linearizable
from tests.support.plans import pick

KEYS = ("/simulated/a", "/simulated/b")
PATIENCE_SECONDS = 4.0
OPERATIONS_MAX = 60
"""Per key: what a search can decide."""


class Scribes:
    """Write, read and swap values of a few keys, each time through some broker.

    A write without an answer, or with an error that leaves it open, may happen at any time later.
    """

    def __init__(
        self,
        stores: Callable[[], list[RaftStore]],
        randomness: Randomness,
        note: Callable[[str], None],
    ) -> None:
        self._stores = stores
        self._randomness = randomness
        self._note = note
        self._histories: dict[str, list[Operation]] = {key: [] for key in KEYS}
        self._moments = 0
        self._values = 0
        self.decided = 0
        self.undecided = 0

    def _now(self) -> int:
        self._moments += 1
        return self._moments

    async def run(self) -> None:
        """Work until cancelled, or until there is enough to look at."""
        while True:
            await asyncio.sleep(self._randomness.uniform(0.0, 0.6))
            key = pick(self._randomness, KEYS)
            stores = self._stores()
            if stores and len(self._histories[key]) < OPERATIONS_MAX:
                await self._one(key, pick(self._randomness, stores))

    async def read_all(self) -> None:
        """Read every key once more: what was lost in the end is seen by that."""
        for key in KEYS:
            while not await self._read(key, pick(self._randomness, self._stores())):
                await asyncio.sleep(0.3)

    async def _one(self, key: str, store: RaftStore) -> None:
        match self._randomness.below(4):
            case 0:
                await self._write(key, store)
            case 1:
                await self._swap(key, store)
            case _:
                await self._read(key, store)

    async def _read(self, key: str, store: RaftStore) -> bool:
        operation = Operation(READ, None, self._now())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await store.read_barrier()
        except (DanubeError, TimeoutError):
            return False
        entry = store.get(key)
        operation.value = entry.value if entry is not None else None
        self._done(key, operation)
        self._histories[key].append(operation)
        return True

    async def _write(self, key: str, store: RaftStore) -> None:
        await self._transact(key, store, Operation(WRITE, self._value(), self._now()), [])

    async def _swap(self, key: str, store: RaftStore) -> None:
        entry = store.get(key)
        revision, expected = (entry.revision, entry.value) if entry is not None else (0, None)
        operation = Operation(SWAP, self._value(), self._now(), expected=expected)
        await self._transact(key, store, operation, [Expect(key, revision)])

    async def _transact(
        self, key: str, store: RaftStore, operation: Operation, conditions: list[Expect]
    ) -> None:
        self._histories[key].append(operation)
        value: Any = operation.value
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await store.transact(conditions, [Put(key, value)])
        except Conflict:
            operation.happened = False
        except (DanubeError, TimeoutError):
            return
        self._done(key, operation)

    def _value(self) -> bytes:
        self._values += 1
        return b"%d" % self._values

    def _done(self, key: str, operation: Operation) -> None:
        operation.ended = self._now()
        self._note(f"metadata: {operation.kind} of {key}, {operation.value!r}")

    def violations(self) -> Iterator[Violation]:
        """Return which keys have a history that no order explains."""
        for key, history in self._histories.items():
            try:
                holds = is_linearizable(history)
            except Undecided:
                self.undecided += 1
                continue
            self.decided += 1
            if not holds:
                lines = "\n".join(map(str, history))
                yield Violation("not linearizable", f"the history of {key}:\n{lines}")
