"""What every store over a state machine has in common: all but the way commands are agreed on."""

from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import assert_never

from typing_extensions import override

from pydanube.errors import Conflict, NotFound, Overloaded
from pydanube.metadata.commands import (
    Command,
    GrantLease,
    Leap,
    NextId,
    RenewLease,
    RevokeLease,
    Transact,
    check_command,
    check_key,
    check_prefix,
)
from pydanube.metadata.leases import LeaseTimer
from pydanube.metadata.state_machine import (
    Allotted,
    Applied,
    ConditionFailed,
    LeaseUnknown,
    Result,
    StateMachine,
)
from pydanube.metadata.store import Change, Delete, Entry, Expect, MetadataStore, Operation, Put
from pydanube.metadata.watches import Watches
from pydanube.runtime.clock import Clock

LEASES_MAX = 10_000


class MachineStore(MetadataStore):
    """Reads from the state machine, and writes by proposing commands to it.

    A subclass logs or replicates what `_propose` is given, then calls `_apply` for each command
    in the agreed order and `_applied` after the last of a group.
    """

    def __init__(self, clock: Clock, machine: StateMachine, watches: Watches) -> None:
        self._machine = machine
        self._watches = watches
        self._lease_timer = LeaseTimer(clock, machine, self._propose_expiry)

    @abstractmethod
    async def _propose(self, command: Command) -> Result:
        """Return the command's result once it is durable and applied; Unavailable if it fails."""

    @abstractmethod
    def _propose_expiry(self, now_ms: int) -> None:
        """Propose ExpireLeases, and wait for nothing."""

    def _apply(self, command: Command) -> Result:
        result, changes = self._machine.apply(command)
        self._watches.publish(changes)
        return result

    def _applied(self) -> None:
        self._lease_timer.arm()

    @property
    @override
    def revision(self) -> int:
        return self._machine.revision

    @override
    def get(self, key: str) -> Entry | None:
        return self._machine.get(check_key(key))

    @override
    def list(self, prefix: str) -> list[Entry]:
        return self._machine.entries_below(check_prefix(prefix))

    @override
    async def put(self, key: str, value: bytes, *, lease: int | None = None) -> int:
        return await self.transact([], [Put(key, value, lease)])

    @override
    async def delete(self, key: str) -> int:
        return await self.transact([], [Delete(key)])

    @override
    async def compare_and_swap(self, key: str, expected_revision: int, value: bytes) -> int:
        return await self.transact([Expect(key, expected_revision)], [Put(key, value)])

    @override
    async def transact(self, conditions: Sequence[Expect], operations: Sequence[Operation]) -> int:
        return _number_of(await self._ask(Transact(tuple(conditions), tuple(operations))))

    @override
    async def next_id(self, counter_key: str) -> int:
        return _number_of(await self._ask(NextId(counter_key)))

    def capture(self) -> bytes:
        """Return the whole state at this moment, as a snapshot of the state machine."""
        return self._machine.snapshot()

    @override
    async def leap(self, revision: int, counters: Mapping[str, int]) -> None:
        _number_of(await self._ask(Leap(revision, tuple(sorted(counters.items())))))

    @override
    def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Change]:
        return self._watches.watch(prefix, after_revision)

    @override
    async def grant_lease(self, ttl_ms: int) -> int:
        if self._machine.lease_count >= LEASES_MAX:
            raise Overloaded(f"there are {LEASES_MAX} leases; wait until some of them end")
        return _number_of(await self._ask(GrantLease(ttl_ms, self._lease_timer.now_ms())))

    @override
    async def renew_lease(self, lease: int) -> None:
        _number_of(await self._ask(RenewLease(lease, self._lease_timer.now_ms())))

    @override
    async def revoke_lease(self, lease: int) -> None:
        _number_of(await self._ask(RevokeLease(lease)))

    async def _ask(self, command: Command) -> Result:
        check_command(command)
        return await self._propose(command)


def _number_of(result: Result) -> int:
    """Return the revision or the number that a command gave, or raise what it refused."""
    match result:
        case Applied(revision):
            return revision
        case Allotted(number):
            return number
        case ConditionFailed(key, expected, found):
            raise Conflict(
                f"{key} is {describe_revision(found)}, the request expects it to be "
                f"{describe_revision(expected)}"
            )
        case LeaseUnknown(lease):
            raise NotFound(f"lease {lease} does not exist, or has expired: ask for a new one")
        case _:
            assert_never(result)


def describe_revision(revision: int) -> str:
    """Say what a revision means to whoever expects another one."""
    return f"at revision {revision}" if revision else "absent"
