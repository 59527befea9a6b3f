"""What must hold whatever happens to a Raft cluster. The first law broken ends the run."""

from pydanube.metadata.raft.core import Raft
from pydanube.metadata.raft.entries import LogEntry


class LawBroken(AssertionError):
    """Something happened that never may."""


class RaftLaws:
    """Watches all nodes of one cluster from the outside, over all their lives."""

    def __init__(self) -> None:
        self._leaders: dict[int, int] = {}
        self._applied: dict[int, tuple[int, bytes]] = {}
        self._known_in: dict[int, int] = {}
        """The lowest term of a node that knew an entry to be committed."""
        self._entries: dict[tuple[int, int], tuple[bytes, int]] = {}
        self.last_applied = 0
        self.elections = 0

    def saw_leader(self, raft: Raft) -> bool:
        """At most one leader leads a term, and it has every entry committed in earlier terms.

        Returns whether it is new.
        """
        former = self._leaders.get(raft.term)
        if former == raft.node:
            return False
        if former is not None:
            raise LawBroken(f"nodes {former} and {raft.node} both lead term {raft.term}")
        self._leaders[raft.term] = raft.node
        self.elections += 1
        for index in range(raft.log.base_index + 1, self.last_applied + 1):
            if self._known_in.get(index, raft.term) >= raft.term:
                continue
            term, _ = self._applied[index]
            if raft.log.term_at(index) != term:
                raise LawBroken(
                    f"leader {raft.node} of term {raft.term} lacks entry {index} of term {term}"
                )
        return True

    def saw_entry(self, node: int, entry: LogEntry, previous_term: int | None) -> None:
        """Entries of the same index and term are the same, and so is everything before them."""
        if previous_term is None:
            return
        found = self._entries.setdefault((entry.index, entry.term), (entry.data, previous_term))
        if found != (entry.data, previous_term):
            raise LawBroken(
                f"entry {entry.index} of term {entry.term} differs on node {node}: "
                f"{(entry.data, previous_term)} instead of {found}"
            )

    def saw_applied(self, node: int, term: int, entry: LogEntry, applied_before: int) -> None:
        """Nodes apply the same entries in the same order, each once, without a gap."""
        if entry.index != applied_before + 1:
            raise LawBroken(f"node {node} applied {entry.index} after {applied_before}")
        found = self._applied.setdefault(entry.index, (entry.term, entry.data))
        if found != (entry.term, entry.data):
            raise LawBroken(f"node {node} applied {entry} where another applied {found}")
        self._known_in[entry.index] = min(self._known_in.get(entry.index, term), term)
        self.last_applied = max(self.last_applied, entry.index)
