"""One Raft node: the term, the vote, the log, the role, and what leaves for the outside.

The caller's verbs are `tick`, `step`, `propose` and the like, `ready` and `advance`. Nothing here
waits, stores or sends: see `ready.Ready` for what the caller owes.
"""

from collections.abc import Callable

from pydanube.errors import Conflict, Overloaded
from pydanube.metadata.raft.candidate import Candidate
from pydanube.metadata.raft.entries import (
    NOBODY,
    EntryKind,
    HardState,
    Snapshot,
    Stored,
    encode_membership,
)
from pydanube.metadata.raft.errors import NotLeader
from pydanube.metadata.raft.follower import Follower
from pydanube.metadata.raft.leader import Leader
from pydanube.metadata.raft.log import RaftLog
from pydanube.metadata.raft.membership import Membership
from pydanube.metadata.raft.messages import (
    Append,
    Heartbeat,
    HeartbeatAnswer,
    InstallSnapshot,
    Message,
    RequestVote,
    TakeOver,
    Vote,
)
from pydanube.metadata.raft.reads import ReadReady
from pydanube.metadata.raft.ready import Ready
from pydanube.metadata.raft.roles import Role
from pydanube.metadata.raft.settings import RaftSettings


class Raft:
    """Decides for one node. `draw` returns a random number from 0 to its argument - 1.

    A node that is no voter votes when it is asked, for who asks may know the members better. It
    stands for election only while its own removal may not be committed.
    """

    def __init__(
        self, node: int, settings: RaftSettings, stored: Stored, draw: Callable[[int], int]
    ) -> None:
        self.node = node
        self.settings = settings
        self.log = RaftLog(stored)
        self.term = stored.hard_state.term
        self.vote = stored.hard_state.vote
        self.leader = NOBODY
        self.elapsed = 0
        """Ticks since the leader was heard, or, for the leader, since it counted its followers."""
        self._stored = stored.hard_state
        self._draw = draw
        self._outbox: list[Message] = []
        self._reads: list[ReadReady] = []
        self.role: Role = Follower(self)

    @property
    def membership(self) -> Membership:
        """The members, as of the last entry of this node's log."""
        return self.log.membership

    @property
    def is_leader(self) -> bool:
        """Whether this node takes itself for the leader."""
        return isinstance(self.role, Leader)

    @property
    def is_voter(self) -> bool:
        """Whether this node decides with the others."""
        return self.node in self.membership.voters

    def tick(self) -> None:
        """Let one unit of time pass."""
        self.elapsed += 1
        self.role.tick()

    def campaign(self, *, forced: bool = False) -> None:
        """Stand for election, if this node may; forced: at once and for real."""
        if not self.is_leader and self.log.may_lead(self.node):
            self._stand(trial=not forced, forced=forced)

    def step(self, message: Message) -> None:
        """Take in what another node said."""
        assert message.to == self.node, f"a message for node {message.to} came to {self.node}"
        if message.term > self.term:
            if not self._accept_term(message):
                return
        elif message.term < self.term:
            self._answer_outdated(message)
            return
        if isinstance(message, RequestVote):
            self._answer_request(message)
        else:
            self.role.step(message)

    def propose(self, data: bytes) -> tuple[int, int]:
        """Append a command; return its index and term. It is done once that entry is committed.

        If another entry is committed at that index, the command will never be done.
        """
        return self._leading().propose(EntryKind.COMMAND, data), self.term

    def propose_membership(self, membership: Membership) -> tuple[int, int]:
        """Append new members, who count from now on; Conflict if that is not safe right now."""
        leader = self._leading()
        leader.check_change(membership)
        index = leader.propose(EntryKind.MEMBERSHIP, encode_membership(membership))
        leader.prepare()  # A node that leaves shall hear of it.
        leader.members_changed()
        return index, self.term

    def read_index(self, context: int) -> None:
        """Ask from where on a read sees everything acknowledged before; `ready` answers."""
        leader = self._leading()
        if len(leader.reads) >= self.settings.reads_max:
            raise Overloaded(f"{len(leader.reads)} reads wait for the followers")
        leader.read_index(context)

    def transfer(self, to: int) -> None:
        """Hand leadership over; proposals are refused until that has happened or failed."""
        leader = self._leading()
        if to not in self.membership.voters:
            raise Conflict(f"node {to} is no voter and cannot lead")
        if to != self.node:
            leader.transfer(to)

    def report_lost(self, node: int) -> None:
        """Say that something sent to a node did not arrive; harmless if it did."""
        if isinstance(self.role, Leader):
            self.role.report_lost(node)

    def cut_log(self, snapshot: Snapshot, keep_entries: int) -> bool:
        """Forget old entries but a few; the snapshot is durable. False if a later one came."""
        if snapshot.index <= self.log.snapshot.index:
            return False
        self.log.cut(snapshot, snapshot.index - keep_entries + 1)
        return True

    def stored_now(self) -> Stored:
        """Return what the disk holds of this node, as far as it is known to."""
        log = self.log
        stable = log.entries_between(log.base_index + 1, log.stable_index)
        return Stored(self._stored, log.snapshot, log.base_index, log.base_term, stable)

    def has_ready(self) -> bool:
        """Tell whether there is something to carry out."""
        log = self.log
        return bool(
            self._outbox
            or self._reads
            or self._hard_state() != self._stored
            or log.unstored_snapshot
            or log.stable_index < log.last_index
            or log.applied < log.committed
            or (isinstance(self.role, Leader) and self.role.reads.wants_round)
        )

    def ready(self) -> Ready:
        """Return what to carry out now. Nothing else is returned before `advance`."""
        if isinstance(self.role, Leader):
            self.role.prepare()
        hard_state = self._hard_state()
        changed = hard_state if hard_state != self._stored else None
        first, after = self._divide_outbox(changed)
        reads, self._reads = self._reads, []
        return Ready(
            hard_state=changed,
            snapshot=self.log.unstored_snapshot,
            entries=self.log.unstable_entries(),
            send_first=first,
            send_after=after,
            committed=self.log.committed_entries(self.settings.apply_bytes_max),
            reads=tuple(reads),
        )

    def advance(self, ready: Ready) -> None:
        """Say that all of it was carried out."""
        log = self.log
        if ready.hard_state is not None:
            self._stored = ready.hard_state
        if ready.snapshot is not None and log.unstored_snapshot is ready.snapshot:
            log.unstored_snapshot = None
        if ready.entries:
            log.stored_to(ready.entries[-1].index, ready.entries[-1].term)
        if ready.committed and ready.committed[-1].index > log.applied:
            log.applied_to(ready.committed[-1].index)
        if isinstance(self.role, Leader):
            self.role.stored()

    def campaign_for_real(self) -> None:
        """Go on after a trial that was won."""
        self._stand(trial=False, forced=False)

    def send(self, message: Message) -> None:
        """Put a message into the next `Ready`, or lose it if too many wait."""
        if len(self._outbox) < self.settings.messages_max:
            self._outbox.append(message)

    def answer_reads(self, reads: list[ReadReady]) -> None:
        """Put answers to reads into the next `Ready`."""
        self._reads += reads

    def draw_election_ticks(self) -> int:
        """Return how long to wait for a leader this time."""
        return self.settings.election_ticks + self._draw(self.settings.election_ticks)

    def become_follower(self, term: int, leader: int) -> None:
        """Follow, in this term or a later one."""
        if isinstance(self.role, Leader):
            self.answer_reads(list(self.role.reads.give_up()))
        if term != self.term:
            self.term = term
            self.vote = NOBODY
        self.leader = leader
        self.elapsed = 0
        self.role = Follower(self)

    def become_leader(self) -> None:
        """Lead this term."""
        self.leader = self.node
        self.elapsed = 0
        leader = Leader(self)
        self.role = leader
        leader.begin()

    def _stand(self, *, trial: bool, forced: bool) -> None:
        self.leader = NOBODY
        self.elapsed = 0
        candidate = Candidate(self, trial=trial, forced=forced)
        self.role = candidate
        candidate.begin()

    def _leading(self) -> Leader:
        if not isinstance(self.role, Leader):
            raise NotLeader(self.leader)
        return self.role

    def _hard_state(self) -> HardState:
        return HardState(self.term, self.vote)

    def _divide_outbox(
        self, changed: HardState | None
    ) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        outbox, self._outbox = self._outbox, []
        if changed is not None:
            # Nobody may hear of a term that this node could forget.
            return (), tuple(outbox)
        # Followers may store entries while the leader does: it counts itself when it has.
        first = tuple(message for message in outbox if isinstance(message, Append))
        after = tuple(message for message in outbox if not isinstance(message, Append))
        return first, after

    def _accept_term(self, message: Message) -> bool:
        """Move on to a message's later term; return whether to look at the message."""
        match message:
            case RequestVote() if not message.forced and self._hears_leader():
                return False  # Whoever asks was cut off or removed; those who lead well go on.
            case RequestVote(trial=True) | Vote(trial=True, granted=True):
                return True  # Nobody has moved to that term yet.
            case Append() | Heartbeat() | InstallSnapshot():
                self.become_follower(message.term, message.sender)
            case _:
                self.become_follower(message.term, NOBODY)
        return True

    def _hears_leader(self) -> bool:
        return self.leader != NOBODY and self.elapsed < self.settings.election_ticks

    def _answer_outdated(self, message: Message) -> None:
        """Let a sender of an earlier term know that there is a later one."""
        match message:
            case Append() | Heartbeat() | InstallSnapshot() | TakeOver():
                self.send(HeartbeatAnswer(self.term, self.node, message.sender, 0))
            case RequestVote(trial=True):
                refusal = Vote(self.term, self.node, message.sender, granted=False, trial=True)
                self.send(refusal)
            case _:
                pass

    def _answer_request(self, request: RequestVote) -> None:
        granted = self._may_vote(request) and self.log.is_up_to_date(
            request.last_index, request.last_term
        )
        term = request.term if granted else self.term
        self.send(Vote(term, self.node, request.sender, granted=granted, trial=request.trial))
        if granted and not request.trial:
            self.vote = request.sender
            self.elapsed = 0

    def _may_vote(self, request: RequestVote) -> bool:
        if request.trial:
            return request.term > self.term
        return self.vote == request.sender or (self.vote == NOBODY and self.leader == NOBODY)
