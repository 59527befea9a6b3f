"""The node that leads its term: it appends, replicates, commits and hands over."""

from typing_extensions import override

from pydanube.errors import Conflict, Overloaded
from pydanube.metadata.raft.entries import NOBODY, EntryKind, LogEntry
from pydanube.metadata.raft.errors import NotLeader
from pydanube.metadata.raft.membership import Membership, voters_apart
from pydanube.metadata.raft.messages import (
    Append,
    Appended,
    Heartbeat,
    HeartbeatAnswer,
    InstallSnapshot,
    Message,
    Refused,
    TakeOver,
)
from pydanube.metadata.raft.progress import Phase, Progress
from pydanube.metadata.raft.quorum import agreed
from pydanube.metadata.raft.reads import Reads
from pydanube.metadata.raft.roles import Role, Surroundings


class Leader(Role):
    """Keeps every member's log like its own, and steps down when it reaches no majority."""

    def __init__(self, raft: Surroundings) -> None:
        super().__init__(raft)
        self.reads = Reads()
        self.progress: dict[int, Progress] = {}
        self._first_index = raft.log.last_index + 1
        """Of the first entry of its own term; when that is committed, so is all before it."""
        self._uncommitted_bytes = 0
        self._heartbeat_elapsed = 0
        self._successor = NOBODY
        self._transfer_elapsed = 0

    @property
    def transferring_to(self) -> int:
        """The node that leadership is being handed to."""
        return self._successor

    def begin(self) -> None:
        """Make the followers' logs like one's own, and commit what earlier leaders left."""
        self.members_changed()
        self.propose(EntryKind.NOTHING, b"")

    def propose(self, kind: EntryKind, data: bytes) -> int:
        """Append an entry, to be sent with the next `Ready`; return its index."""
        raft = self._raft
        if self._successor != NOBODY:
            raise NotLeader(NOBODY, f"leadership is being handed to node {self._successor}")
        entry = LogEntry(raft.log.last_index + 1, raft.term, kind, data)
        limit = raft.settings.uncommitted_bytes_max
        if self._uncommitted_bytes and self._uncommitted_bytes + entry.size > limit:
            raise Overloaded(f"{self._uncommitted_bytes} bytes wait for a majority to store them")
        self._uncommitted_bytes += entry.size
        raft.log.append([entry])
        return entry.index

    def check_change(self, membership: Membership) -> None:
        """Refuse a change of members that would not be safe, or not be wise.

        Two leaders may hold different members only if any majority of the one shares a voter with
        any majority of the other. One voter at a time ensures that between one membership and
        the next; a leader must know the present one committed, and not by an earlier leader's
        word alone, hence the entry of its own term.
        """
        raft = self._raft
        if raft.log.committed < self._first_index:
            raise Conflict("the leader is new and does not know yet what is committed; try again")
        if raft.log.membership_index > raft.log.committed:
            raise Conflict("another change of members is under way; try again when it is done")
        if voters_apart(raft.membership, membership) > 1:
            raise Conflict("the voters change one at a time")
        for node in sorted(membership.voters.keys() - raft.membership.voters.keys()):
            progress = self.progress.get(node)
            lag = raft.log.last_index - (progress.match if progress else 0)
            if progress is None or not progress.active or lag > raft.settings.promotion_lag_max:
                raise Conflict(f"node {node} lacks {lag} entries: promote it when it has caught up")

    def members_changed(self) -> None:
        """Send to new members, and no more to those who left."""
        raft = self._raft
        others = raft.membership.others(raft.node)
        following = {
            node: self.progress.get(node) or Progress(raft.settings, raft.log.last_index + 1)
            for node in others
        }
        self.progress = following
        if self._successor not in following:
            self._successor = NOBODY
        self._send_to_all()
        self._commit()

    def read_index(self, context: int) -> None:
        """Let a read wait until a majority has confirmed that this node leads."""
        if self._knows_committed:
            self.reads.add(context, self._raft.log.committed)
        else:
            self.reads.hold(context)

    def prepare(self) -> None:
        """Send what was proposed, and ask once for all reads, since the last time."""
        self._send_to_all()
        if self.reads.wants_round:
            self.reads.round += 1
            self._send_heartbeats()
            self._confirm_reads()

    def transfer(self, to: int) -> None:
        """Bring a voter up to date, then let it take over."""
        self._successor = to
        self._transfer_elapsed = 0
        self._hand_over_if_ready(to)
        self._send(to, even_empty=True)

    def report_lost(self, node: int) -> None:
        """Send anew what was under way to a node, once it answers."""
        progress = self.progress.get(node)
        if progress is not None and progress.phase is not Phase.PROBE:
            progress.probe()

    def stored(self) -> None:
        """Count what this node itself has on disk."""
        self._commit()

    @override
    def tick(self) -> None:
        raft = self._raft
        for progress in self.progress.values():
            progress.tick()
        self._give_up_transfer_in_time()
        if raft.elapsed >= raft.settings.election_ticks:
            raft.elapsed = 0
            if not self._reaches_majority():
                raft.become_follower(raft.term, NOBODY)
                return
        self._heartbeat_elapsed += 1
        if self._heartbeat_elapsed >= raft.settings.heartbeat_ticks:
            self._heartbeat_elapsed = 0
            self._send_heartbeats()

    @override
    def step(self, message: Message) -> None:
        progress = self.progress.get(message.sender)
        if progress is None:
            return  # It left, or it never was a member.
        match message:
            case Appended():
                progress.active = True
                self._accepted(message.sender, progress, message.match)
            case Refused():
                progress.active = True
                self._refused(message, progress)
            case HeartbeatAnswer():
                progress.heard()
                self.reads.heard(message.sender, message.round)
                self._confirm_reads()
                if progress.match < self._raft.log.last_index or progress.phase is Phase.PROBE:
                    self._send(message.sender, even_empty=True)
            case _:
                pass

    @property
    def _knows_committed(self) -> bool:
        return self._raft.log.committed >= self._first_index

    def _accepted(self, node: int, progress: Progress, match: int) -> None:
        if progress.accepted(min(match, self._raft.log.last_index)):
            self._hand_over_if_ready(node)
            self._commit()
        while self._raft.is_leader and self._send(node, even_empty=False):
            pass  # Bounded by what may be in flight.

    def _refused(self, message: Refused, progress: Progress) -> None:
        agreeing, _ = self._raft.log.conflict_hint(message.hint_index, message.hint_term)
        if progress.refused(message.previous_index, agreeing):
            self._send(message.sender, even_empty=True)

    def _commit(self) -> None:
        """Commit what a majority has stored."""
        raft, log = self._raft, self._raft.log
        index = agreed(self._matches(), raft.membership.voters)
        # An entry of an earlier term can be replaced even if a majority has it.
        if index <= log.committed or log.term_at(index) != raft.term:
            return
        knew = self._knows_committed
        released = log.entries_between(log.committed + 1, index)
        self._uncommitted_bytes = max(
            0, self._uncommitted_bytes - sum(entry.size for entry in released)
        )
        log.commit_to(index)
        if not knew and self._knows_committed:
            self.reads.release_held(log.committed)
        self._send_to_all(even_empty=True)
        if not raft.is_voter and log.membership_index <= log.committed:
            raft.become_follower(raft.term, NOBODY)

    def _matches(self) -> dict[int, int]:
        matches = {node: progress.match for node, progress in self.progress.items()}
        matches[self._raft.node] = self._raft.log.stable_index
        return matches

    def _reaches_majority(self) -> bool:
        raft = self._raft
        active = [node for node, progress in self.progress.items() if progress.active]
        for progress in self.progress.values():
            progress.active = False
        return raft.membership.is_quorum([*active, raft.node])

    def _confirm_reads(self) -> None:
        raft = self._raft
        while (round_ := self.reads.next_round()) is not None and round_ <= self.reads.round:
            if not raft.membership.is_quorum([*self.reads.heard_by(round_), raft.node]):
                return
            raft.answer_reads(self.reads.take(round_))

    def _hand_over_if_ready(self, node: int) -> None:
        raft = self._raft
        if node == self._successor and self.progress[node].match == raft.log.last_index:
            raft.send(TakeOver(raft.term, raft.node, node))

    def _give_up_transfer_in_time(self) -> None:
        if self._successor != NOBODY:
            self._transfer_elapsed += 1
            if self._transfer_elapsed >= self._raft.settings.election_ticks:
                self._successor = NOBODY

    def _send_to_all(self, *, even_empty: bool = False) -> None:
        for node in self.progress:
            self._send(node, even_empty=even_empty)

    def _send(self, node: int, *, even_empty: bool) -> bool:
        """Send the next entries, or a snapshot if they were cut; return whether entries went."""
        raft, log = self._raft, self._raft.log
        progress = self.progress[node]
        if progress.is_paused:
            return False
        previous_term = log.term_at(progress.next - 1)
        if previous_term is None:
            if progress.active:
                progress.sent_snapshot(log.snapshot.index)
                raft.send(InstallSnapshot(raft.term, raft.node, node, log.snapshot))
            return False
        entries = log.entries_from(progress.next, raft.settings.append_bytes_max)
        if not entries and not even_empty:
            return False
        previous = progress.next - 1
        if entries:
            progress.sent(entries[-1].index, sum(entry.size for entry in entries))
        raft.send(
            Append(raft.term, raft.node, node, previous, previous_term, entries, log.committed)
        )
        return bool(entries)

    def _send_heartbeats(self) -> None:
        raft = self._raft
        for node, progress in self.progress.items():
            committed = min(progress.match, raft.log.committed)
            raft.send(Heartbeat(raft.term, raft.node, node, committed, self.reads.round))
