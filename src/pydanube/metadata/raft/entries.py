"""What a Raft log holds, and what a node must find again after a crash."""

from enum import IntEnum

import msgspec
from msgspec import Struct

from pydanube.errors import Corruption
from pydanube.metadata.raft.membership import Membership

NOBODY = 0
"""No node has this id."""

_ENTRY_OVERHEAD_BYTES = 24


class EntryKind(IntEnum):
    """What an entry's data is."""

    COMMAND = 1
    """Bytes for the state machine."""
    NOTHING = 2
    """Nothing: a new leader's first entry, by which it learns what is committed."""
    MEMBERSHIP = 3
    """The members from this entry on."""


class LogEntry(Struct, frozen=True, array_like=True):
    """One place in the log. Two entries of the same index and term are the same."""

    index: int
    term: int
    kind: EntryKind
    data: bytes

    @property
    def size(self) -> int:
        """How many bytes it counts for in limits."""
        return len(self.data) + _ENTRY_OVERHEAD_BYTES


class HardState(Struct, frozen=True, array_like=True):
    """What a node must never forget: the term it has seen, and whom it voted for in it."""

    term: int
    vote: int = NOBODY


class Snapshot(Struct, frozen=True, array_like=True):
    """The state after the entry of this index and term, with the members at that place."""

    index: int
    term: int
    membership: Membership
    state: bytes


class Stored(Struct, frozen=True):
    """What a node found on its disk: the entries follow each other from `base_index` + 1 on.

    The base is where the log was cut; the snapshot covers it and possibly more.
    """

    hard_state: HardState
    snapshot: Snapshot
    base_index: int
    base_term: int
    entries: tuple[LogEntry, ...]


def nothing_stored(state: bytes) -> Stored:
    """Return what a node begins with that belongs to no cluster yet."""
    return Stored(HardState(0), Snapshot(0, 0, Membership({}, {}), state), 0, 0, ())


def founded(membership: Membership, state: bytes) -> Stored:
    """Return what the node that founds a cluster begins with."""
    return Stored(HardState(1), Snapshot(1, 1, membership, state), 1, 1, ())


def encode_membership(membership: Membership) -> bytes:
    """Return the data of an entry that changes the members."""
    return msgspec.msgpack.encode(membership)


def decode_membership(data: bytes) -> Membership:
    """Return the members an entry names; Corruption if it names none."""
    try:
        return msgspec.msgpack.decode(data, type=Membership)
    except msgspec.DecodeError as error:
        raise Corruption(f"not the members of a cluster: {error}") from error
