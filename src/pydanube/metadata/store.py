"""The door to the metadata: one interface for every backend.

Keys are paths such as /topics/default/orders; values are bytes. Every change of the store has a
revision above all before it, over all keys: backends of our own count 1, 2, 3 …, etcd leaves gaps.
A prefix always ends in "/", so /topics/default/a/ never stands for /topics/default/ab.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct


class Entry(Struct, frozen=True):
    """A key's present value."""

    key: str
    value: bytes
    revision: int
    """Of the change that wrote it; 0 never occurs."""


class Put(Struct, frozen=True, tag=True):
    """Write a key; bound to a lease it goes when the lease does."""

    key: str
    value: bytes
    lease: int | None = None


class Delete(Struct, frozen=True, tag=True):
    """Remove a key; harmless when it is absent."""

    key: str


class Expect(Struct, frozen=True, tag=True):
    """A condition: the key's revision is this, where 0 means absent."""

    key: str
    revision: int


Operation = Put | Delete


class Change(Struct, frozen=True):
    """What a watch tells: the key's new value, or None when it was deleted."""

    key: str
    value: bytes | None
    revision: int


class MetadataStore(Protocol):
    """Linearizable writes, local reads.

    A write returns once it is durable and applied. `get`, `list` and `revision` answer from the
    applied state at once. Failures: Conflict (a condition did not hold), Unavailable (no quorum,
    or the store has stopped after a failed sync), InvalidRequest (a malformed key).
    """

    @property
    def revision(self) -> int:
        """The revision of the last applied change."""

    def get(self, key: str) -> Entry | None:
        """Return the key's entry."""

    def list(self, prefix: str) -> list[Entry]:
        """Return the entries below a prefix, sorted by key."""

    async def put(self, key: str, value: bytes, *, lease: int | None = None) -> int:
        """Write a key and return the revision."""

    async def delete(self, key: str) -> int:
        """Remove a key and return the revision."""

    async def compare_and_swap(self, key: str, expected_revision: int, value: bytes) -> int:
        """Write the key if its revision is the expected one (0: absent); Conflict otherwise."""

    async def transact(self, conditions: Sequence[Expect], operations: Sequence[Operation]) -> int:
        """Apply all operations as one change if all conditions hold; Conflict otherwise."""

    async def next_id(self, counter_key: str) -> int:
        """Return 1, 2, 3 … per counter; a number is never given twice."""

    async def leap(self, revision: int, counters: Mapping[str, int]) -> None:
        """Go on behind this revision and these numbers; what is beyond them already stays.

        For metadata that are an older copy: what they would give next was given before.
        """

    def watch(self, prefix: str, after_revision: int) -> AsyncIterator[Change]:
        """Iterate over all changes below the prefix with a revision above that one, in order.

        Conflict, at once or while iterating, if that revision has been compacted away or the
        reader is too slow: list again and watch from there. The changes of one transaction come
        in a row with one revision, so a reader that begins anew in their midst asks for changes
        after the revision before. The iteration ends when the store is closed, and with
        Unavailable when it stops after a failed write.
        """

    async def grant_lease(self, ttl_ms: int) -> int:
        """Return a lease that lives that long from its last renewal."""

    async def renew_lease(self, lease: int) -> None:
        """Start its time anew; NotFound once it has expired."""

    async def revoke_lease(self, lease: int) -> None:
        """End it and delete the keys bound to it."""

    async def close(self) -> None:
        """Finish running writes and release the store."""
