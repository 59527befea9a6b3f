"""The log as one node knows it: what is held, what is on disk, what is committed and applied."""

from collections.abc import Sequence

from pydanube.metadata.raft.entries import (
    EntryKind,
    LogEntry,
    Snapshot,
    Stored,
    decode_membership,
)
from pydanube.metadata.raft.membership import Membership


class RaftLog:
    """Entries from `base_index` + 1 to `last_index`; everything up to the base is in the snapshot.

    `stable_index` is how far the log is on disk. The members are those of the latest entry that
    names members, committed or not; when that entry is cut off, those of the one before.
    """

    def __init__(self, stored: Stored) -> None:
        self.snapshot = stored.snapshot
        self.base_index = stored.base_index
        self.base_term = stored.base_term
        self._entries = list(stored.entries)
        self.stable_index = self.last_index
        self.committed = stored.snapshot.index
        self.applied = stored.snapshot.index
        self.unstored_snapshot: Snapshot | None = None
        self._memberships = [(stored.snapshot.index, stored.snapshot.membership)]
        self._note_memberships(stored.entries)
        assert self.term_at(self.snapshot.index) == self.snapshot.term, "log and snapshot differ"

    @property
    def last_index(self) -> int:
        """The index of the last entry."""
        return self.base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        """The term of the last entry."""
        return self._entries[-1].term if self._entries else self.base_term

    @property
    def membership(self) -> Membership:
        """The members as of the last entry."""
        return self._memberships[-1][1]

    @property
    def membership_index(self) -> int:
        """Where the present members were named."""
        return self._memberships[-1][0]

    def membership_at(self, index: int) -> Membership:
        """Return the members as of an entry that the snapshot does not precede."""
        return next(members for at, members in reversed(self._memberships) if at <= index)

    def may_lead(self, node: int) -> bool:
        """Tell whether a node is a voter, now or before a change that may not be committed.

        Without the latter, a leader that has noted its own removal and nobody else has would keep
        the others from being elected, since its log is longer, and not be elected itself.
        """
        certain = [at for at, _ in self._memberships if at <= self.committed][-1]
        return any(node in members.voters for at, members in self._memberships if at >= certain)

    def term_at(self, index: int) -> int | None:
        """Return an entry's term; None if it was cut, or is not there yet."""
        if index == self.base_index:
            return self.base_term
        if self.base_index < index <= self.last_index:
            return self._entries[index - self.base_index - 1].term
        return None

    def entries_from(self, index: int, bytes_max: int) -> tuple[LogEntry, ...]:
        """Return entries from an index on: one at least, if there is one, then up to a size."""
        return self._slice(index, self.last_index, bytes_max)

    def unstable_entries(self) -> tuple[LogEntry, ...]:
        """Return the entries that are not on disk yet."""
        return tuple(self._entries[self.stable_index - self.base_index :])

    def committed_entries(self, bytes_max: int) -> tuple[LogEntry, ...]:
        """Return what is committed and not applied yet: one at least, then up to a size."""
        return self._slice(self.applied + 1, self.committed, bytes_max)

    def entries_between(self, first: int, last: int) -> tuple[LogEntry, ...]:
        """Return the entries from one index to another, both included."""
        return tuple(self._entries[first - self.base_index - 1 : last - self.base_index])

    def kept_entries(self) -> tuple[LogEntry, ...]:
        """Return every entry that is held."""
        return tuple(self._entries)

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Tell whether a log that ends so is at least as new as this one."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Add entries behind the last one."""
        self._entries += entries
        self._note_memberships(entries)

    def merge(
        self, previous_index: int, previous_term: int, entries: Sequence[LogEntry]
    ) -> int | None:
        """Take a leader's entries in place of those that differ; None if there is a gap.

        Returns up to where the log equals the leader's now. Entries that are held already are
        left alone, and so is what follows them: the message may be an old one.
        """
        if self.term_at(previous_index) != previous_term:
            return None
        for position, entry in enumerate(entries):
            if self.term_at(entry.index) != entry.term:
                assert entry.index > self.committed, "a committed entry would be replaced"
                self._cut_from(entry.index)
                self.append(entries[position:])
                break
        return previous_index + len(entries)

    def conflict_hint(self, index: int, term: int) -> tuple[int, int]:
        """Return the last place, at or before `index`, whose term is not above `term`.

        Whoever has another entry there, or of a later term before, cannot agree further up. A
        place before the base is returned as it is: nothing is known of it any more.
        """
        if index < self.base_index:
            return index, term
        index = min(index, self.last_index)
        while index > self.base_index:
            found = self.term_at(index)
            assert found is not None, "the place is held"
            if found <= term:
                return index, found
            index -= 1
        return self.base_index, self.base_term

    def commit_to(self, index: int) -> None:
        """Take everything up to an index for committed; what is committed stays so."""
        assert index <= self.last_index, f"{index} is committed, the log ends at {self.last_index}"
        self.committed = max(self.committed, index)

    def stored_to(self, index: int, term: int) -> None:
        """Note that the log is on disk up to this entry, unless it has been replaced since."""
        if self.term_at(index) == term:
            self.stable_index = max(self.stable_index, index)

    def applied_to(self, index: int) -> None:
        """Note that the state machine has got everything up to an index."""
        assert self.applied <= index <= self.committed, "only what is committed is applied"
        self.applied = index

    def cut(self, snapshot: Snapshot, keep_from: int) -> None:
        """Forget entries before `keep_from`; the snapshot, on disk by now, stands for them."""
        assert self.term_at(snapshot.index) == snapshot.term, "the snapshot is of another log"
        assert snapshot.index <= self.applied, "a snapshot holds what was applied"
        base = max(self.base_index, min(keep_from - 1, snapshot.index, self.stable_index))
        term = self.term_at(base)
        assert term is not None, "the new base is held"
        del self._entries[: base - self.base_index]
        self.base_index, self.base_term = base, term
        self.snapshot = snapshot
        later = [item for item in self._memberships if item[0] > snapshot.index]
        self._memberships = [(snapshot.index, snapshot.membership), *later]

    def restore(self, snapshot: Snapshot) -> None:
        """Begin anew with a leader's snapshot that is ahead of what is committed here."""
        self.base_index, self.base_term = snapshot.index, snapshot.term
        self._entries = []
        self.stable_index = self.committed = self.applied = snapshot.index
        self._memberships = [(snapshot.index, snapshot.membership)]
        self.snapshot = self.unstored_snapshot = snapshot

    def _slice(self, first: int, last: int, bytes_max: int) -> tuple[LogEntry, ...]:
        chosen: list[LogEntry] = []
        size = 0
        for entry in self._entries[first - self.base_index - 1 : last - self.base_index]:
            size += entry.size
            if chosen and size > bytes_max:
                break
            chosen.append(entry)
        return tuple(chosen)

    def _cut_from(self, index: int) -> None:
        del self._entries[index - self.base_index - 1 :]
        self.stable_index = min(self.stable_index, index - 1)
        self._memberships = [item for item in self._memberships if item[0] < index]

    def _note_memberships(self, entries: Sequence[LogEntry]) -> None:
        self._memberships += [
            (entry.index, decode_membership(entry.data))
            for entry in entries
            if entry.kind is EntryKind.MEMBERSHIP and entry.index > self.snapshot.index
        ]
