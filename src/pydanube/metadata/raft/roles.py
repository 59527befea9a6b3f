"""What a role may rely on, and what it must answer."""

from abc import ABC, abstractmethod
from typing import Protocol

from pydanube.metadata.raft.log import RaftLog
from pydanube.metadata.raft.membership import Membership
from pydanube.metadata.raft.messages import Message
from pydanube.metadata.raft.reads import ReadReady
from pydanube.metadata.raft.settings import RaftSettings


class Role(ABC):
    """A node is in one role at a time. Messages it sees are of the node's own term."""

    def __init__(self, raft: "Surroundings") -> None:
        self._raft = raft

    @abstractmethod
    def tick(self) -> None:
        """Let time pass."""

    @abstractmethod
    def step(self, message: Message) -> None:
        """Take a message in, requests for votes excepted."""


class Surroundings(Protocol):
    """The node, as its role sees it."""

    node: int
    settings: RaftSettings
    log: RaftLog
    term: int
    vote: int
    leader: int
    elapsed: int
    """Ticks since the leader was heard, or, for the leader, since it counted its followers."""
    role: Role

    @property
    def membership(self) -> Membership:
        """The members, as of the last entry of this node's log."""

    @property
    def is_leader(self) -> bool:
        """Whether this node takes itself for the leader."""

    @property
    def is_voter(self) -> bool:
        """Whether this node decides with the others."""

    def send(self, message: Message) -> None:
        """Put a message into the next `Ready`, or lose it if too many wait."""

    def answer_reads(self, reads: list[ReadReady]) -> None:
        """Put answers to reads into the next `Ready`."""

    def draw_election_ticks(self) -> int:
        """Return how long to wait for a leader this time."""

    def campaign(self, *, forced: bool = False) -> None:
        """Stand for election, if this node may; forced: at once and for real."""

    def campaign_for_real(self) -> None:
        """Go on after a trial that was won."""

    def become_follower(self, term: int, leader: int) -> None:
        """Follow, in this term or a later one."""

    def become_leader(self) -> None:
        """Lead this term."""
