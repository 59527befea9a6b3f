"""A node that stands for election: first on trial, then for real."""

from typing_extensions import override

from pydanube.metadata.raft.entries import NOBODY
from pydanube.metadata.raft.messages import (
    Append,
    Heartbeat,
    InstallSnapshot,
    Message,
    RequestVote,
    Vote,
)
from pydanube.metadata.raft.roles import Role, Surroundings


class Candidate(Role):
    """Asks for votes. A trial changes no term, so a node that was cut off disturbs nobody."""

    def __init__(self, raft: Surroundings, *, trial: bool, forced: bool) -> None:
        super().__init__(raft)
        self._trial = trial
        self._forced = forced
        self._patience = raft.draw_election_ticks()
        self._votes: dict[int, bool] = {}

    def begin(self) -> None:
        """Vote for oneself and ask the others."""
        raft = self._raft
        if not self._trial:
            raft.term += 1
            raft.vote = raft.node
        self._votes = {raft.node: True}
        if self._count():
            return
        for voter in raft.membership.others(raft.node):
            if voter in raft.membership.voters:
                self._ask(voter)

    @override
    def tick(self) -> None:
        if self._raft.elapsed >= self._patience:
            self._raft.campaign()

    @override
    def step(self, message: Message) -> None:
        match message:
            case Append() | Heartbeat() | InstallSnapshot():
                self._raft.become_follower(message.term, message.sender)
                self._raft.role.step(message)
            case Vote():
                if self._is_answer(message):
                    self._votes[message.sender] = message.granted
                    self._count()
            case _:
                pass

    @property
    def _asked_term(self) -> int:
        return self._raft.term + 1 if self._trial else self._raft.term

    def _ask(self, voter: int) -> None:
        raft = self._raft
        raft.send(
            RequestVote(
                self._asked_term,
                raft.node,
                voter,
                raft.log.last_index,
                raft.log.last_term,
                self._trial,
                self._forced,
            )
        )

    def _is_answer(self, vote: Vote) -> bool:
        """Tell an answer to this election from one to an earlier election, or to its trial."""
        return vote.trial == self._trial and (not vote.granted or vote.term == self._asked_term)

    def _count(self) -> bool:
        """End the election if it is decided, and say whether it is."""
        raft = self._raft
        granted = [node for node, vote in self._votes.items() if vote]
        refused = [node for node, vote in self._votes.items() if not vote]
        if raft.membership.is_quorum(granted):
            if self._trial:
                raft.campaign_for_real()
            else:
                raft.become_leader()
            return True
        if raft.membership.is_quorum(refused):
            raft.become_follower(raft.term, NOBODY)
            return True
        return False
