"""A node that follows a leader, or waits for one."""

from typing_extensions import override

from pydanube.metadata.raft.entries import NOBODY, Snapshot
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
from pydanube.metadata.raft.roles import Role, Surroundings


class Follower(Role):
    """Takes entries and snapshots in; stands for election when it has heard nobody for long."""

    def __init__(self, raft: Surroundings) -> None:
        super().__init__(raft)
        self._patience = raft.draw_election_ticks()

    @override
    def tick(self) -> None:
        if self._raft.elapsed >= self._patience:
            # Also where this node may not stand itself: whoever does shall have its vote.
            self._raft.leader = NOBODY
            self._raft.elapsed = 0
            self._raft.campaign()

    @override
    def step(self, message: Message) -> None:
        match message:
            case Append():
                self._hear(message.sender)
                self._append(message)
            case Heartbeat():
                self._hear(message.sender)
                self._beat(message)
            case InstallSnapshot():
                self._hear(message.sender)
                self._install(message.sender, message.snapshot)
            case TakeOver():
                self._raft.campaign(forced=True)
            case _:
                pass  # An answer to what this node asked in another role.

    def _hear(self, leader: int) -> None:
        self._raft.leader = leader
        self._raft.elapsed = 0

    def _append(self, message: Append) -> None:
        raft, log = self._raft, self._raft.log
        if message.previous_index < log.committed:
            # All of it is known to be the same, and some of it may have been cut.
            self._accept(message.sender, log.committed)
            return
        match = log.merge(message.previous_index, message.previous_term, message.entries)
        if match is None:
            index, term = log.conflict_hint(message.previous_index, message.previous_term)
            raft.send(
                Refused(raft.term, raft.node, message.sender, message.previous_index, index, term)
            )
            return
        log.commit_to(max(log.committed, min(message.committed, match)))
        self._accept(message.sender, match)

    def _beat(self, message: Heartbeat) -> None:
        raft, log = self._raft, self._raft.log
        # The leader names no more than it knows this very log to hold.
        log.commit_to(max(log.committed, message.committed))
        raft.send(HeartbeatAnswer(raft.term, raft.node, message.sender, message.round))

    def _install(self, leader: int, snapshot: Snapshot) -> None:
        log = self._raft.log
        if snapshot.index > log.committed:
            if log.term_at(snapshot.index) == snapshot.term:
                # The log has it all; what follows in it may have been promised to the leader.
                log.commit_to(snapshot.index)
            else:
                log.restore(snapshot)
        self._accept(leader, log.committed)

    def _accept(self, leader: int, match: int) -> None:
        raft = self._raft
        raft.send(Appended(raft.term, raft.node, leader, match))
