"""The state of the metadata, and what each command does to it.

Pure: the same commands give the same state, the same results and the same snapshot bytes, on any
machine, whichever backend logs or replicates them.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise
from typing import assert_never

import msgspec
from msgspec import Struct

from pydanube.errors import Corruption
from pydanube.metadata.commands import (
    Command,
    ExpireLeases,
    GrantLease,
    Leap,
    NextId,
    RenewLease,
    RevokeLease,
    Transact,
)
from pydanube.metadata.store import Change, Delete, Entry, Expect, Operation, Put

SNAPSHOT_VERSION = 1


class Applied(Struct, frozen=True, tag="applied"):
    """Done; the state is now at this revision."""

    revision: int


class Allotted(Struct, frozen=True, tag="allotted"):
    """Done; this is the counter's or the lease's number."""

    number: int


class ConditionFailed(Struct, frozen=True, tag="condition_failed"):
    """Nothing was done: the key has another revision than expected (0: absent)."""

    key: str
    expected: int
    found: int


class LeaseUnknown(Struct, frozen=True, tag="lease_unknown"):
    """Nothing was done: there is no such lease, or no longer."""

    lease: int


Result = Applied | Allotted | ConditionFailed | LeaseUnknown


class _Lease(Struct):
    ttl_ms: int
    expires_at_ms: int
    keys: set[str]


class _Snapshot(Struct, array_like=True, frozen=True):
    """Everything, in one order only, so that equal states have equal bytes."""

    version: int
    revision: int
    time_ms: int
    last_lease: int
    entries: list[tuple[str, bytes, int, int | None]]
    counters: list[tuple[str, int]]
    leases: list[tuple[int, int, int]]


class StateMachine:
    """Applies commands one after another.

    Each command is one change: it takes effect wholly or not at all, and raises the revision by
    one if it changed a key. A command that changes no key leaves the revision alone. Commands
    have been checked before they were logged; `apply` never refuses one for its form.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._revision = 0
        self._time_ms = 0
        self._last_lease = 0
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []
        self._counters: dict[str, int] = {}
        self._leases: dict[int, _Lease] = {}
        self._lease_of: dict[str, int] = {}

    @property
    def revision(self) -> int:
        """The revision of the last change."""
        return self._revision

    @property
    def time_ms(self) -> int:
        """The latest instant any command has named; time never goes back behind it."""
        return self._time_ms

    @property
    def lease_count(self) -> int:
        """How many leases are alive."""
        return len(self._leases)

    def leases(self) -> list[int]:
        """Return the numbers of all leases that are alive."""
        return sorted(self._leases)

    def counters(self) -> dict[str, int]:
        """Return the last number of every counter."""
        return dict(self._counters)

    def next_expiry_ms(self) -> int | None:
        """Return the instant at which the first lease expires, None without leases."""
        return min((lease.expires_at_ms for lease in self._leases.values()), default=None)

    def get(self, key: str) -> Entry | None:
        """Return the key's entry."""
        return self._entries.get(key)

    def entries_below(self, prefix: str) -> list[Entry]:
        """Return the entries below a prefix that ends in "/", sorted by key."""
        first = bisect_left(self._keys, prefix)
        # "0" follows "/" in the order of characters: what lies below the prefix ends there.
        end = bisect_left(self._keys, prefix[:-1] + "0", first)
        return [self._entries[key] for key in self._keys[first:end]]

    def apply(self, command: Command) -> tuple[Result, list[Change]]:
        """Carry out one command; return its result and the changes to tell watches."""
        match command:
            case Transact(conditions, operations):
                return self._transact(conditions, operations)
            case NextId(counter_key):
                number = self._counters.get(counter_key, 0) + 1
                self._counters[counter_key] = number
                return Allotted(number), []
            case GrantLease(ttl_ms, now_ms):
                self._last_lease += 1
                expires_at_ms = self._move_time(now_ms) + ttl_ms
                self._leases[self._last_lease] = _Lease(ttl_ms, expires_at_ms, set())
                return Allotted(self._last_lease), []
            case RenewLease(number, now_ms):
                lease = self._leases.get(number)
                if lease is None:
                    return LeaseUnknown(number), []
                lease.expires_at_ms = self._move_time(now_ms) + lease.ttl_ms
                return Applied(self._revision), []
            case RevokeLease(number):
                if number not in self._leases:
                    return LeaseUnknown(number), []
                return self._end_leases([number])
            case ExpireLeases(now_ms):
                return self._expire(self._move_time(now_ms))
            case Leap(revision, counters):
                return self._leap(revision, counters)
            case _:
                assert_never(command)

    def _move_time(self, now_ms: int) -> int:
        # Whoever proposes may have a clock behind the one that proposed before.
        self._time_ms = max(self._time_ms, now_ms)
        return self._time_ms

    def _transact(
        self, conditions: Sequence[Expect], operations: Sequence[Operation]
    ) -> tuple[Result, list[Change]]:
        for condition in conditions:
            entry = self._entries.get(condition.key)
            found = entry.revision if entry else 0
            if found != condition.revision:
                return ConditionFailed(condition.key, condition.revision, found), []
        for operation in operations:
            lease = operation.lease if isinstance(operation, Put) else None
            if lease is not None and lease not in self._leases:
                return LeaseUnknown(lease), []
        revision = self._revision + 1
        changes: list[Change] = []
        for operation in operations:
            match operation:
                case Put(key, value, lease):
                    self._write(Entry(key, value, revision), lease)
                    changes.append(Change(key, value, revision))
                case Delete(key):
                    if self._remove(key):
                        changes.append(Change(key, None, revision))
                case _:
                    assert_never(operation)
        return self._commit(changes), changes

    def _leap(
        self, revision: int, counters: Sequence[tuple[str, int]]
    ) -> tuple[Result, list[Change]]:
        self._revision = max(self._revision, revision)
        for key, number in counters:
            self._counters[key] = max(self._counters.get(key, 0), number)
        return Applied(self._revision), []

    def _expire(self, now_ms: int) -> tuple[Result, list[Change]]:
        return self._end_leases(
            [number for number, lease in self._leases.items() if lease.expires_at_ms <= now_ms]
        )

    def _end_leases(self, numbers: Sequence[int]) -> tuple[Result, list[Change]]:
        keys = sorted(key for number in numbers for key in self._leases[number].keys)
        for key in keys:
            self._remove(key)
        for number in numbers:
            del self._leases[number]
        changes = [Change(key, None, self._revision + 1) for key in keys]
        return self._commit(changes), changes

    def _commit(self, changes: list[Change]) -> Applied:
        if changes:
            self._revision += 1
        return Applied(self._revision)

    def _write(self, entry: Entry, lease: int | None) -> None:
        if entry.key not in self._entries:
            insort(self._keys, entry.key)
        self._entries[entry.key] = entry
        self._bind(entry.key, lease)

    def _remove(self, key: str) -> bool:
        if self._entries.pop(key, None) is None:
            return False
        del self._keys[bisect_left(self._keys, key)]
        self._bind(key, None)
        return True

    def _bind(self, key: str, lease: int | None) -> None:
        former = self._lease_of.pop(key, None)
        if former is not None:
            self._leases[former].keys.discard(key)
        if lease is not None:
            self._lease_of[key] = lease
            self._leases[lease].keys.add(key)

    def snapshot(self) -> bytes:
        """Return the whole state; equal states give equal bytes."""
        entries = (self._entries[key] for key in self._keys)
        return msgspec.msgpack.encode(
            _Snapshot(
                version=SNAPSHOT_VERSION,
                revision=self._revision,
                time_ms=self._time_ms,
                last_lease=self._last_lease,
                entries=[
                    (entry.key, entry.value, entry.revision, self._lease_of.get(entry.key))
                    for entry in entries
                ],
                counters=sorted(self._counters.items()),
                leases=[
                    (number, lease.ttl_ms, lease.expires_at_ms)
                    for number, lease in sorted(self._leases.items())
                ],
            )
        )

    def restore(self, data: bytes) -> None:
        """Become the state of that snapshot; Corruption, and unchanged, if it is none."""
        snapshot = _decode_snapshot(data)
        self._clear()
        self._revision = snapshot.revision
        self._time_ms = snapshot.time_ms
        self._last_lease = snapshot.last_lease
        self._counters = dict(snapshot.counters)
        self._leases = {
            number: _Lease(ttl_ms, expires_at_ms, set())
            for number, ttl_ms, expires_at_ms in snapshot.leases
        }
        for key, value, revision, lease in snapshot.entries:
            self._keys.append(key)
            self._entries[key] = Entry(key, value, revision)
            self._bind(key, lease)


def _decode_snapshot(data: bytes) -> _Snapshot:
    try:
        snapshot = msgspec.msgpack.decode(data, type=_Snapshot)
    except msgspec.DecodeError as error:
        raise Corruption(f"not a metadata snapshot: {error}") from error
    if snapshot.version != SNAPSHOT_VERSION:
        raise Corruption(
            f"metadata snapshot of version {snapshot.version}, "
            f"this PyDanube reads version {SNAPSHOT_VERSION}"
        )
    leases = {number for number, _, _ in snapshot.leases}
    bound = {lease for _, _, _, lease in snapshot.entries if lease is not None}
    in_order = all(first[0] < second[0] for first, second in pairwise(snapshot.entries))
    if not in_order or not bound <= leases:
        raise Corruption("a metadata snapshot that no PyDanube has written")
    return snapshot
