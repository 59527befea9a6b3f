"""A copy of keys that live elsewhere, kept in step by what a watch tells. Pure."""

from bisect import bisect_left, insort
from collections.abc import Sequence

from msgspec import Struct

from pydanube.metadata.store import Change, Entry


class Mirrored(Struct, frozen=True):
    """A key's new value and the lease it is bound to; without a value it was deleted."""

    key: str
    value: bytes | None
    revision: int
    lease: int | None = None


class Mirror:
    """The keys as they were at `revision`, which never goes back."""

    def __init__(self) -> None:
        self.revision = 0
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []
        self._lease_of: dict[str, int] = {}
        self._bound: dict[int, set[str]] = {}

    def get(self, key: str) -> Entry | None:
        """Return the key's entry."""
        return self._entries.get(key)

    def entries_below(self, prefix: str) -> list[Entry]:
        """Return the entries below a prefix that ends in "/", sorted by key."""
        first = bisect_left(self._keys, prefix)
        # "0" follows "/" in the order of characters: what lies below the prefix ends there.
        end = bisect_left(self._keys, prefix[:-1] + "0", first)
        return [self._entries[key] for key in self._keys[first:end]]

    def holds_keys_of(self, lease: int) -> bool:
        """Tell whether a key is bound to the lease."""
        return lease in self._bound

    def replace(self, entries: Sequence[Mirrored], revision: int) -> None:
        """Become these entries, as they were at a revision."""
        self._entries = {}
        self._keys = []
        self._lease_of = {}
        self._bound = {}
        for one in sorted(entries, key=lambda one: one.key):
            assert one.value is not None, "what was listed is there"
            self._keys.append(one.key)
            self._entries[one.key] = Entry(one.key, one.value, one.revision)
            self._bind(one.key, one.lease)
        self.revision = revision

    def apply(self, changes: Sequence[Mirrored]) -> list[Change]:
        """Take in all changes of one revision; return what to tell watches."""
        revision = changes[0].revision
        assert revision > self.revision, f"revision {revision} was told after {self.revision}"
        for one in changes:
            if one.value is None:
                self._remove(one.key)
            else:
                if one.key not in self._entries:
                    insort(self._keys, one.key)
                self._entries[one.key] = Entry(one.key, one.value, one.revision)
                self._bind(one.key, one.lease)
        self.revision = revision
        return [Change(one.key, one.value, one.revision) for one in changes]

    def _remove(self, key: str) -> None:
        if self._entries.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]
            self._bind(key, None)

    def _bind(self, key: str, lease: int | None) -> None:
        former = self._lease_of.pop(key, None)
        if former is not None:
            self._bound[former].discard(key)
            if not self._bound[former]:
                del self._bound[former]
        if lease is not None:
            self._lease_of[key] = lease
            self._bound.setdefault(lease, set()).add(key)
